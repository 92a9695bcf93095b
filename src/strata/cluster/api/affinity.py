"""Node affinity: what a pod's own spec asks, and how it is narrowed, which is all the API server lets be changed.

References
----------
core/v1 NodeSelectorTerm: its expressions must all hold, one that has none matches nothing; operators as of
k8s.io/component-helpers/scheduling/corev1/nodeaffinity.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from strata.cluster.scheduling.claim import Where

HOSTNAME: Final = "kubernetes.io/hostname"

_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
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


def unmet(where: Where, name: str, labels: Mapping[str, str]) -> str:
    """Return what of `where`'s labels a node does not have, empty where it may be gone to; taints are apart."""
    for key, value in where.selector.items():
        if labels.get(key) != value:
            return f"{key}={value}"
    if not where.terms or any(_holds(term, name, labels) for term in where.terms):
        return ""
    first = next(iter(where.terms[0].get("matchExpressions") or ()), {"key": "metadata.name", "operator": "In"})
    values = ",".join(map(str, first.get("values") or ()))
    return f"{first.get('key')} {first.get('operator')} {values}".strip()[:200]


def _holds(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_is_met(expression, labels) for expression in expressions) and all(
        _is_met(field, {"metadata.name": name}) for field in fields
    )


def _is_met(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    label, operator = labels.get(str(expression.get("key"))), expression.get("operator")
    values: list[str] = [str(value) for value in expression.get("values") or ()]
    if operator in ("Exists", "DoesNotExist"):
        return (label is not None) is (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (label in values) is (operator == "In")
    if label is None or not _WHOLE.fullmatch(label) or len(values) != 1 or not _WHOLE.fullmatch(values[0]):
        return False
    return int(label) > int(values[0]) if operator == "Gt" else int(label) < int(values[0])


def _on(nodes: Sequence[str]) -> dict[str, Any]:
    return {"key": HOSTNAME, "operator": "In", "values": sorted(nodes)}
