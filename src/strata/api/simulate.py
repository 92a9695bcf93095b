"""The steps of plans, simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from strata.api.backends import by_analytic, by_events
from strata.api.loaded import LoadedPlan, load, together
from strata.api.plans import PlannedTraining
from strata.errors import Infeasible
from strata.simulate.events.work import AS_PLANNED, Conditions
from strata.simulate.report import StepReport
from strata.simulate.timeline import Timeline


def simulate(
    *plans: str | Path | PlannedTraining,
    backend: Literal["analytic", "events"] = "events",
    conditions: Conditions = AS_PLANNED,
    steps: int = 1,
    seed: int = 0,
) -> tuple[list[StepReport], Timeline]:
    """Run plans side by side on one fleet: a report a plan, and the timeline, which `strata.svg` draws.

    `analytic` computes each alone; `conditions` are of `events`, where links are shared. Raises BadFile and
    UsageError where plans are of other files or fleets than they say, Infeasible for an answer without a plan.
    """
    jobs = together([_of(plan) if isinstance(plan, PlannedTraining) else load([Path(plan)])[0] for plan in plans])
    if backend == "analytic":
        answer = by_analytic(jobs, has_timeline=True)
    else:
        answer = by_events(jobs, conditions, seed=seed, steps=steps)
    assert answer.timeline is not None
    return answer.reports, answer.timeline


def _of(planned: PlannedTraining) -> LoadedPlan:
    problem, best = planned.report.problem, planned.best
    if best is None:
        raise Infeasible(f"no plan of {problem.job.name} fits", hint="strata.explain(answer) says why")
    return LoadedPlan(
        problem.job.name, best.plan, problem.model, problem.fleet.name, f"the plan of {problem.job.name}"
    )
