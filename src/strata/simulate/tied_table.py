"""The gradients of a tied embedding whose table lies in two stages: the first one's, and the head's copy of it.

Both stages must apply the sum of both, so each copy's two stages exchange them once a step, after the sums between
copies, every context-parallel rank for itself: Megatron-Core's embedding group (`finalize_model_grads`).
"""

from __future__ import annotations

from strata.fleet.fleet import Fleet
from strata.simulate.traffic import Hop, hops, inner_hop, wan_hop
from strata.workload.job import TrainingJob
from strata.workload.plan import Pipeline


def table_sum(fleet: Fleet, job: TrainingJob, pipeline: Pipeline) -> Hop | None:
    """Return the sum of one copy's two tables, copies at the same time; None where there is one table.

    A folded pipeline (DualPipeV) has one: its first stage holds the head too, so its job's last layer is no head.
    A ring of two: each way goes a whole table, half of it first. Its `wan_bytes` and price are of both ways. Where
    no link joins the two domains it goes through those between, piece by piece.
    """
    if not job.layers.table_params or len(pipeline.stages) == 1:
        return None
    first, last = pipeline.stages[0], pipeline.stages[-1]
    size = job.layers.table_params * job.gradient_bytes * first.context_parallel
    if first.domain == last.domain:
        domain, stages = fleet.domain(first.domain), sum(s.domain == first.domain for s in pipeline.stages)
        hop = inner_hop(domain, first.num_devices, 0, stages, size)
        return Hop(hop.serial_s, 2 * hop.latency_s)
    pairs = (first.domain, last.domain), (last.domain, first.domain)
    if all(pair in fleet.links for pair in pairs):
        ways = [
            wan_hop(fleet, *pair, size, copies=pipeline.replicas, ranks=stage.num_devices)
            for pair, stage in zip(pairs, (first, last), strict=True)
        ]
    else:
        cuts = hops(fleet, pipeline, [size] * (len(pipeline.stages) - 1))
        ways = [_through([cut[way] for cut in cuts]) for way in (0, 1)]
    return Hop(
        max(way.serial_s for way in ways), 2 * max(way.latency_s for way in ways),
        sum(way.wan_bytes for way in ways), sum(way.egress_usd for way in ways),
    )  # fmt: skip


def _through(cuts: list[Hop]) -> Hop:
    return Hop(
        max(cut.serial_s for cut in cuts), sum(cut.latency_s for cut in cuts),
        sum(cut.wan_bytes for cut in cuts), sum(cut.egress_usd for cut in cuts),
    )  # fmt: skip
