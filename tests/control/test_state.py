"""What the states say of themselves."""

from __future__ import annotations

from strata.control.state import PartPhase


def test_a_part_that_runs_or_may_run_is_not_over():
    assert {phase for phase in PartPhase if not phase.is_over} == {PartPhase.WAITING, PartPhase.RUNNING}
