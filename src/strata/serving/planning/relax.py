"""When no pipeline holds the model: the changes that would each, alone, make it fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from strata.decision import Reason
from strata.fleet.fleet import Fleet
from strata.serving.observe import nodes_of, pool_of, unusable
from strata.serving.planning.pool import components, why_not_held
from strata.units import show_bytes
from strata.workload.precision import ELEMENT_BYTES
from strata.workload.serving_job import Demand, ServingJob, Weights

MOST_NODES: Final = 4096
"""Where the search for a sufficient number of nodes gives up: beyond any cluster of today."""


def smallest(fleet: Fleet, job: ServingJob) -> Iterator[Reason]:
    """Yield the relaxations that do alone, each as small as it can be.

    Weights and KV cache in fewer bits, fewer tokens a request, fewer sequences a step, more of the largest nodes.
    """
    lighter: tuple[Weights, ...] = ("fp8", "int4")
    for weights in lighter:
        if ELEMENT_BYTES[weights] < ELEMENT_BYTES[job.weights] and _fits(fleet, job.stored(weights=weights)):
            yield Reason("fits-with-precision", data={"what": "weights", "precision": weights})
            break
    if job.kv == "bf16" and _fits(fleet, job.stored(kv="fp8")):
        yield Reason("fits-with-precision", data={"what": "KV cache", "precision": "fp8"})
    demand = job.demand
    yield from _less(fleet, job, "tokens a request", demand.kv_tokens, lambda most: _shorter(demand, most))
    yield from _less(fleet, job, "sequences a step", demand.batch, lambda most: replace(demand, batch=most))
    yield from _nodes(fleet, job)


def _less(
    fleet: Fleet, job: ServingJob, what: str, demanded: int, lessened: Callable[[int], Demand]
) -> Iterator[Reason]:
    """Yield the most of a demand that fits, where some does."""

    def fits(value: int) -> bool:
        return _fits(fleet, replace(job, demand=lessened(value)))

    if demanded > 1 and fits(1):
        most = bisect_left(range(2, demanded), True, key=lambda value: not fits(value)) + 1
        yield Reason("fits-with-less", data={"what": what, "value": most, "asked": demanded})


def _shorter(demand: Demand, tokens: int) -> Demand:
    output = min(demand.output_tokens, max(0, tokens - 1))
    return replace(demand, prompt_tokens=tokens - output, output_tokens=output)


def _nodes(fleet: Fleet, job: ServingJob) -> Iterator[Reason]:
    """Yield how many more devices in the domain of the largest nodes would hold the model, by whole nodes."""
    faults = unusable(fleet)
    usable = [domain for domain in fleet.domains if domain.name not in faults]
    if not usable:
        return
    largest = max(usable, key=lambda d: (d.accelerator.memory_bytes * d.devices_per_node, d.num_devices))

    def enough(nodes: int) -> bool:
        grown = replace(largest, num_devices=largest.num_devices + nodes * largest.devices_per_node)
        changed = tuple(grown if domain is largest else domain for domain in fleet.domains)
        return _fits(replace(fleet, domains=changed), job)

    # No pipeline has more stages than layers, so more nodes than that never help.
    most = min(MOST_NODES, job.model.num_layers)
    if not enough(most):
        return
    count = bisect_left(range(1, most), True, key=enough) + 1
    memory = show_bytes(largest.accelerator.memory_bytes)
    data = {"count": count * largest.devices_per_node, "memory": memory, "kind": largest.accelerator.name}
    yield Reason("needs-devices", data=data)


def _fits(fleet: Fleet, job: ServingJob) -> bool:
    """Return whether nodes that links join hold the model."""
    pool = pool_of(nodes_of(fleet), job.model, job.demand, derating=job.derating)
    joined = np.isfinite(pool.hop_s) & np.isfinite(pool.hop_s.T)
    return any(not why_not_held(pool.only(members)) for members in components(joined))
