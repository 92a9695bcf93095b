"""What it takes to switch plans: the weights that domains lack, over their best links."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strata.arrays import Bools, Floats
from strata.fleet.fleet import Fleet
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan


def relocation_costs(
    fleet: Fleet, job: TrainingJob, plans: Sequence[TrainingPlan]
) -> tuple[Floats, Floats, Bools]:
    """Return seconds and USD to bring weights where another plan wants them [from, to], and whether any move.

    Each domain gets the layers it lacks (bf16 weights: 2 bytes a parameter) over its best link from a domain
    that the plan in use holds layers in; domains fetch at the same time.
    """
    names = [domain.name for domain in fleet.domains]
    layers = len(job.layers)
    holds = np.zeros((len(plans), len(names), layers), dtype=bool)
    for p, plan in enumerate(plans):
        for pipeline in plan.pipelines:
            for stage, chunks in zip(pipeline.stages, plan.held_layers(pipeline), strict=True):
                for held in chunks:
                    holds[p, fleet.index(stage.domain), held.start : held.stop] = True
    lacks = lacks_bytes(job, holds)
    speed, price = fleet.bandwidth_bytes_per_s(), fleet.price_usd_per_byte()
    np.fill_diagonal(speed, 0.0)
    source = np.asarray(holds.any(axis=2))  # [P, K]
    reach = source[:, :, None] * speed[None]  # [P, from, to]
    best, chosen = reach.max(axis=1), reach.argmax(axis=1)  # [P, K]
    with np.errstate(divide="ignore", invalid="ignore"):
        time_s = np.where(lacks > 0, lacks / best[:, None, :], 0.0).max(axis=2)
    paid = price[chosen, np.arange(len(names))]
    return (
        time_s,
        (lacks * paid[:, None, :]).sum(axis=2),
        np.asarray((holds[:, None] != holds[None]).any(axis=(2, 3))),
    )


def lacks_bytes(job: TrainingJob, holds: Bools) -> Floats:
    """Return the weights [from, to, K] that domains lack of what they hold under another plan, which is [P, K, L].

    The table of a tied embedding is where the embedding is or the head.
    """
    layers, tables = job.layers, holds[..., :1] | holds[..., -1:]
    params = np.append(layers.params, layers.table_params)
    params[0] -= layers.table_params
    each = np.concatenate([holds, tables], axis=-1)
    return np.asarray(np.einsum("qkl,pkl,l->pqk", each, ~each, params * job.element_bytes))
