"""Plans of training jobs and of serving jobs, as their planners answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from strata.api.inputs import FleetLike, JobLike, ServingJobLike, fleet_of, job_of, names_of, serving_job_of
from strata.errors import OutOfTime
from strata.files import write_json
from strata.pictures.page import fragment
from strata.progress import Progress, silent
from strata.serving.planning.allocate import Strategy
from strata.serving.planning.goal import Goal
from strata.serving.planning.planner import ServingAnswer, plan_serving
from strata.training.plan.compare import plan_request
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.planned import PlanRequest
from strata.training.plan.report import TrainingPlanReport
from strata.units import show_time
from strata.workload.serving_job import ServingJob


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    """The planner's answer to a training job: `strata plan train`'s, with its request and where its inputs lay."""

    report: TrainingPlanReport
    request: PlanRequest
    inputs: Mapping[str, str]

    @property
    def best(self) -> Evaluated | None:
        """The chosen plan with its figures; None where none fits, and `report.decision.reasons` say why."""
        return self.report.best

    def to_dict(self) -> dict[str, Any]:
        """Return what `strata plan train -o json` prints."""
        return self.report.to_dict(self.request, self.inputs)

    def save(self, path: str | Path) -> None:
        """Write the plan file, which every command takes that reads plans."""
        write_json(path, self.to_dict())

    def _repr_html_(self) -> str:
        return fragment(self.to_dict())


@dataclass(frozen=True, slots=True)
class PlannedServing:
    """The planner's answer to a serving job: `strata plan serve`'s, with its job and where its inputs lay."""

    answer: ServingAnswer
    job: ServingJob
    inputs: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return what `strata plan serve -o json` prints."""
        return self.answer.to_dict(self.job, inputs=self.inputs)

    def save(self, path: str | Path) -> None:
        """Write the plan file, which every command takes that reads plans."""
        write_json(path, self.to_dict())

    def _repr_html_(self) -> str:
        return fragment(self.to_dict())


def plan(
    fleet: FleetLike,
    job: JobLike,
    *,
    minimize: Literal["time", "cost", "reward", "reward-egress", "tchebycheff"] | None = None,
    weights: tuple[float, float, float] | None = None,
    planner: Literal["exact", "hi-ppo"] = "exact",
    given: str | Path | None = None,
    baselines: bool = True,
    pareto: bool = False,
    time_limit_s: float = 30.0,
    top: int = 5,
    seed: int = 0,
    progress: Progress = silent,
) -> PlannedTraining:
    """Plan a training job: what `strata plan train` does, with its options.

    weights: of time, utilisation and money, for `reward` and `tchebycheff`; on their own, for `reward`. given: a
    plan file or a layout to check and set beside the best. Raises BadFile for files with faults, UsageError where
    options contradict each other, OutOfTime where the limit passed before there was a plan. That nothing fits is
    an answer, with its reasons.
    """
    request = PlanRequest.model_validate({
        "planner": planner, "minimize": minimize, "weights": weights, "time_limit_s": time_limit_s, "top": top,
        "seed": seed, "baselines": baselines, "pareto": pareto, "given": None if given is None else str(given),
    })  # fmt: skip
    report = plan_request(fleet_of(fleet), job_of(job), request, clock=time.perf_counter, progress=progress)
    if report.out_of_time:
        raise OutOfTime(f"no plan within {show_time(time_limit_s)}", hint="a longer time_limit_s")
    return PlannedTraining(report, request, names_of(fleet=fleet, job=job))


def pareto(fleet: FleetLike, job: JobLike, *, time_limit_s: float = 30.0) -> tuple[Evaluated, ...]:
    """Return the exact front of step time, utilisation and money; for jobs that may use up to eight domains.

    Raises as `plan` does, and UsageError for more domains.
    """
    report = plan(fleet, job, pareto=True, baselines=False, time_limit_s=time_limit_s).report
    return report.front or ()


def serve_plan(
    fleet: FleetLike,
    job: ServingJobLike,
    *,
    strategy: Strategy | None = None,
    goal: Goal | str = Goal.BOTH,
    time_limit_s: float = 30.0,
) -> PlannedServing:
    """Plan a serving job: what `strata plan serve` does. strategy: the job's own where None.

    Raises BadFile for files with faults. That nothing fits is an answer, with its reasons.
    """
    work = serving_job_of(job)
    answer = plan_serving(
        fleet_of(fleet), work, clock=time.perf_counter, strategy=strategy or work.strategy, goal=Goal(goal),
        time_limit_s=time_limit_s,
    )  # fmt: skip
    return PlannedServing(answer, work, names_of(fleet=fleet, job=job))
