from __future__ import annotations

from strata.cli.plan_legend import SCHEDULES, show_legend
from strata.workload.job import Schedule

PLAN = {"schedule": "1f1b", "recompute": "none", "local_steps": 1, "gradient_compression": 1.0}


def test_every_schedule_has_words():
    assert SCHEDULES.keys() == {str(schedule) for schedule in Schedule}


def test_only_what_stands_in_the_table_is_explained():
    plain, full = "\n".join(show_legend([PLAN])), PLAN | {
        "schedule": "1f1b-la", "recompute": "full", "local_steps": 8, "gradient_compression": 4.0
    }  # fmt: skip
    for word in ("pp:", "dp:", "tp:", "mb:", "1f1b:", "util:", "MFU:", "trust:"):
        assert word in plain
    for word in ("recompute:", "1f1b-la:", "H:", "grad/:"):
        assert word not in plain
        assert word in "\n".join(show_legend([full]))


def test_no_line_of_the_legend_is_wider_than_80_columns():
    every = [PLAN | {"schedule": schedule, "recompute": "full", "local_steps": 8} for schedule in SCHEDULES]
    assert max(len(line) for line in show_legend(every)) <= 80
