"""Plan files of plans made by hand, written as `strata plan train` writes its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.decision import Decision
from strata.files import write_json
from strata.fleet.fleet import Fleet
from strata.training.plan import explain
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated, SearchResult
from strata.training.plan.objective import Scales
from strata.training.plan.planned import PlanRequest
from strata.training.plan.report import TrainingPlanReport
from strata.training.plan.request import inputs_digest
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan


def plan_data(
    fleet: Fleet, job: TrainingJob, *plans: TrainingPlan, inputs: Mapping[str, str] | None = None
) -> dict[str, Any]:
    problem = Problem.of(fleet, job)
    items = [
        Evaluated(plan, report, report.step_time_s)
        for plan, report in zip(plans, problem.model.reports(plans), strict=True)
    ]
    search = SearchResult({item.domain_set: item for item in items}, bound=items[0].score, branches=1, evaluated=1)
    whole, digests = inputs_digest(fleet, job)
    decision = Decision(
        plans[0], (), (explain.chosen(problem, items[0], search),), items[0].report.trust,
        whole, 0, 0.0,
    )  # fmt: skip
    report = TrainingPlanReport(problem, digests, decision, tuple(items), search, Scales())
    return report.to_dict(PlanRequest(), inputs or {})


def save_plan(path: str | Path, *arguments: Any, **options: Any) -> None:
    write_json(path, plan_data(*arguments, **options))
