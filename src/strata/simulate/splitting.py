"""What splitting sequences and experts over devices adds to the layers of a stage, and moving activations away.

Context parallelism: ring attention (arXiv 2310.01889 §3) sends keys and values round while attention works on
what is here; all-to-all (DeepSpeed-Ulysses, arXiv 2309.14509 §3) turns pieces of sequences into pieces of heads.
Expert parallelism: tokens go to the devices of their experts and back (GShard, arXiv 2006.16668 §3.2).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Domain
from strata.simulate.traffic import replica_wire
from strata.workload.job import ContextExchange, Recompute, TrainingJob
from strata.workload.plan import Stage, TrainingPlan

HOST_BYTES_PER_S: Final = 25e9
"""Between a device and its host's memory, each direction: what PCIe 4.0 x16 gives of its 32 GB/s; assumed."""

DISPATCH_S: Final = 60e-9
"""Of one row (a token for one of its experts) in one all-to-all, beside its way over wires: sorting by expert and
padding, and waiting for how many rows come. Calibrated on what Megatron Bridge published of Qwen3-30B-A3B in one
layout on 16 H100 (EP8 PP2, 512 x 4096 tokens a step, microbatch 2): 10,494 tokens/s per GPU with tokens dropped
(25.09), 5,275 with none (25.11). 12.4 s over 32 microbatches, 24 layers, 65,536 rows and 4 all-to-alls are 61 ns.
CUDA graphs take most of it away (GB200: 22,775 and 23,766), which no plan says; other cards: assumed."""

Seconds = tuple[Floats, Floats]
"""Forward and backward of each layer [n]."""


def context_s(job: TrainingJob, domain: Domain, stage: Stage, plan: TrainingPlan, work: Seconds) -> Seconds:
    """Return what exchanging pieces of sequences adds to the layers of a stage whose own work is `work`.

    Ring: c - 1 times, what a block of keys and values takes longer to come than attention to one takes; backward
    the gradients of both come along. All-to-all: queries, keys, values and outputs, forward and backward, behind
    no other work.
    """
    ranks, layers = stage.context_parallel, slice(stage.first_layer, stage.first_layer + stage.num_layers)
    if ranks == 1:
        return np.zeros(stage.num_layers), np.zeros(stage.num_layers)
    exchanges, size = job.layers.exchanges, plan.microbatch_size / (stage.tensor_parallel * ranks)
    keys, queries = exchanges.kv_bytes[layers] * size, exchanges.query_bytes[layers] * size
    bandwidth, latency = replica_wire(domain, replicas=ranks, copy_devices=stage.tensor_parallel)
    if plan.context_exchange is ContextExchange.ALL_TO_ALL:
        moved = (keys + 2 * queries) * ((ranks - 1) / ranks) / bandwidth
        turned = np.where(queries > 0, moved + 4 * latency, 0.0)
        return turned, turned
    share = exchanges.attention_flops[layers] / np.maximum(job.layers.forward_flops[layers], 1e-300)

    def exposed(size_bytes: Floats, work_s: Floats) -> Floats:
        block_s = np.where(keys > 0, size_bytes / bandwidth + latency, 0.0)
        return np.asarray((ranks - 1) * np.maximum(0.0, block_s - share * work_s / ranks))

    return exposed(keys, work[0]), exposed(2 * keys, work[1])


def experts_s(job: TrainingJob, domain: Domain, stage: Stage, plan: TrainingPlan, work: Seconds) -> Seconds:
    """Return what sending tokens to their experts and back adds, and what the fullest device works longer.

    Four all-to-alls a layer, two forward and two backward, none behind other work. A token goes once to each other
    node that has one of its experts and is copied there (DeepSeek-V3, arXiv 2412.19437 §3.2.2; DeepEP): of k
    experts on n nodes, at random, on (n - 1) (1 - (1 - 1/n)^k) others. What is copied inside nodes goes over their
    wires while the rest shares a node's cards. Every row of a copy also takes `DISPATCH_S`.
    """
    ranks, layers = plan.expert_parallel, slice(stage.first_layer, stage.first_layer + stage.num_layers)
    if ranks == 1:
        return np.zeros(stage.num_layers), np.zeros(stage.num_layers)
    exchanges = job.layers.exchanges
    sent = exchanges.routed_bytes[layers] * (plan.microbatch_size / stage.num_devices * job.expert_imbalance)
    copies = exchanges.routed_bytes[layers] / np.maximum(job.layers.boundary_bytes[layers], 1e-300)
    rows = copies * (job.sequence_length * plan.microbatch_size / stage.num_devices * job.expert_imbalance)
    near = min(ranks, neighbours(domain, stage))
    nodes = ranks / near
    reached = (nodes - 1) * (1 - (1 - 1 / nodes) ** copies) / np.maximum(copies, 1)
    card = domain.network_bandwidth_bytes_per_s / domain.devices_per_node
    latency = domain.intra_latency_s if near == ranks else domain.network_latency_s
    inside_s = sent * ((near - 1) / near) / domain.intra_bandwidth_bytes_per_s
    wires_s = np.maximum(inside_s, sent * reached / card) + latency
    once = np.where(sent > 0, wires_s + rows * DISPATCH_S, 0.0)
    share = exchanges.routed_flops[layers] / np.maximum(job.layers.forward_flops[layers], 1e-300)
    longer = share * (job.expert_imbalance - 1)
    return 2 * once + longer * work[0], 2 * once + longer * work[1]


def neighbours(domain: Domain, stage: Stage) -> int:
    """Return how many of a stage's expert-parallel ranks lie in one node: the devices of a stage lie together, as
    Megatron-LM orders its ranks (tensor, context, expert, data, pipeline)."""
    return max(1, domain.devices_per_node // stage.tensor_parallel)


def selective_s(job: TrainingJob, domain: Domain, stage: Stage, plan: TrainingPlan) -> Floats:
    """Return what running norms and activation functions again takes: each result is read and written once."""
    bandwidth = domain.accelerator.memory_bandwidth_bytes_per_s
    if plan.recompute is not Recompute.SELECTIVE or bandwidth is None:
        return np.zeros(stage.num_layers)
    layers = slice(stage.first_layer, stage.first_layer + stage.num_layers)
    again = job.layers.exchanges.recomputed_bytes[layers]
    return np.asarray(2 * again * (plan.microbatch_size / stage.num_devices) / bandwidth)


def offload_s(plan: TrainingPlan, kept_bytes: float) -> float:
    """Return how long a microbatch's activations take to the host's memory, and back: behind the stage's work."""
    return plan.activation_offload * kept_bytes / HOST_BYTES_PER_S
