"""What the copies of one stage exchange: gradients, and under ZeRO the shards of its weights.

Sources: what each ZeRO stage exchanges, arXiv 1910.02054 §7 (2Ψ up to stage 2, 3Ψ in stage 3); layer by layer, one
layer ahead of the work, arXiv 2304.11277 §3.3 (FSDP). Stage 2 is FSDP that keeps the weights after the forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Domain
from strata.simulate.kernel_rates import LAUNCH_S
from strata.simulate.traffic import replica_ring_s, replica_wire
from strata.workload.job import TrainingJob
from strata.workload.plan import Stage

CONTENTION: Final = 0.19
"""How much longer work takes that an exchange runs beside: it takes multiprocessors, memory's bandwidth and power.
18.9 % in the mean over A100, H100, MI210 and MI250 (arXiv 2507.03114, abstract)."""

MATRICES: Final = 4
"""Of a block, each fetched by itself where weights are not prefetched: smaller ones stay (DeepSpeed's
stage3_param_persistence_threshold)."""


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

    def wire(self, domain: Domain) -> tuple[float, float]:
        """Return bandwidth [B/s] and latency [s] of the ring between all members (see `replica_wire`)."""
        return replica_wire(
            domain, replicas=self.members, copy_devices=self.copy_devices, side_by_side=self.side_by_side
        )

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

    def piecewise_s(self, domain: Domain, group: int | None) -> Floats:
        """Return [n] the same of each matrix by itself, each member's piece a tensor of its own: the host launches
        a copy for each of them (torch.distributed's all_gather and reduce_scatter of lists)."""
        members = min(group or self.members, self.members)
        if members == 1:
            return np.zeros(len(self.size_bytes))
        _, latency = self.wire(domain)
        copied = 2 * self.size_bytes / (domain.accelerator.memory_bandwidth_bytes_per_s or np.inf)
        more = copied + (MATRICES - 1) * (members - 1) * latency + MATRICES * members * LAUNCH_S
        return np.where(self.size_bytes > 0, self.half_rings_s(domain, group) + more, 0.0)

    def ring_s(self, domain: Domain, group: int = 1) -> float:
        """Return the all-reduce of all layers between the groups of `group` members."""
        total = float(self.size_bytes.sum())
        if not total:
            return 0.0
        return replica_ring_s(
            domain, total / group, replicas=self.members // group, copy_devices=group * self.copy_devices,
            side_by_side=self.side_by_side,
        )  # fmt: skip


def shared_weights(
    job: TrainingJob, domain: Domain, stage: Stage, *, replicas: int, copy_devices: int, expert_parallel: int
) -> list[SharedWeights]:
    """Return the weights of a stage by how many devices hold the same; a copy takes `copy_devices`."""
    held = slice(stage.first_layer, stage.first_layer + stage.num_layers)
    context = stage.context_parallel
    side = min(context, domain.devices_per_node // stage.tensor_parallel or 1)
    size = job.element_bytes / stage.tensor_parallel
    # A single copy's ring has no more than its stage.
    devices = copy_devices if replicas > 1 else stage.num_devices
    params, members = job.layers.params[held], replicas * context
    if expert_parallel == 1:
        return [SharedWeights(params * size, members, devices, side)]
    experts = job.layers.exchanges.expert_params[held]
    apart = max(1, expert_parallel // context) * devices
    return [
        SharedWeights((params - experts) * size, members, devices, side),
        SharedWeights(
            experts * (size / expert_parallel), members // expert_parallel, apart, max(1, side // expert_parallel)
        ),
    ]


def copy_exchange(
    domain: Domain,
    forward_s: Floats,
    backward_s: Floats,
    weights: Sequence[SharedWeights],
    *,
    zero_stage: int,
    shard_group: int | None,
    prefetched: bool = True,
    recomputed: bool = False,
    hidden: bool = True,
    gradient_ratio: float = 1.0,
) -> CopyExchange:
    """Return the work of a stage whose layers [n] take so long and whose weights are shared with other devices.

    `shard_group` copies share one set of shards under stage 3, and the groups sum theirs (HSDP, arXiv 2304.11277
    §3.2.2); None is all. A step's gradient sum hides behind the last backward, the gathering of new weights behind
    the first forward, layer by layer; what stage 2 and 3 exchange for each microbatch behind that one's work.
    Weights that are not prefetched stay for no more than one product, so `recomputed` layers fetch theirs three
    times. Up to stage 1 exchanges that are not `hidden` take their own time, those of gradients `gradient_ratio`
    times as long as those of weights.
    """
    whole, back = float(forward_s.sum()), float(backward_s.sum())
    shared = [part for part in weights if part.members > 1]
    if not shared:
        return CopyExchange(whole, back)
    if zero_stage == 3 and not prefetched:
        waits_s = sum(float(part.piecewise_s(domain, shard_group).sum()) for part in shared)
        return CopyExchange(whole + waits_s, back + (3 if recomputed else 2) * waits_s)
    if zero_stage == 0:
        sum_s = gradient_ratio * sum(part.ring_s(domain) for part in shared)
        return CopyExchange(whole, back, max(0.0, sum_s - back * hidden))
    # Reduce-scatter and all-gather take half an all-reduce each.
    each = sum((part.half_rings_s(domain, shard_group) for part in shared), np.zeros(len(forward_s)))
    fetched = _after(each, forward_s)
    if zero_stage == 1 and not hidden:
        return CopyExchange(whole, back, gradient_ratio * float(each.sum()), float(each.sum()))
    if zero_stage == 1:
        return CopyExchange(whole, back, max(0.0, float(each.sum()) - back), fetched - whole)
    backward_s = _beside(backward_s, each * (2 if zero_stage > 2 else 1))
    back, reversed_s, sent = float(backward_s.sum()), backward_s[::-1], each[::-1]
    if zero_stage == 2:
        busy = max(back, float(each.sum()))
        return CopyExchange(whole, busy, _after(reversed_s, sent) - busy, fetched - whole)
    fetched, fetched_back = _after(each, _beside(forward_s, each)), _after(sent, reversed_s)
    busy = max(fetched_back, 2 * float(each.sum()))
    between = sum(part.ring_s(domain, min(shard_group or part.members, part.members)) for part in shared)
    tail = max(0.0, fetched_back + float(each[0]) - busy)
    return CopyExchange(fetched, busy, max(tail, between - back))


def _beside(work_s: Floats, exchange_s: Floats) -> Floats:
    """Return what layers take while an exchange of theirs runs beside them."""
    return work_s + CONTENTION * np.minimum(work_s, exchange_s)


def _after(first_s: Floats, then_s: Floats) -> float:
    """Return when layers [n] are done that one machine, then another work through in turn (a flow shop of two).

    max_k (Σ_{l<=k} first_l + Σ_{l>=k} then_l): Johnson 1954.
    """
    done = np.cumsum(first_s)
    left = np.cumsum(then_s[::-1])[::-1]
    return float((done + left).max())
