"""What the copies of one stage exchange: gradients, and under ZeRO the shards of its weights.

Sources: what each ZeRO stage exchanges, arXiv 1910.02054 §7 (2Ψ up to stage 2, 3Ψ in stage 3); layer by layer, one
layer ahead of the work, arXiv 2304.11277 §3.3 (FSDP). Stage 2 is FSDP that keeps the weights after the forward.
"""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Weights that `members` devices hold alike, one in each copy (or more: `side_by_side`, see `replica_wire`).

    size_bytes: [n] of each layer on one device.
    """

    size_bytes: Floats
    members: int
    copy_devices: int
    side_by_side: int = 1

    def half_rings_s(self, domain: Domain, group: int | None) -> Floats:
        """Return [n] an all-gather or a reduce-scatter of each layer, between `group` of the members if given."""
        members = min(group or self.members, self.members)
        if members == 1:
            return np.zeros(len(self.size_bytes))
        bandwidth, latency = replica_wire(
            domain, replicas=members, copy_devices=self.copy_devices, side_by_side=self.side_by_side
        )
        each = (members - 1) * (self.size_bytes / members / bandwidth + latency)
        return np.where(self.size_bytes > 0, each, 0.0)

    def ring_s(self, domain: Domain, group: int = 1) -> float:
        """Return the all-reduce of all layers between the groups of `group` members."""
        total = float(self.size_bytes.sum())
        if not total:
            return 0.0
        return replica_ring_s(
            domain, total / group, replicas=self.members // group, copy_devices=group * self.copy_devices,
            side_by_side=self.side_by_side,
        )  # fmt: skip


def copy_exchange(
    domain: Domain,
    forward_s: Floats,
    backward_s: Floats,
    weights: Sequence[SharedWeights],
    *,
    zero_stage: int,
    shard_group: int | None,
) -> CopyExchange:
    """Return the work of a stage whose layers [n] take so long and whose weights are shared with other devices.

    `shard_group` copies share one set of shards under stage 3, and the groups sum theirs (HSDP, arXiv 2304.11277
    §3.2.2); None is all. A step's gradient sum hides behind the last backward, the gathering of new weights behind
    the first forward, layer by layer; what stage 2 and 3 exchange for each microbatch behind that one's work.
    """
    whole, back = float(forward_s.sum()), float(backward_s.sum())
    shared = [part for part in weights if part.members > 1]
    if not shared:
        return CopyExchange(whole, back)
    if zero_stage == 0:
        return CopyExchange(whole, back, max(0.0, sum(part.ring_s(domain) for part in shared) - back))
    # Reduce-scatter and all-gather take half an all-reduce each.
    each = sum((part.half_rings_s(domain, shard_group) for part in shared), np.zeros(len(forward_s)))
    fetched = _after(each, forward_s)
    if zero_stage == 1:
        return CopyExchange(whole, back, max(0.0, float(each.sum()) - back), fetched - whole)
    reversed_s, sent = backward_s[::-1], each[::-1]
    if zero_stage == 2:
        busy = max(back, float(each.sum()))
        return CopyExchange(whole, busy, _after(reversed_s, sent) - busy, fetched - whole)
    fetched_back = _after(sent, reversed_s)
    busy = max(fetched_back, 2 * float(each.sum()))
    between = sum(part.ring_s(domain, min(shard_group or part.members, part.members)) for part in shared)
    tail = max(0.0, fetched_back + float(each[0]) - busy)
    return CopyExchange(fetched, busy, max(tail, between - back))


def _after(first_s: Floats, then_s: Floats) -> float:
    """Return when layers [n] are done that one machine, then another work through in turn (a flow shop of two).

    max_k (Σ_{l<=k} first_l + Σ_{l>=k} then_l): Johnson 1954.
    """
    done = np.cumsum(first_s)
    left = np.cumsum(then_s[::-1])[::-1]
    return float((done + left).max())
