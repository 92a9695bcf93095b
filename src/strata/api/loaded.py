"""Plans read back, with the fleet and the jobs that they were made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.errors import BadFile, UsageError

if TYPE_CHECKING:
    from strata.decision import Reason
    from strata.simulate.analytic import StepModel
    from strata.training.plan.planfile import SavedPlan
    from strata.workload.plan import TrainingPlan


@dataclass(frozen=True)
class LoadedPlan:
    """A plan with what it was made for. fleet: its file, or the bundled fleet's name; source: the plan's own.

    changes: how fleet and job differ from what the plan was made for. faults: why it could not run as it is.
    """

    name: str
    plan: TrainingPlan
    model: StepModel
    fleet: str
    source: str
    changes: tuple[str, ...] = ()
    faults: tuple[Reason, ...] = ()


def load(paths: Sequence[Path]) -> list[LoadedPlan]:
    """Read plan files. Raises UsageError where the fleet or job is gone or no longer that of the plan."""
    return together([_loaded(path) for path in paths])


def together(jobs: Sequence[LoadedPlan]) -> list[LoadedPlan]:
    """Return plans of one fleet, each with a name of its own. Raises UsageError where they are of several."""
    named: dict[str, LoadedPlan] = {}
    for job in jobs:
        if job.model.fleet != jobs[0].model.fleet:
            raise UsageError(
                f"{job.source} is for another fleet ({job.model.fleet.name}) than {jobs[0].source}",
                hint="one fleet a run",
            )
        name = job.name.replace("/", "-")  # a lane is named JOB/stage
        unique = next(n for n in (name, *(f"{name} {k}" for k in range(2, len(jobs) + 2))) if n not in named)
        named[unique] = replace(job, name=unique)
    return list(named.values())


def _loaded(path: Path) -> LoadedPlan:
    return of_plan(
        read_plan_of(
            ("TrainingPlan",), path, purpose="this command simulates", hint="strata serve simulate FLEET JOB"
        )
    )


def of_plan(saved: SavedPlan) -> LoadedPlan:
    """Return a plan that was read, with what it was made for. Raises as `load` does."""
    from strata.simulate.analytic import StepModel
    from strata.training.plan.given import other_model
    from strata.training.plan.legality import misfits, shortfalls
    from strata.training.plan.planfile import reload_inputs

    inputs = reload_inputs(saved.file)
    fleet = saved.inputs["fleet"]
    model = StepModel(inputs.fleet, inputs.job)
    again = f"strata plan train {fleet} {saved.inputs['job']} --save {saved.file.source}"
    source = saved.file.source
    if wrong := other_model(saved.job, inputs.job):
        raise UsageError(f"{source}: {wrong}", hint=again)
    if wrong := "; ".join(map(str, misfits(model, saved.plan))):
        raise UsageError(f"{source} no longer fits {fleet}: {wrong}", hint=again)
    faults = tuple(reason for reason in shortfalls(model, saved.plan) if reason.token != "devices-short")
    return LoadedPlan(saved.name, saved.plan, model, fleet, source, inputs.changes, faults)


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


def read_plan_of(kinds: Sequence[str], path: Path, *, purpose: str, hint: str) -> Any:
    """Read a plan of one of some kinds. Raises UsageError where it is of another, BadFile where it is none."""
    from strata.files import read_document
    from strata.serving.planning.planfile import read_serving_plan
    from strata.training.plan.planfile import read_plan

    words = {"ServingPlan": "serving", "TrainingPlan": "training"}
    readers: dict[str, Callable[[Path], Any]] = {"ServingPlan": read_serving_plan, "TrainingPlan": read_plan}
    first = kinds[0]
    try:
        return readers[first](path)
    except BadFile:
        data = read_document(path).data
        other = str(data.get("kind")) if isinstance(data, dict) else first
        if other not in words or other == first:
            raise
        if other in kinds:
            return readers[other](path)
        raise UsageError(f"{path}: a {words[other]} plan, and {purpose} {words[first]} plans", hint=hint) from None
