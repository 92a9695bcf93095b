"""Why nodes of a fleet are in no pipeline of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from strata.decision import Reason
from strata.fleet.fleet import Fleet
from strata.serving.node import Node
from strata.serving.observe import unusable
from strata.serving.planning.allocate import allocate
from strata.serving.planning.allocation import Allocation, score
from strata.serving.planning.goal import Goal
from strata.serving.planning.pool import NodePool
from strata.units import show_bytes
from strata.workload.serving_job import ServingJob


class Unused(NamedTuple):
    """Nodes left out for one reason; a whole domain that cannot serve has no nodes here."""

    domain: str
    nodes: tuple[str, ...]
    reason: Reason

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {"domain": self.domain, "nodes": list(self.nodes), "reason": self.reason.to_dict()}


def why_unused(
    fleet: Fleet, nodes: Sequence[Node], pool: NodePool, allocation: Allocation, goal: Goal, job: ServingJob
) -> Iterator[Unused]:
    """Yield the nodes left out, domain by domain, and why."""
    for domain, reason in unusable(fleet).items():
        yield Unused(domain, (), reason)
    used = {stage.node_id for pipeline in allocation.pipelines for stage in pipeline}
    left = [i for i, node in enumerate(pool.nodes) if node.id not in used]
    small = [i for i in left if not any(pool.nodes[i].capacity)]
    rest = [i for i in left if any(pool.nodes[i].capacity)]
    by_id = {node.node_id: node for node in nodes}
    for domain, names in _by_domain(pool, small).items():
        yield Unused(domain, names, _too_small(by_id[names[0]], job))
    if rest:
        reason = _left_over(pool, rest, allocation, goal)
        for domain, names in _by_domain(pool, rest).items():
            yield Unused(domain, names, reason)


def _by_domain(pool: NodePool, members: Sequence[int]) -> dict[str, tuple[str, ...]]:
    names = (pool.nodes[i].id for i in members)  # in order, so that those of a domain are neighbours
    return {domain: tuple(same) for domain, same in groupby(names, lambda name: name.rpartition("/")[0])}


def _too_small(node: Node, job: ServingJob) -> Reason:
    """Say what the smallest layer, or all of a model that is not cut, needs with the KV memory of the batch."""
    demand, devices = job.demand, node.num_devices
    need = job.model.weight_bytes + demand.batch * job.model.kv_bytes(demand.kv_tokens)
    least = need.sum() + job.model.ends_bytes(0, job.model.num_layers) if job.model.is_whole else need.min()
    data = {
        "need": show_bytes(float(least) / devices),
        "have": show_bytes(node.usable_bytes(job.memory_headroom) / devices),
    }
    return Reason("memory-exceeded", data=data)


def _left_over(pool: NodePool, members: Sequence[int], allocation: Allocation, goal: Goal) -> Reason:
    """Say that what is left holds no pipeline, or what one more would change."""
    rest = pool.only(members)
    fill = allocate(rest, "greedy", goal=goal)
    if not fill.pipelines:
        return fill.reasons[0]
    # The best pipeline of the rest is enough: a worse one would change less.
    extra = min(fill.pipelines, key=lambda stages: score(rest, (stages,)).decode_s)
    before, after = allocation.performance, score(pool, (*allocation.pipelines, extra))
    data = {
        "tokens": after.tokens_per_s / before.tokens_per_s - 1,
        "decode": after.decode_s / before.decode_s - 1,
    }
    return Reason("pipeline-not-worth", data=data)
