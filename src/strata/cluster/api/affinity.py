"""Node affinity: what a pod's own spec asks, and how it is narrowed, which the API server allows."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.cluster.scheduling.claim import Where

HOSTNAME: Final = "kubernetes.io/hostname"
NAME: Final = "metadata.name"

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
    part, requirement = _on(nodes)
    terms: list[dict[str, Any]] = required.get("nodeSelectorTerms") or [{part: [requirement]}]
    required["nodeSelectorTerms"] = terms
    for term in terms:
        if term.get("matchExpressions") or term.get("matchFields"):
            kept = _without(term, nodes, instead_of)
            term.clear()
            term |= {**kept, part: [*(kept.get(part) or ()), requirement]}
    return affinity


def keeping_off(spec: Mapping[str, Any], keys: Sequence[str], *, prefix: str) -> dict[str, Any]:
    """Return a pod spec's affinity, off nodes with these labels and, of those that begin so, no others.

    Empty where nothing is left. Terms are alternatives, so each is narrowed but empty ones, which match nothing.
    """
    affinity: dict[str, Any] = copy.deepcopy(dict(spec.get("affinity") or {}))
    node: dict[str, Any] = affinity.pop("nodeAffinity", None) or {}
    required: dict[str, Any] = node.pop(_REQUIRED, None) or {}
    ours = [{"key": key, "operator": "DoesNotExist"} for key in keys]
    terms: list[dict[str, Any]] = []
    for term in required.get("nodeSelectorTerms") or [{}]:
        expressions = term.get("matchExpressions") or []
        others = [expression for expression in expressions if not _begins(expression, prefix)]
        is_empty = "nodeSelectorTerms" in required and not (expressions or term.get("matchFields"))
        after = {**term, "matchExpressions": others if is_empty else [*others, *ours]}
        terms.append({key: value for key, value in after.items() if value})
    if any(terms):
        node[_REQUIRED] = {"nodeSelectorTerms": terms}
    return {**affinity, "nodeAffinity": node} if node else affinity


def kept_off(spec: Mapping[str, Any], prefix: str) -> list[str]:
    """Return the labels that begin so and that a pod spec's nodes must not have."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return [
        expression["key"]
        for term in required.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
        if _begins(expression, prefix)
    ]


def without_kept_off(spec: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a pod spec as it was before `keeping_off`."""
    return {**spec, "affinity": keeping_off(spec, (), prefix=prefix)}


def _begins(expression: Mapping[str, Any], prefix: str) -> bool:
    return str(expression.get("key")).startswith(prefix) and expression.get("operator") == "DoesNotExist"


def where_of(spec: Mapping[str, Any], *, placed_on: Sequence[str] = ()) -> Where:
    """Return where a pod spec lets its pods go, without what `on_nodes` narrowed it to."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    terms: list[Mapping[str, Any]] = []
    for term in required.get("nodeSelectorTerms") or ():
        kept = _without(term, placed_on)
        if kept != term and not (kept.get("matchExpressions") or kept.get("matchFields")):
            terms = []  # nothing but ours: nothing was asked for
            break
        terms.append(kept)
    return Where(dict(spec.get("nodeSelector") or {}), tuple(terms), tuple(spec.get("tolerations") or ()))


def _on(nodes: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return what narrows a term to some nodes, and the part of it where that stands.

    Of a pod that names its one node kube-scheduler looks at that node alone; a label it would look for on all.
    A field may have no second value.
    """
    if len(nodes) == 1:
        return "matchFields", {"key": NAME, "operator": "In", "values": list(nodes)}
    return "matchExpressions", _labelled(nodes)


def _labelled(nodes: Sequence[str]) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "In", "values": sorted(nodes)}


def _without(term: Mapping[str, Any], *placed_on: Sequence[str]) -> dict[str, Any]:
    """Return a term without what narrowed it to one of some lists of nodes, by label too: so older parts of ours
    wrote a single node."""
    ours = [requirement for nodes in placed_on for requirement in (_on(nodes)[1], _labelled(nodes))]
    after = dict(term)
    for part in ("matchExpressions", "matchFields"):
        kept = [each for each in term.get(part) or () if each not in ours]
        if kept != (term.get(part) or []):
            after[part] = kept
            if not kept:
                del after[part]
    return after
