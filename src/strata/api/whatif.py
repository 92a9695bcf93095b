"""Planning as things are and as they would be; the two decisions side by side."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from strata.api.inputs import FleetLike, JobLike, fleet_of, job_of, names_of
from strata.errors import OutOfTime, UsageError
from strata.files import read_document
from strata.fleet.changes import ValueChange, apply_settings
from strata.fleet.comparison import Comparison
from strata.progress import Progress, silent
from strata.serving.planning.allocate import Strategy
from strata.serving.planning.goal import Goal
from strata.serving.planning.planfile import read_serving_plan
from strata.serving.planning.planner import plan_serving
from strata.serving.planning.whatif import JOB_KEYS as SERVING_KEYS
from strata.serving.planning.whatif import compare as compare_serving
from strata.training.plan.comparison import compare
from strata.training.plan.exact.usable import check_names
from strata.training.plan.planner import plan_training
from strata.training.plan.report import TrainingPlanReport, plan_dict
from strata.training.plan.whatif import JOB_KEYS
from strata.units import show_time
from strata.workload.job import TrainingJob
from strata.workload.serving_schema import BUNDLED_SERVING_JOBS, load_serving_job


def whatif(
    fleet: FleetLike, job: JobLike, *settings: str, time_limit_s: float = 30.0, progress: Progress = silent
) -> dict[str, Any]:
    """Plan a training or serving job as it is and with settings changed: what `strata whatif -o json` prints.

    settings: `link.A-B.bandwidth=1Gbps`, `domain.West=none`, `job.minimize=cost` ...; `strata whatif --help` lists
    them. Raises BadFile, UsageError for a setting that is none, OutOfTime where a side found no plan in time.
    """
    if not isinstance(job, TrainingJob) and is_serving(job):
        return _serving(fleet, str(job), settings, time_limit_s, progress)
    return _training(fleet, job, settings, time_limit_s, progress)


def is_serving(job: str | Path) -> bool:
    """Whether a job is one to be served, or a saved plan of one: what its file says, or where it is bundled."""
    if Path(job).is_file():
        data = read_document(job).data
        return isinstance(data, dict) and data.get("kind") in ("ServingJob", "ServingPlan")
    return (BUNDLED_SERVING_JOBS / f"{job}.yaml").is_file()


def _serving(
    fleet: FleetLike, job: str, settings: Sequence[str], limit_s: float, progress: Progress
) -> dict[str, Any]:
    goal, strategy, job = _planned_with(job)
    before = fleet_of(fleet), load_serving_job(job)
    new_fleet, new_job, changes = apply_settings(*before, settings, keys=SERVING_KEYS)
    answers = []
    for label, (hardware, work) in (("as it is", before), ("what if", (new_fleet, new_job))):
        with progress(label):
            answers.append(
                plan_serving(
                    hardware,
                    work,
                    clock=time.perf_counter,
                    strategy=strategy or work.strategy,
                    goal=goal,
                    time_limit_s=limit_s,
                )
            )
    comparison = compare_serving(*answers)
    inputs = names_of(fleet=fleet, job=job)
    old, new = (
        _serving_side(answer.to_dict(work, inputs=inputs), is_good_enough=answer.is_good_enough)
        for answer, work in zip(answers, (before[1], new_job), strict=True)
    )
    return _difference(changes, old, new, comparison)


def _planned_with(job: str) -> tuple[Goal, Strategy | None, str]:
    """Return goal, strategy and job of a saved plan; of a job itself the usual goal and no strategy."""
    if not Path(job).is_file() or read_document(job).data.get("kind") != "ServingPlan":
        return Goal.BOTH, None, job
    plan = read_serving_plan(job)
    if "job" not in plan.inputs:
        raise UsageError(f"{job} does not say which job it was made for", hint="strata whatif FLEET JOB --set ...")
    return plan.goal, plan.strategy, plan.inputs["job"]


def _serving_side(answer: dict[str, Any], *, is_good_enough: bool) -> dict[str, Any]:
    """Return one side: its plan with its figures (None where none fits), and the reasons of its decision.

    is_good_enough: whether it keeps the job's goals and rate.
    """
    kept = ("strategy", "goal", "pipelines", "figures")
    return {
        "plan": {key: answer[key] for key in kept} if answer["pipelines"] else None,
        "is_good_enough": is_good_enough,
        **{key: answer[key] for key in ("reasons", "trust", "inputs_digest", "search_s")},
    }


def _training(
    fleet: FleetLike, job: JobLike, settings: Sequence[str], limit_s: float, progress: Progress
) -> dict[str, Any]:
    before = fleet_of(fleet), job_of(job)
    new_fleet, new_job, changes = apply_settings(*before, settings, keys=JOB_KEYS)
    answers = []
    for label, (hardware, work) in (("as it is", before), ("what if", (new_fleet, new_job))):
        check_names(before[0], work)  # a domain that is taken away is still the one that the job means
        with progress(label):
            answer = plan_training(hardware, work, clock=time.perf_counter, time_limit_s=limit_s)
        if answer.search.interrupted:
            raise KeyboardInterrupt  # one plan and half of another compare to nothing
        if answer.best is None and answer.search.stopped:
            raise OutOfTime(f"no plan within {show_time(limit_s)} ({label})", hint="a longer --time-limit")
        answers.append(answer)
    old, new = answers
    return _difference(changes, _side(old), _side(new), compare(old, new))


def _difference(
    changes: Sequence[ValueChange], old: dict[str, Any], new: dict[str, Any], comparison: Comparison
) -> dict[str, Any]:
    return {
        "changes": [asdict(change) for change in changes],
        "old": old,
        "new": new,
        "difference": comparison.to_dict(),
        "text": comparison.text,
    }


def _side(answer: TrainingPlanReport) -> dict[str, Any]:
    """Return one side: its plan (None where none fits), and the reasons of its decision."""
    best, chosen = answer.best, answer.decision.reasons[:1]
    return {
        "plan": None if best is None else plan_dict(answer.problem, best, 1, chosen),
        "reasons": [reason.to_dict() for reason in answer.decision.reasons],
        "trust": str(answer.decision.trust),
        "inputs_digest": answer.decision.inputs_digest,
        "search_s": answer.decision.elapsed_s,
    }
