"""What splitting sequences and experts over devices adds to the layers of a stage, and moving activations away.

Context parallelism: ring attention (arXiv 2310.01889 §3) sends keys and values round while attention works on
what is here; all-to-all (DeepSpeed-Ulysses, arXiv 2309.14509 §3) turns pieces of sequences into pieces of heads.
Expert parallelism: tokens go to the devices of their experts and back (GShard, arXiv 2006.16668 §3.2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Domain
from strata.simulate.compute import LayerSums, prefix_sums
from strata.simulate.copies import CONTENTION
from strata.simulate.traffic import replica_wire
from strata.workload.job import ContextExchange, Recompute, TrainingJob
from strata.workload.plan import Stage, TrainingPlan

HOST_BYTES_PER_S: Final = 25e9
"""Between a device and its host's memory, each direction: what PCIe 4.0 x16 gives of its 32 GB/s; assumed."""

_THERE_AND_BACK: Final = (1.0, 0.75)
"""Of 16-bit bytes that rows take, there and back: in 8 bit on their way to the experts alone (arXiv 2412.19437
§3.3)."""

Seconds = tuple[Floats, Floats]
"""Forward and backward of each layer [n]."""


def with_exchanges(
    job: TrainingJob, domain: Domain, stage: Stage, plan: TrainingPlan, layers: LayerSums
) -> LayerSums:
    """Return layer times with what the devices of a copy exchange; the stage and the plan are of all layers."""
    forward, backward = np.diff(layers.forward), np.diff(layers.backward)
    work = forward, backward + selective_s(job, domain, stage, plan)
    context, experts = (each(job, domain, stage, plan, work) for each in (context_s, experts_s))
    return replace(
        layers,
        forward=prefix_sums(work[0] + context[0] + experts[0]),
        backward=prefix_sums(work[1] + context[1] + experts[1]),
    )


def context_s(job: TrainingJob, domain: Domain, stage: Stage, plan: TrainingPlan, work: Seconds) -> Seconds:
    """Return what exchanging pieces of sequences adds to the layers of a stage whose own work is `work`.

    Ring: c - 1 times, what a block of keys and values takes longer to come than attention to one takes; backward
    the gradients of both come along. A ring over several nodes enters each of them once for each tensor rank, and
    those share the node's card (`replica_wire`). All-to-all: queries, keys, values and outputs, forward and
    backward, behind no other work; what goes to other nodes shares a card with all devices of the node, while the
    rest goes inside.
    """
    ranks, layers = stage.context_parallel, slice(stage.first_layer, stage.first_layer + stage.num_layers)
    if ranks == 1:
        return np.zeros(stage.num_layers), np.zeros(stage.num_layers)
    exchanges, size = job.layers.exchanges, plan.microbatch_size / (stage.tensor_parallel * ranks)
    keys, queries = exchanges.kv_bytes[layers] * size, exchanges.query_bytes[layers] * size
    bandwidth, latency = replica_wire(domain, replicas=ranks, copy_devices=stage.tensor_parallel)
    if plan.context_exchange is ContextExchange.ALL_TO_ALL:
        near = min(ranks, neighbours(domain, stage))
        card = domain.network_bandwidth_bytes_per_s / domain.devices_per_node
        slowest = max((near - 1) / domain.intra_bandwidth_bytes_per_s, (ranks - near) / card) / ranks
        turned = np.where(queries > 0, (keys + 2 * queries) * slowest + 4 * latency, 0.0)
        return turned, turned
    share = exchanges.attention_flops[layers] / np.maximum(job.layers.forward_flops[layers], 1e-300)

    def exposed(size_bytes: Floats, work_s: Floats) -> Floats:
        block_s = np.where(keys > 0, size_bytes / bandwidth + latency, 0.0)
        return np.asarray((ranks - 1) * np.maximum(0.0, block_s - share * work_s / ranks))

    return exposed(keys, work[0]), exposed(2 * keys, work[1])


def experts_s(job: TrainingJob, domain: Domain, stage: Stage, plan: TrainingPlan, work: Seconds) -> Seconds:
    """Return what sending tokens to their experts and back adds, and what the fullest device works longer.

    Four all-to-alls a layer, two forward and two backward, behind no other work unless the software hides them. A
    token goes once to each other node that has one of its experts and is copied there (DeepSeek-V3, arXiv
    2412.19437 §3.2.2; DeepEP): of k experts on m of n nodes, at random, on m (n - 1)/n (1 - (1 - 1/m)^k) others;
    m = n (1 - (1 - q/g)^(g/n)) where a token's experts are in q of g groups (node-limited routing, §2.1.2), which
    lie one after another. What is copied inside nodes goes over their wires while the rest shares a node's cards.
    Where rows are sorted before they are sent, or tokens dropped, each copy goes by itself, m (n - 1)/n k of them.
    """
    ranks, layers = plan.expert_parallel, slice(stage.first_layer, stage.first_layer + stage.num_layers)
    if ranks == 1:
        return np.zeros(stage.num_layers), np.zeros(stage.num_layers)
    exchanges = job.layers.exchanges
    sent = exchanges.routed_bytes[layers] * (plan.microbatch_size / stage.num_devices * job.expert_imbalance)
    copies = exchanges.routed_bytes[layers] / np.maximum(job.layers.hidden_bytes[layers], 1e-300)
    near = min(ranks, neighbours(domain, stage))
    nodes = ranks / near
    groups, taken = exchanges.expert_groups
    among = max(1.0, nodes * (1 - (1 - taken / groups) ** max(1.0, groups / nodes)))
    reached = among * (1 - 1 / nodes) * (1 - (1 - 1 / among) ** copies) / np.maximum(copies, 1)
    if job.software.drops_tokens or job.software.sorts_apart:
        reached = np.full_like(reached, 1 - 1 / nodes)
    card = domain.network_bandwidth_bytes_per_s / domain.devices_per_node
    latency = domain.intra_latency_s if near == ranks else domain.network_latency_s
    inside_s = sent * ((near - 1) / near) / domain.intra_bandwidth_bytes_per_s
    both = 2 * np.where(sent > 0, np.maximum(inside_s, sent * reached / card) + latency, 0.0)
    share = exchanges.routed_flops[layers] / np.maximum(job.layers.forward_flops[layers], 1e-300)
    longer = share * (job.expert_imbalance - 1)
    if job.software.hides_exchanges:
        both *= _THERE_AND_BACK[job.precision == "fp8"]
        forward, backward = (np.maximum(both - each, 0) + CONTENTION * np.minimum(both, each) for each in work)
    else:
        forward = backward = both
    return forward + longer * work[0], backward + longer * work[1]


def neighbours(domain: Domain, stage: Stage) -> int:
    """Return how many of a stage's context- or expert-parallel ranks lie in one node.

    The devices of a stage lie together, as Megatron-LM orders its ranks (tensor, context, expert, data, pipeline).
    """
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
