"""Node affinity: what a pod's own spec asks, and how it is narrowed, which the API server allows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.cluster.scheduling.claim import Where

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
    requirement, old = _on(nodes), _on(instead_of)
    terms: list[dict[str, Any]] = required.get("nodeSelectorTerms") or [{"matchExpressions": [requirement]}]
    required["nodeSelectorTerms"] = terms
    for term in terms:
        if not (term.get("matchExpressions") or term.get("matchFields")):
            continue
        kept = [
            expression for expression in term.get("matchExpressions") or () if expression not in (requirement, old)
        ]
        term["matchExpressions"] = [*kept, requirement]
    return affinity


def where_of(spec: Mapping[str, Any], *, placed_on: Sequence[str] = ()) -> Where:
    """Return where a pod spec lets its pods go, without what `on_nodes` narrowed it to."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    ours = _on(placed_on)
    terms: list[Mapping[str, Any]] = []
    for term in required.get("nodeSelectorTerms") or ():
        expressions = term.get("matchExpressions") or []
        kept = [expression for expression in expressions if expression != ours]
        if expressions and not kept and not term.get("matchFields"):
            terms = []  # nothing but ours: nothing was asked for
            break
        terms.append({**term, "matchExpressions": kept})
    return Where(dict(spec.get("nodeSelector") or {}), tuple(terms), tuple(spec.get("tolerations") or ()))


def _on(nodes: Sequence[str]) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "In", "values": sorted(nodes)}
