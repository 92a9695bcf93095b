"""Jobs whose layers stand in the order in which the stages of a folded pipeline (DualPipeV) hold them.

A stage of such a plan holds two chunks of layers, far apart in the model; of this job they are one run.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from strata.workload.job import Schedule, TrainingJob
from strata.workload.plan import Pipeline, TrainingPlan


def folded_job(job: TrainingJob, plan: TrainingPlan, pipeline: Pipeline) -> TrainingJob:
    """Return the job with its layers stage by stage, of each the second chunk first: its end sends nothing on."""
    held = plan.held_layers(pipeline)
    order = list(chain.from_iterable(chain(later, first) for first, later in held))
    profile = job.profile
    if profile is not None:
        profile = replace(profile, times={key: _ordered(times, order) for key, times in profile.times.items()})
    return replace(job, layers=_ordered(job.layers, order), profile=profile)


def unfolded(plan: TrainingPlan) -> TrainingPlan:
    """Return the plan that does as much on each stage of a folded job."""
    return replace(plan, schedule=Schedule.ONE_F_ONE_B, virtual_stages=1)


def _ordered(table: Any, order: list[int]) -> Any:
    """Return a table of layers in another order."""
    columns = {}
    for item in fields(table):
        column = getattr(table, item.name)
        if is_dataclass(column):
            columns[item.name] = _ordered(column, order)
        elif isinstance(column, np.ndarray):
            columns[item.name] = column[order]
        elif isinstance(column, tuple) and len(column) == len(order):
            columns[item.name] = tuple(column[layer] for layer in order)
    return replace(table, **columns)
