from __future__ import annotations

import pytest

from strata.cli.given_table import show_given


@pytest.mark.parametrize(("bound_ratio", "is_outside"), [(1.0, False), (0.95, True), (None, False)])
def test_a_plan_faster_than_the_bound_is_said_to_be_outside_what_was_searched(bound_ratio, is_outside):
    given = {
        "source": "mine.yaml", "name": "dp", "faults": [], "notes": [], "ratio": 0.95, "bound_ratio": bound_ratio,
        "plan": {"reasons": []},
    }  # fmt: skip
    assert ("the bound" in " ".join(map(str, show_given(given)))) is is_outside
