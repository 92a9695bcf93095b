"""What `strata simulate` reads: plans, and the fleet and jobs they were made for."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from strata.cli.planning import read_plan_of
from strata.errors import UsageError

if TYPE_CHECKING:
    from strata.simulate.analytic import StepModel
    from strata.training.plan.planfile import SavedPlan
    from strata.workload.plan import TrainingPlan


@dataclass(frozen=True)
class LoadedPlan:
    """A plan with what it was made for; `fleet` is the file (or the bundled fleet's name).

    notes: how fleet and job differ from what the plan was made for.
    """

    name: str
    plan: TrainingPlan
    model: StepModel
    fleet: str
    notes: tuple[str, ...] = ()


def load(paths: tuple[Path, ...]) -> list[LoadedPlan]:
    """Read plan files. Raises UsageError where the fleet or job is gone or no longer that of the plan."""
    from strata.simulate.analytic import StepModel
    from strata.training.plan.planfile import reload_inputs

    loaded: list[LoadedPlan] = []
    for path in paths:
        saved: SavedPlan = read_plan_of(
            "TrainingPlan", path, purpose="this command simulates", hint="strata serve simulate FLEET JOB"
        )
        inputs = reload_inputs(saved.file)
        source = saved.inputs["fleet"]
        if loaded and inputs.fleet != loaded[0].model.fleet:
            raise UsageError(
                f"{path} is for another fleet ({inputs.fleet.name}) than {paths[0]}", hint="one fleet a run"
            )
        model = StepModel(inputs.fleet, inputs.job)
        if fault := _misfit(saved.plan, model):
            again = f"strata plan train {source} {saved.inputs['job']} --save {path}"
            raise UsageError(f"{path} no longer fits {source}: {fault}", hint=again)
        known = [job.name for job in loaded]
        name = saved.name.replace("/", "-")  # a lane is named JOB/stage
        unique = next(n for n in (name, *(f"{name} {k}" for k in range(2, len(paths) + 2))) if n not in known)
        loaded.append(LoadedPlan(unique, saved.plan, model, source, inputs.changes))
    return loaded


def _misfit(plan: TrainingPlan, model: StepModel) -> str:
    """Return why a plan cannot run on the fleet and job as they are now, or ""."""
    from itertools import pairwise

    names = {domain.name for domain in model.fleet.domains}
    for pipeline in plan.pipelines:
        for stage in pipeline.stages:
            if stage.domain not in names:
                return f"there is no domain {stage.domain}"
            domain = model.fleet.domain(stage.domain)
            if model.layers(domain, stage.tensor_parallel, plan.microbatch_size, plan.recompute) is None:
                return f"the speed of {domain.accelerator.name} is not known"
        end = pipeline.stages[-1].first_layer + pipeline.stages[-1].num_layers
        if end != len(model.job.layers):
            return f"it has {end} layers where the model has {len(model.job.layers)}"
        for here, there in pairwise(pipeline.domains):
            for pair in ((here, there), (there, here)):
                if pair not in model.fleet.links:
                    return f"there is no link from {pair[0]} to {pair[1]}"
    if not isfinite(model.reports([plan])[0].step_time_s):
        return "its pipelines have no links to sum their gradients over"
    return ""


def crowded(jobs: list[LoadedPlan]) -> list[str]:
    """Return a sentence a domain whose devices the jobs would have to share, which is not simulated."""
    notes = [f"{note}; the plan was made before" for job in jobs for note in job.notes]
    for domain in jobs[0].model.fleet.domains:
        used = sum(job.plan.devices().get(domain.name, 0) for job in jobs)
        if used > domain.num_devices:
            notes.append(f"the jobs use {used} devices of {domain.name}, which has {domain.num_devices}: "
                         "only links are shared here")  # fmt: skip
    return notes
