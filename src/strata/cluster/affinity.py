"""Node affinity as the API server lets it be changed: what was asked stays, and is only narrowed."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

HOSTNAME: Final = "kubernetes.io/hostname"

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def on_nodes(spec: Mapping[str, Any], nodes: Sequence[str], *, instead_of: Sequence[str] = ()) -> dict[str, Any]:
    """Return a pod spec's affinity, narrowed to some nodes.

    instead_of: the nodes it was narrowed to before by this function, which then are let go. Terms are
    alternatives, so each is narrowed but empty ones, which match nothing; doing it twice changes nothing.
    """
    affinity: dict[str, Any] = copy.deepcopy(dict(spec.get("affinity") or {}))
    # A null is there in what the webhook is shown of kinds the API server does not know.
    node: dict[str, Any] = affinity.get("nodeAffinity") or {}
    required: dict[str, Any] = node.get(_REQUIRED) or {}
    affinity["nodeAffinity"], node[_REQUIRED] = node, required
    mine, old = _on(nodes), _on(instead_of)
    terms: list[dict[str, Any]] = required.get("nodeSelectorTerms") or [{"matchExpressions": [mine]}]
    required["nodeSelectorTerms"] = terms
    for term in terms:
        if not (term.get("matchExpressions") or term.get("matchFields")):
            continue
        kept = [one for one in term.get("matchExpressions") or () if one not in (mine, old)]
        term["matchExpressions"] = [*kept, mine]
    return affinity


def _on(nodes: Sequence[str]) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "In", "values": sorted(nodes)}
