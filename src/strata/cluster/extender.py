"""A scheduler extender's answers, in kube-scheduler's form `extender/v1`: where a pod may go, and how good it is.

Go names without JSON tags: keys are read in any case and written capitalised. A pod whose place is decided goes
there; a pod that asks for something is judged by the router; any other passes everywhere and scores 0. Nothing is
remembered or written: the autoscaler's simulations and retries may ask as often as they like.

References
----------
k8s.io/kube-scheduler/extender/v1/types.go (ExtenderArgs, ExtenderFilterResult, HostPriority).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from strata.cluster.annotations import has_claim, read_claim
from strata.cluster.appraise import FITS, TOKENS, appraise
from strata.cluster.index import Index
from strata.cluster.kinds import Object, annotations_of, meta, name_of, namespace_of
from strata.cluster.placed import PLACEMENT, decode, nodes_of, place_of
from strata.cluster.profile import RuntimeProfile
from strata.errors import BadFile, UsageError
from strata.reasons import REASONS

MOST: Final = 10
"""MaxExtenderPriority."""

RESOLVABLE: Final = frozenset({"devices-busy"})
"""What preempting other pods may change; of all else kube-scheduler is told not to try."""

ELSEWHERE: Final = "placed-elsewhere"
UNKNOWN: Final = "no-devices"

MESSAGES: Final[Mapping[str, str]] = {
    token: f"{token}: {REASONS[token].means}" for token in (*TOKENS, ELSEWHERE) if token
}
"""The same for every node, as kube-scheduler counts equal messages in its event; `strata kube why` has figures."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of nodes for one pod.

    number: of a node in the sequences below. token: `FITS`, or why not. score: by `scoring`. other: of every node
    that has no number.
    """

    other: str
    number: Mapping[str, int] = field(default_factory=dict)
    token: Sequence[str] = ()
    score: Sequence[float] = ()

    def token_of(self, node: str) -> str:
        """Return why a pod may not go to a node, `FITS` where it may."""
        number = self.number.get(node)
        return self.other if number is None else self.token[number]


class Args(NamedTuple):
    """What kube-scheduler asks about. nodes: the whole NodeList, where it does not send names only."""

    pod: Object
    names: Sequence[str]
    nodes: Mapping[str, Any] | None = None


def read_args(said: Any) -> Args:
    """Return what an ExtenderArgs says. Raises UsageError for what is none."""
    keys = {str(key).lower(): value for key, value in said.items()} if isinstance(said, Mapping) else {}
    pod, nodes, names = keys.get("pod"), keys.get("nodes"), keys.get("nodenames")
    if not isinstance(pod, Mapping):
        raise UsageError("no Pod is given")
    if names is not None:
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise UsageError("NodeNames is no list of names")
        return Args(pod, names)
    items = nodes.get("items") or [] if isinstance(nodes, Mapping) else None
    if not (isinstance(items, list) and all(isinstance(node, Mapping) for node in items)):
        raise UsageError("neither NodeNames nor Nodes are given")
    return Args(pod, [name_of(node) for node in items], nodes)


def judge(index: Index, pod: Object, profiles: Sequence[RuntimeProfile]) -> Verdict:
    """Return what is said of all nodes for a pod. Raises BadFile for annotations that cannot be read."""
    said = annotations_of(pod)
    if PLACEMENT in said:
        placement = decode(said[PLACEMENT], where=f"pod {namespace_of(pod)}/{name_of(pod)}")
        place = place_of(pod, placement)
        nodes = nodes_of(placement.pods if place is None else [place])
        return _only(nodes)
    if not has_claim(said):
        return Verdict(FITS)
    claim = read_claim(said, name=name_of(pod), namespace=namespace_of(pod))
    token, score = appraise(index, claim, profiles)
    names = [TOKENS[number] for number in token.tolist()]
    return Verdict(UNKNOWN, index.node_number, names, score.tolist())


def _only(nodes: Sequence[str]) -> Verdict:
    number = {node: position for position, node in enumerate(nodes)}
    return Verdict(ELSEWHERE, number, [FITS] * len(nodes), [1.0] * len(nodes))


def filter_nodes(verdict: Verdict, args: Args) -> dict[str, Any]:
    """Return the ExtenderFilterResult: the nodes that pass, in the order and the form in which they came.

    Whole nodes are sent back whole: there are schedulers that go on with the very nodes they are answered.
    """
    passing: list[str] = []
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    for name in args.names:
        token = verdict.token_of(name)
        if token == FITS:
            passing.append(name)
        elif token in RESOLVABLE:
            failed[name] = MESSAGES[token]
        else:
            unresolvable[name] = MESSAGES[token]
    answer: dict[str, Any] = {"Nodes": None, "NodeNames": passing}
    if args.nodes is not None:
        kept = set(passing)
        items = [node for node in args.nodes.get("items") or () if name_of(node) in kept]
        answer = {"Nodes": {**args.nodes, "items": items}, "NodeNames": None}
    return {**answer, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""}


def refuse_all(error: BadFile) -> dict[str, Any]:
    """Return the ExtenderFilterResult for a pod whose annotations cannot be read: no node, and why."""
    return {
        "Nodes": None,
        "NodeNames": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": one_line(error),
    }


def prioritize(verdict: Verdict, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the HostPriorityList: every node that was asked about, 0 where the pod may not go."""
    return [
        {"Host": name, "Score": score}
        for name, score in zip(names, points(verdict, names, most=MOST), strict=True)
    ]


def points(verdict: Verdict, names: Sequence[str], *, most: int) -> list[int]:
    """Return whole points from 1 to `most` for nodes that fit, by the rank of their score among `names`.

    Equal scores (to 1e-9) get equal points and a better one never fewer; the best have `most` points, and nobody
    else has, however close. Nodes that do not fit, and all nodes of a pod that asks for nothing, have 0.
    """
    scores = [_score(verdict, name) for name in names]
    rounded = np.round(np.array(scores), 9)
    fitting = rounded > 0
    rank = np.zeros(len(scores), dtype=np.int64)
    if fitting.any():
        distinct, order = np.unique(rounded[fitting], return_inverse=True)
        steps = max(len(distinct) - 1, 1)
        rank[fitting] = most - -(-(most - 1) * (len(distinct) - 1 - order) // steps)
    return rank.tolist()


def _score(verdict: Verdict, name: str) -> float:
    number = verdict.number.get(name)
    return 0.0 if number is None or verdict.token[number] != FITS else verdict.score[number]


def one_line(error: BadFile) -> str:
    """Return all faults in one line, as events show it."""
    return "; ".join(str(fault) for fault in error.faults)


class Judge:
    """`judge`, from memory where the pod and the index are those of the question before.

    So prioritize after filter costs no second look, nor do Volcano's questions node by node.
    """

    def __init__(self) -> None:
        self._last: tuple[Index, Sequence[RuntimeProfile], Object, Verdict] | None = None

    def __call__(self, index: Index, pod: Object, profiles: Sequence[RuntimeProfile]) -> Verdict:
        """Return the verdict. Raises BadFile."""
        last, about = self._last, meta(pod)
        if last is None or last[0] is not index or last[2] != about or last[1] != profiles:
            last = self._last = (index, profiles, about, judge(index, pod, profiles))
        return last[3]
