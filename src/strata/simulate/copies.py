"""What the copies of one stage exchange: gradients, and under ZeRO the shards of its weights.

Sources: what each ZeRO stage exchanges, arXiv 1910.02054 §7 (2Ψ up to stage 2, 3Ψ in stage 3); layer by layer, one
layer ahead of the work, arXiv 2304.11277 §3.3 (FSDP). Stage 2 is FSDP that keeps the weights after the forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Domain
from strata.simulate.traffic import replica_ring_s, replica_wire


@dataclass(frozen=True, slots=True)
class CopyExchange:
    """What exchanging between copies makes of a stage's work.

    forward_s, backward_s: of one microbatch, waits for other copies included. sum_s: exposed after the last
    backward. gather_s: exposed in the forwards of the next step, which begins with new weights.
    """

    forward_s: float
    backward_s: float
    sum_s: float = 0.0
    gather_s: float = 0.0


def copy_exchange(
    domain: Domain,
    forward_s: Floats,
    backward_s: Floats,
    weight_bytes: Floats,
    *,
    replicas: int,
    copy_devices: int,
    zero_stage: int,
    shard_group: int | None,
) -> CopyExchange:
    """Return the work of a stage whose layers [n] take so long and hold so many bytes of weights on one device.

    `shard_group` copies share one set of shards under stage 3, and the groups sum theirs (HSDP, arXiv 2304.11277
    §3.2.2); None is all. A step's gradient sum hides behind the last backward, the gathering of new weights behind
    the first forward, layer by layer; what stage 2 and 3 exchange for each microbatch behind that one's work.
    """
    whole, back, total = float(forward_s.sum()), float(backward_s.sum()), float(weight_bytes.sum())
    if replicas == 1:
        return CopyExchange(whole, back)
    if zero_stage == 0:
        ring = replica_ring_s(domain, total, replicas=replicas, copy_devices=copy_devices)
        return CopyExchange(whole, back, max(0.0, ring - back))
    group = shard_group or replicas
    # Reduce-scatter and all-gather take half an all-reduce each.
    each = _half_rings_s(domain, weight_bytes, members=group, copy_devices=copy_devices)
    fetched = _after(each, forward_s)
    if zero_stage == 1:
        return CopyExchange(whole, back, max(0.0, float(each.sum()) - back), fetched - whole)
    reversed_s, sent = backward_s[::-1], each[::-1]
    if zero_stage == 2:
        busy = max(back, float(each.sum()))
        return CopyExchange(whole, busy, _after(reversed_s, sent) - busy, fetched - whole)
    fetched_back = _after(sent, reversed_s)
    busy = max(fetched_back, 2 * float(each.sum()))
    between = replica_ring_s(domain, total / group, replicas=replicas // group, copy_devices=group * copy_devices)
    tail = max(0.0, fetched_back + float(each[0]) - busy)
    return CopyExchange(fetched, busy, max(tail, between - back))


def _half_rings_s(domain: Domain, sizes: Floats, *, members: int, copy_devices: int) -> Floats:
    if members == 1:
        return np.zeros(len(sizes))
    bandwidth, latency = replica_wire(domain, replicas=members, copy_devices=copy_devices)
    return np.asarray((members - 1) * (sizes / members / bandwidth + latency))


def _after(first_s: Floats, then_s: Floats) -> float:
    """Return when layers [n] are done that one machine, then another work through in turn (a flow shop of two).

    max_k (Σ_{l<=k} first_l + Σ_{l>=k} then_l): Johnson 1954.
    """
    done = np.cumsum(first_s)
    left = np.cumsum(then_s[::-1])[::-1]
    return float((done + left).max())
