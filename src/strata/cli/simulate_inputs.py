"""What `strata simulate` reads: plans, and the fleet and jobs they were made for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strata.cli.planning import read_plan_of
from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.decision import Reason
    from strata.simulate.analytic import StepModel
    from strata.training.plan.planfile import SavedPlan
    from strata.workload.plan import TrainingPlan


@dataclass(frozen=True)
class LoadedPlan:
    """A plan with what it was made for; `fleet` is the file (or the bundled fleet's name).

    changes: how fleet and job differ from what the plan was made for. faults: why it could not run as it is.
    """

    name: str
    plan: TrainingPlan
    model: StepModel
    fleet: str
    changes: tuple[str, ...] = ()
    faults: tuple[Reason, ...] = ()


def load(paths: tuple[Path, ...]) -> list[LoadedPlan]:
    """Read plan files. Raises UsageError where the fleet or job is gone or no longer that of the plan."""
    from strata.simulate.analytic import StepModel
    from strata.training.plan.given import other_model
    from strata.training.plan.legality import misfits, shortfalls
    from strata.training.plan.planfile import reload_inputs

    loaded: list[LoadedPlan] = []
    for path in paths:
        saved: SavedPlan = read_plan_of(
            ("TrainingPlan",), path, purpose="this command simulates", hint="strata serve simulate FLEET JOB"
        )
        inputs = reload_inputs(saved.file)
        source = saved.inputs["fleet"]
        if loaded and inputs.fleet != loaded[0].model.fleet:
            raise UsageError(
                f"{path} is for another fleet ({inputs.fleet.name}) than {paths[0]}", hint="one fleet a run"
            )
        model = StepModel(inputs.fleet, inputs.job)
        again = f"strata plan train {source} {saved.inputs['job']} --save {path}"
        if wrong := other_model(saved.job, inputs.job):
            raise UsageError(f"{path}: {wrong}", hint=again)
        if wrong := "; ".join(map(str, misfits(model, saved.plan))):
            raise UsageError(f"{path} no longer fits {source}: {wrong}", hint=again)
        known = [job.name for job in loaded]
        name = saved.name.replace("/", "-")  # a lane is named JOB/stage
        unique = next(n for n in (name, *(f"{name} {k}" for k in range(2, len(paths) + 2))) if n not in known)
        faults = tuple(reason for reason in shortfalls(model, saved.plan) if reason.token != "devices-short")
        loaded.append(LoadedPlan(unique, saved.plan, model, source, inputs.changes, faults))
    return loaded


def unfit(jobs: list[LoadedPlan]) -> list[str]:
    """Return what would keep plans from running as simulated, all that is alike in one sentence."""
    sentences = []
    for job in jobs:
        alike: dict[str, list[Reason]] = {}
        for reason in job.faults:
            alike.setdefault(reason.token, []).append(reason)
        for reasons in alike.values():
            more = f" (and {len(reasons) - 1} more like it)" if len(reasons) > 1 else ""
            sentences.append(f"{job.name} could not run: {reasons[0]}{more}")
    return sentences


def crowded(jobs: list[LoadedPlan]) -> list[str]:
    """Return a sentence a domain whose devices the jobs would have to share, which is not simulated."""
    notes = [f"{change}; the plan was made before" for job in jobs for change in job.changes]
    for domain in jobs[0].model.fleet.domains:
        used = sum(job.plan.devices().get(domain.name, 0) for job in jobs)
        if used > domain.num_devices:
            notes.append(f"the jobs use {used} devices of {domain.name}, which has {domain.num_devices}: "
                         "only links are shared here")  # fmt: skip
    return notes
