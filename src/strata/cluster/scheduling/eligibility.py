"""Which nodes a pod may go to, whatever room they have: open, with the labels it asks for, no taint against it.

References
----------
core/v1 NodeSelectorTerm: its expressions must all hold, one that has none matches nothing; operators as of
k8s.io/component-helpers/scheduling/corev1/nodeaffinity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from strata.arrays import Bools, Ints
from strata.cluster.scheduling.claim import Claim, Where
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import NodeState

_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")


def open_rows(index: Index, rows: Ints, profile: RuntimeProfile, claim: Claim) -> Bools:
    """Return which rows a claim's pods may go to: schedulable, taints tolerated, labels as asked."""
    tolerations = (*profile.tolerations, *claim.where.tolerations)
    tolerated = np.array([untolerated(taints, tolerations) == "" for taints in index.taint_sets] or [True])
    is_open: Bools = index.is_open[rows] & tolerated[index.taint_set[rows]]
    if profile.node_selector or claim.where.selector or claim.where.terms:
        nodes = (index.nodes[index.rows[row].node] for row in rows)
        is_open &= np.array([unlabelled(node, profile, claim) == "" for node in nodes], dtype=bool)
    return is_open


def unlabelled(node: NodeState, profile: RuntimeProfile, claim: Claim) -> str:
    """Return the first label a node lacks that the profile or the pod's own spec asks for; empty for none."""
    for key, value in profile.node_selector.items():
        if node.labels.get(key) != value:
            return f"{key}={value}"
    return unmet(claim.where, node.name, node.labels)


def untolerated(taints: Sequence[str], tolerations: Sequence[Mapping[str, str]]) -> str:
    """Return the first taint (`key=value:effect`) that keeps pods away; empty where there is none."""
    for taint in taints:
        pair, _, effect = taint.rpartition(":")
        key, _, value = pair.partition("=")
        if effect == "PreferNoSchedule":
            continue
        for toleration in tolerations:
            if (toleration.get("effect") or effect) != effect or (toleration.get("key") or key) != key:
                continue
            if toleration.get("operator", "Equal") == "Exists" or (toleration.get("value") or "") == value:
                break
        else:
            return taint
    return ""


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
