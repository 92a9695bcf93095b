"""Node affinity: read as the API server reads it, and only narrowed."""

from __future__ import annotations

from typing import Any

import pytest

from strata.cluster.api.affinity import on_nodes, where_of
from strata.cluster.scheduling.eligibility import unmet

LABELS = {"zone": "a", "disk": "ssd", "cores": "64", "kubernetes.io/hostname": "n1"}


def spec(*terms: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}, **more}


def one(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("terms", "is_met"),
    [
        ([[one("zone", "In", "a", "b")]], True),
        ([[one("zone", "In", "b")]], False),
        ([[one("zone", "In", "b")], [one("disk", "Exists")]], True),
        ([[one("zone", "In", "a"), one("disk", "In", "hdd")]], False),
        ([[one("zone", "NotIn", "a")]], False),
        ([[one("gpu", "NotIn", "a")]], True),
        ([[one("gpu", "DoesNotExist")]], True),
        ([[one("cores", "Gt", "32")]], True),
        ([[one("cores", "Lt", "32")]], False),
        ([[one("disk", "Gt", "32")]], False),
        ([[]], False),
        ([[], [one("zone", "In", "a")]], True),
    ],
)
def test_one_term_must_hold_in_all_its_expressions(terms: list[Any], is_met: bool) -> None:
    assert (unmet(where_of(spec(*terms)), "n1", LABELS) == "") is is_met


def test_a_term_may_name_the_node() -> None:
    required = {"nodeSelectorTerms": [{"matchFields": [one("metadata.name", "In", "n1")]}]}
    said = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
    assert unmet(where_of(said), "n1", {}) == ""
    assert unmet(where_of(said), "n2", {}) == "metadata.name In"


def test_what_a_node_lacks_is_named() -> None:
    assert unmet(where_of({"nodeSelector": {"zone": "b"}}), "n1", LABELS) == "zone=b"
    assert unmet(where_of(spec([one("zone", "In", "b", "c")])), "n1", LABELS) == "zone In b,c"


def test_a_spec_that_asks_for_nothing_may_go_anywhere() -> None:
    assert unmet(where_of({}), "n1", {}) == ""
    assert unmet(where_of({"affinity": {"nodeAffinity": None}}), "n1", {}) == ""


@pytest.mark.parametrize(
    "before", [{}, spec([one("zone", "In", "a")]), spec([one("zone", "In", "b")], [one("disk", "Exists")])]
)
def test_what_a_placement_narrowed_is_no_wish_of_the_pods(before: dict[str, Any]) -> None:
    narrowed = {**before, "affinity": on_nodes(before, ["n1", "n2"])}
    assert where_of(narrowed, placed_on=["n2", "n1"]) == where_of(before)
    again = {**before, "affinity": on_nodes(narrowed, ["n3"], instead_of=["n1", "n2"])}
    assert where_of(again, placed_on=["n3"]) == where_of(before)
    assert on_nodes(again, ["n3"], instead_of=["n1", "n2"]) == again["affinity"]


def test_one_node_is_named_so_that_kube_scheduler_looks_at_no_other() -> None:
    """Its NodeAffinity takes only `metadata.name` for the set of nodes a pod can go to (`PreFilterResult`)."""
    required = on_nodes({}, ["n1"])["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required == {"nodeSelectorTerms": [{"matchFields": [one("metadata.name", "In", "n1")]}]}


def test_a_node_that_an_older_part_of_ours_named_by_its_label_is_let_go() -> None:
    before = spec([one("zone", "In", "a"), one("kubernetes.io/hostname", "In", "n1")])
    after = {"affinity": on_nodes(before, ["n2"], instead_of=["n1"])}
    (term,) = where_of(after).terms
    assert term == {
        "matchExpressions": [one("zone", "In", "a")],
        "matchFields": [one("metadata.name", "In", "n2")],
    }
    assert where_of(before, placed_on=["n1"]) == where_of(spec([one("zone", "In", "a")]))
