"""A plan as Chakra traces, one a rank, with the files ASTRA-sim wants beside them: for a binary elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from strata.errors import UsageError
from strata.fleet.schema import load_dynamics
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import NAMES, AstraBackend
from strata.simulate.astra.files import encode_traces
from strata.simulate.astra.lower import Aggregation, lower
from strata.simulate.astra.validate import check_scenario
from strata.training.plan.planfile import SavedPlan, reload_inputs


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
    inputs = reload_inputs(saved.file)
    absent = [name for name in saved.plan.domains if name not in {domain.name for domain in inputs.fleet.domains}]
    if absent or len(inputs.job.layers) != saved.job.num_layers:
        again = f"strata plan train {saved.inputs['fleet']} {saved.inputs['job']} --save plan.json"
        raise UsageError(f"{saved.name} no longer fits its files: {'; '.join(inputs.changes)}", hint=again)
    low = lower(StepModel(inputs.fleet, inputs.job), saved.plan, aggregation=aggregation)
    check_scenario(low.scenario, is_aware=low.backend is AstraBackend.AWARE)
    command = " ".join([NAMES[low.backend], *low.scenario.arguments()])
    files = {
        **low.scenario.files(),
        "ranks.json": json.dumps({"backend": low.backend, "command": command, "ranks": low.labels}, indent=1)
        + "\n",
    }
    notes = [
        *(f"{change}; the plan was made before" for change in inputs.changes),
        *low.notes,
        f"in this folder: {command}",
    ]
    if load_dynamics(saved.inputs["fleet"]) is not None:
        notes.append("links vary in the fleet file; network.yml has them as they are without that")
    return ChakraFiles(encode_traces(low.scenario.traces), files, low.labels, tuple(notes))
