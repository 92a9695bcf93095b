"""Which devices of a node work as one: all of them, or several tensor-parallel groups side by side.

More devices together decode a token sooner, and spend more of their time on sums: slow links inside a node and
small models ask for smaller groups. Sizes are tried domain kind by domain kind, each with the greedy plan it leads
to, by the requests it serves within the goals at its best batch: at the demanded batch more groups would only be
more sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from strata.decision import Reason
from strata.fleet.fleet import Domain, Fleet
from strata.serving.observe import nodes_of, pool_of, unusable
from strata.serving.planning.allocate import allocate
from strata.serving.planning.estimate import Estimate, estimates
from strata.serving.planning.goal import Goal, Weighing
from strata.serving.planning.service import SPARE
from strata.workload.heads import shares_evenly
from strata.workload.serving_job import ServingJob

MOST_GROUPS: Final = 256
"""Nodes are not cut where there would be more groups: every planner's time grows with them."""
CLEARLY: Final = 0.02
"""What a cut must be worth more, a share of the rate: whole nodes need no second engine."""
NEXT_TO_NONE: Final = 1e-9


class DeviceGroups(NamedTuple):
    """Devices of a group in each domain whose nodes are cut; what such a plan gives, and what whole nodes give."""

    sizes: Mapping[str, int]
    estimate: Estimate | None = None
    whole: Estimate | None = None


def best_groups(fleet: Fleet, job: ServingJob, goal: Goal) -> DeviceGroups:
    """Return how nodes are best cut for a goal; not at all where that is as good, or where nothing fits."""
    whole = _estimate(fleet, job, {})
    if whole is None:
        return DeviceGroups({})
    best = DeviceGroups({}, whole, whole)
    most = _worth(whole, job, goal)
    for domains in _kinds(fleet):
        for size in _sizes(domains[0], job):
            sizes = {**best.sizes, **dict.fromkeys((domain.name for domain in domains), size)}
            if _num_groups(fleet, sizes) > MOST_GROUPS:
                continue
            estimate = _estimate(fleet, job, sizes)
            worth = most if estimate is None else _worth(estimate, job, goal)
            if worth > most + CLEARLY:
                best, most = DeviceGroups(sizes, estimate, whole), worth
    return best


def why_cut(fleet: Fleet, groups: DeviceGroups) -> Iterator[Reason]:
    """Yield how the nodes of a plan are cut, size by size, and what that gives beside whole nodes."""
    cut, whole = groups.estimate, groups.whole
    if cut is None or whole is None:
        return
    requests = cut.goodput_per_s / whole.goodput_per_s if whole.goodput_per_s else math.inf
    more = "requests within the goals where whole nodes serve none" if requests == math.inf else (
        f"{requests:.2f}x the requests within the goals of whole nodes")  # fmt: skip
    for size in sorted(set(groups.sizes.values())):
        names = [name for name, devices in groups.sizes.items() if devices == size]
        data = {
            "domains": ", ".join(names),
            "groups": "/".join(sorted({str(fleet.domain(name).devices_per_node // size) for name in names})),
            "devices": size,
            "gain": f"{more}, {cut.decode_s / whole.decode_s:.2f}x the decode time",
        }
        yield Reason("nodes-cut", data=data)


def _kinds(fleet: Fleet) -> list[list[Domain]]:
    """Return the usable domains, those with like nodes together."""

    def kind(domain: Domain) -> tuple[str, int, float, float]:
        inside = domain.intra_bandwidth_bytes_per_s, domain.intra_latency_s
        return (domain.accelerator.name, domain.devices_per_node, *inside)

    left_out = unusable(fleet)
    usable = sorted((domain for domain in fleet.domains if domain.name not in left_out), key=kind)
    return [list(like) for _, like in groupby(usable, kind)]


def _sizes(domain: Domain, job: ServingJob) -> list[int]:
    """Return the sizes that divide node and heads, the largest first, the whole node left out."""
    devices, heads = domain.devices_per_node, job.model.num_attention_heads
    sizes = (size for size in range(devices - 1, 0, -1) if devices % size == 0 and heads % size == 0)
    return [size for size in sizes if shares_evenly(size, job.model.kv_heads)]


def _num_groups(fleet: Fleet, sizes: Mapping[str, int]) -> int:
    return sum(d.num_nodes * (d.devices_per_node // sizes.get(d.name, d.devices_per_node)) for d in fleet.domains)


def _estimate(fleet: Fleet, job: ServingJob, sizes: Mapping[str, int]) -> Estimate | None:
    nodes = nodes_of(fleet, groups=sizes)
    pool = pool_of(nodes, job.model, job.demand, derating=job.derating)
    pipelines = allocate(pool, "greedy").pipelines
    return estimates(fleet, nodes, pool, pipelines, job) if pipelines else None


def _worth(estimate: Estimate, job: ServingJob, goal: Goal) -> float:
    """Return what a plan is worth, as a planner weighs it; for goodput no more requests count than are wanted."""
    rate = max(estimate.goodput_per_s, NEXT_TO_NONE)
    if goal is Goal.GOODPUT and job.demand.rate_per_s:
        rate = min(rate, SPARE * job.demand.rate_per_s)
    return Weighing.of(goal).value(rate, rate * estimate.decode_s)
