"""A plan as Chakra traces, one a rank, with the files ASTRA-sim wants beside them: for a binary elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from strata.errors import UsageError
from strata.fleet.schema import load_dynamics, load_fleet
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import NAMES, Backend
from strata.simulate.astra.files import encode_traces, options, scenario_files
from strata.simulate.astra.lower import Aggregation, lower
from strata.simulate.astra.validate import check_scenario
from strata.training.plan.planfile import SavedPlan
from strata.workload.schema import load_job


@dataclass(frozen=True, slots=True)
class ChakraFiles:
    """Traces and text by file name. labels: what each rank is, "" where it only fills the grid of ranks."""

    traces: Mapping[str, bytes]
    files: Mapping[str, str]
    labels: tuple[str, ...]
    notes: tuple[str, ...]


def render(saved: SavedPlan, *, aggregation: Aggregation | None = None) -> ChakraFiles:
    """Return the files of a plan. Its fleet and job files must still be where they were.

    Raises Refused where ASTRA-sim would answer wrongly, UsageError where the plan does not name its files or they
    no longer hold what it was made for.
    """
    low = lower(step_model(saved), saved.plan, aggregation=aggregation)
    check_scenario(low.scenario, is_aware=low.backend is Backend.AWARE)
    command = " ".join([NAMES[low.backend], *options(has_groups=bool(low.scenario.groups))])
    files = {
        **scenario_files(low.scenario),
        "ranks.json": json.dumps({"backend": low.backend, "command": command, "ranks": low.labels}, indent=1)
        + "\n",
    }
    notes = [*low.notes, f"in this folder: {command}"]
    if load_dynamics(saved.inputs["fleet"]) is not None:
        notes.append("links vary in the fleet file; network.yml has them as they are without that")
    return ChakraFiles(encode_traces(low.scenario.traces), files, low.labels, tuple(notes))


def step_model(saved: SavedPlan) -> StepModel:
    """Return the cost model of what a plan was made for, read again from the files it names."""
    if not {"fleet", "job"} <= saved.inputs.keys():
        raise UsageError(
            f"{saved.name}: the plan file does not name its fleet and job files, and traces need their links",
            hint="strata plan train FLEET JOB --save plan.json",
        )
    fleet, job = load_fleet(saved.inputs["fleet"]), load_job(saved.inputs["job"])
    absent = [name for name in saved.plan.domains if name not in {domain.name for domain in fleet.domains}]
    if absent or len(job.layers) != saved.job.num_layers:
        what = f"no domain {absent[0]!r}" if absent else f"{len(job.layers)} layers, not {saved.job.num_layers}"
        raise UsageError(
            f"{saved.name}: {saved.inputs['fleet']} and {saved.inputs['job']} have changed: {what}",
            hint="strata plan train FLEET JOB --save plan.json",
        )
    return StepModel(fleet, job)
