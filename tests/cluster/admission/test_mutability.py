from __future__ import annotations

import pytest

from tests.cluster.admission.builders import container
from tests.cluster.admission.mutability import forbidden, forbidden_template
from tests.cluster.admission.mutability_rows import AFFINITIES, FIRST, MORE, ROWS, affinity, base, changed

GATES = ("a.io/a", "b.io/b")


@pytest.mark.parametrize("row", ROWS)
def test_the_table_of_what_may_change_when(row):
    path, value, said, _ = ROWS[row]
    for phase, legal in zip(("gated", "pending", "bound"), said, strict=True):
        before = base(*(GATES if phase == "gated" else ()))
        after = changed(before, *path, to=value)
        assert (forbidden(before, after, phase=phase) == ()) == (legal == "y"), phase


@pytest.mark.parametrize("left", [GATES[1:], ()])
def test_gates_are_removed_one_by_one_or_all_and_affinity_is_narrowed_with_them(left):
    after = base(*left, affinity=affinity([{"key": "a", "operator": "Exists"}]))
    assert forbidden(base(*GATES), after, phase="gated") == ()


def test_everything_may_change_on_create_but_a_pod_with_a_node_cannot_be_gated():
    after = changed(base(), "spec", "containers", to=[container("other", env={"B": "2"})])
    assert forbidden(base(), after, phase="create") == ()
    assert forbidden(base(), changed(base(*GATES), "spec", "nodeName", to="n1"), phase="create") != ()
    assert forbidden(base(), changed(base(), "metadata", "name", to="other"), phase="create") != ()


@pytest.mark.parametrize(("before", "after", "is_legal"), AFFINITIES)
def test_required_node_affinity_is_only_narrowed(before, after, is_legal):
    found = forbidden(base(*GATES, affinity=before), base(*GATES, affinity=after), phase="gated")
    assert (found == ()) == is_legal


def test_preferences_may_change_while_gated():
    before, after = (base(*GATES, affinity=affinity([], preferred=[one])) for one in (1, 2))
    assert forbidden(before, after, phase="gated") == ()
    assert forbidden(before, after, phase="pending") != ()


def test_a_fault_says_where():
    (fault,) = forbidden(base(), changed(base(), *FIRST, "env", to=[{"name": "A", "value": "2"}]), phase="bound")
    assert str(fault) == "pod: spec.containers.0.env.0.value: cannot change any more"


@pytest.mark.parametrize("row", ROWS)
def test_a_suspended_jobs_template_may_be_sent_elsewhere_but_not_made_anew(row):
    path, value, _, is_legal = ROWS[row]
    found = forbidden_template(base(), changed(base(), *path, to=value), server_minor=36)
    assert (found == ()) == is_legal


def test_resources_of_a_suspended_jobs_template_may_change_since_1_36():
    after = changed(base(), *FIRST, "resources", to=MORE)
    assert forbidden_template(base(), after, server_minor=35) != ()
    assert forbidden_template(base(), after, server_minor=36) == ()
