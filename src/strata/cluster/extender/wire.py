"""kube-scheduler's extender in JSON, form `extender/v1`: what it asks, and what it is answered.

Go names without JSON tags: keys are read in any case and written capitalised. Lists of thousands of names are
joined rather than encoded one by one, which takes a tenth of the time; `read_args` lets no name through that JSON
would have to escape.

References
----------
k8s.io/kube-scheduler/extender/v1/types.go: ExtenderArgs, ExtenderFilterResult, HostPriority.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from strata.cluster.api.kinds import Object, name_of
from strata.cluster.extender.verdict import RESOLVABLE, SAID
from strata.cluster.scheduling.evaluation import FITS
from strata.errors import BadFile, UsageError
from strata.reasons import REASONS

MOST: Final = 10
"""MaxExtenderPriority."""

MESSAGES: Final[Mapping[str, str]] = {token: f"{token}: {REASONS[token].means}" for token in SAID if token}
"""The same for every node, as schedulers count equal messages in their events; `strata kube why` has figures."""

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')


class Args(NamedTuple):
    """What kube-scheduler asks about. nodes: the whole NodeList, where it does not send names only."""

    pod: Object
    names: Sequence[str]
    nodes: Mapping[str, Any] | None = None


def decode(body: bytes) -> Any:
    """Return what a body says. Raises UsageError where it is no JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the body is not JSON ({error})") from error


def encode(answer: Any) -> bytes:
    """Return an answer as JSON."""
    return json.dumps(answer, separators=(",", ":")).encode()


def read_args(arguments: Any) -> Args:
    """Return what an ExtenderArgs says. Raises UsageError for what is none."""
    keys = {str(key).lower(): value for key, value in arguments.items()} if isinstance(arguments, Mapping) else {}
    pod, nodes, names = keys.get("pod"), keys.get("nodes"), keys.get("nodenames")
    if not isinstance(pod, Mapping):
        raise UsageError("no Pod is given")
    if names is not None:
        return Args(pod, plain(names))
    items = nodes.get("items") or [] if isinstance(nodes, Mapping) else None
    if not (isinstance(items, list) and all(isinstance(node, Mapping) for node in items)):
        raise UsageError("neither NodeNames nor Nodes are given")
    return Args(pod, plain([name_of(node) for node in items]), nodes)


def plain(names: Any) -> list[str]:
    """Return names that need no escape in JSON. Raises UsageError for anything but a list of them."""
    try:
        is_plain = isinstance(names, list) and _PLAIN.fullmatch(",".join(names))
    except TypeError:
        is_plain = False
    if not is_plain:
        raise UsageError("the nodes' names are not a list of plain names")
    return names  # type: ignore[no-any-return]


def filter_result(names_by_token: Mapping[str, Sequence[str]], args: Args) -> bytes:
    """Return the ExtenderFilterResult of nodes by what is said of them, in the form in which they came.

    Whole nodes are sent back whole: there are schedulers that go on with the very nodes they are answered.
    """
    names, nodes = f"[{_listed(names_by_token[FITS])}]", "null"
    if args.nodes is not None:
        kept = set(names_by_token[FITS])
        items = [node for node in args.nodes.get("items") or () if name_of(node) in kept]
        names, nodes = "null", encode({**args.nodes, "items": items}).decode()
    refused = {token: some for token, some in names_by_token.items() if token != FITS}
    failed = _messages({token: some for token, some in refused.items() if token in RESOLVABLE})
    lost = _messages({token: some for token, some in refused.items() if token not in RESOLVABLE})
    return (
        f'{{"Nodes":{nodes},"NodeNames":{names},"FailedNodes":{{{failed}}},'
        f'"FailedAndUnresolvableNodes":{{{lost}}},"Error":""}}'
    ).encode()


def filter_refusal(error: BadFile) -> bytes:
    """Return the ExtenderFilterResult for a pod that cannot be read: no node, and why."""
    empty: dict[str, Any] = {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}}
    return encode({**empty, "Error": one_line(error)})


def host_priorities(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """Return the HostPriorityList; hosts of one score stand together."""
    by_score: dict[int, list[str]] = {}
    for name, score in zip(names, scores, strict=True):
        by_score.setdefault(score, []).append(name)
    each = (
        '{"Host":"' + f'","Score":{score}}},{{"Host":"'.join(some) + f'","Score":{score}}}'
        for score, some in by_score.items()
    )
    return f"[{','.join(each)}]".encode()


def one_line(error: BadFile) -> str:
    """Return all faults in one line, as events show it."""
    return "; ".join(str(fault) for fault in error.faults)


def _listed(names: Sequence[str]) -> str:
    return '"' + '","'.join(names) + '"' if names else ""


def _messages(names_by_token: Mapping[str, Sequence[str]]) -> str:
    """Return the members of a FailedNodesMap."""
    texts = {token: json.dumps(MESSAGES[token]) for token in names_by_token}
    return ",".join(
        '"' + f'":{texts[token]},"'.join(some) + f'":{texts[token]}' for token, some in names_by_token.items()
    )
