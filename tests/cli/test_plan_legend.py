from __future__ import annotations

from rich.console import Console

from strata.cli.plan_legend import SCHEDULES, show_legend
from strata.cli.plan_table import show_plans
from strata.training.plan.compare import plan_request
from strata.training.plan.planned import PlanRequest
from strata.workload.job import Schedule
from tests.support.builders import domain, fleet, job, layers

LAYOUT = {"expert_parallel": 1, "pipelines": [{"stages": [{"context_parallel": 1}, {"context_parallel": 1}]}]}
PLAN = {"schedule": "1f1b", "recompute": "none", "local_steps": 1, "gradient_compression": 1.0, "plan": LAYOUT}
SPLIT = {"expert_parallel": 8, "pipelines": [{"stages": [{"context_parallel": 1}, {"context_parallel": 2}]}]}


def test_every_schedule_has_words():
    assert SCHEDULES.keys() == {str(schedule) for schedule in Schedule}


def test_only_what_stands_in_the_table_is_explained():
    plain, full = "\n".join(show_legend([PLAN])), PLAN | {
        "schedule": "1f1b-la", "recompute": "full", "local_steps": 8, "gradient_compression": 4.0, "plan": SPLIT
    }  # fmt: skip
    for word in ("pp:", "dp:", "tp:", "mb:", "1f1b:", "util:", "MFU:", "trust:"):
        assert word in plain
    for word in ("recompute:", "1f1b-la:", "H:", "grad/:", "cp:", "ep:"):
        assert word not in plain
        assert word in "\n".join(show_legend([full]))


def test_no_line_of_the_legend_is_wider_than_80_columns():
    every = [
        PLAN | {"schedule": schedule, "recompute": "full", "local_steps": 8, "plan": SPLIT}
        for schedule in SCHEDULES
    ]
    assert max(len(line) for line in show_legend(every)) <= 80


def test_the_cheapest_plan_nearly_as_fast_is_marked_in_the_table():
    place = fleet(domain("cheap", 16, price=1.0), domain("dear", 2, price=40.0), gbps=400, ms=1)
    request = PlanRequest(baselines=False, top=1)
    answer = plan_request(place, job(layers(30), batch=64), request, clock=lambda: 0.0)
    with (console := Console(width=80)).capture() as captured:
        for item in show_plans(answer.to_dict(request, {"fleet": "f", "job": "j"})):
            console.print(item)
    lines = captured.get().splitlines()
    assert [line.split()[:2] for line in lines if line.startswith(("✔", "$"))] == [["✔", "1"], ["$", "single"]]
    assert any("$: cheapest plan within 10 % of the best time (" in line for line in lines)
    assert max(map(len, lines)) <= 80
