"""What each part of a plan does in one step, as trace nodes: which rank runs it is not decided here.

A worker is one stage of one copy of one pipeline: its tensor-parallel devices act as one rank, whose computing
times already hold what they say to each other. Node numbers are priorities, so they follow the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.fleet.fleet import Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.astra.chakra import ChakraCollective, Node, NodeType, Value
from strata.simulate.collective import best_ring
from strata.simulate.order import in_turn
from strata.simulate.timeline import SpanKind
from strata.workload.plan import Pipeline, TrainingPlan

Key = tuple[int, int, int]
"""Pipeline, copy, stage."""


@dataclass(frozen=True, slots=True)
class Sum:
    """One collective of a worker; `members` in ring order."""

    kind: ChakraCollective
    members: tuple[Key, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Worker:
    """One rank's work. next_bytes: activations to the next stage, gradients back; 0 where there is none."""

    key: Key
    domain: str
    forward_us: int
    backward_us: int
    update_us: int
    warmup: int
    microbatches: int
    previous_bytes: int
    next_bytes: int
    sums: tuple[Sum, ...]

    @property
    def label(self) -> str:
        """Name for people."""
        pipeline, copy, stage = self.key
        return f"pipeline {pipeline} copy {copy} stage {stage} ({self.domain})"


def workers(model: StepModel, plan: TrainingPlan, *, flat: bool = False) -> list[Worker]:
    """Return the workers of a plan. Pipelines have like stages where they sum gradients with each other.

    Sums are hierarchical: reduce-scatter between a stage's copies, all-reduce between pipelines, all-gather.
    `flat` makes them one all-reduce over all copies of all pipelines, which unequal numbers of copies can do too.
    """
    ring = ring_order(model.fleet, plan)
    transfers = []
    for p, pipeline in enumerate(plan.pipelines):
        times = model.times(plan, pipeline)
        sizes = [0, *message_bytes(model, plan, pipeline), 0]
        for copy in range(pipeline.replicas):
            for s, stage in enumerate(pipeline.stages):
                transfers.append(
                    Worker(
                        (p, copy, s),
                        stage.domain,
                        microseconds(times.forward_s[s]),
                        microseconds(times.backward_s[s]),
                        microseconds(times.update_s),
                        stage.warmup,
                        pipeline.microbatches,
                        sizes[s],
                        sizes[s + 1],
                        tuple(_sums(model, plan, (p, copy, s), ring, flat=flat)),
                    )
                )
    return transfers


def microseconds(seconds: float) -> int:
    """Return a duration as Chakra counts it."""
    return round(seconds * 1e6)


def message_bytes(model: StepModel, plan: TrainingPlan, pipeline: Pipeline) -> list[int]:
    """Return the bytes one microbatch sends over each cut, either way."""
    boundary = model.job.layers.boundary_bytes
    last = [stage.first_layer + stage.num_layers - 1 for stage in pipeline.stages[:-1]]
    return [max(1, round(float(boundary[layer]) * plan.microbatch_size)) for layer in last]


def gradient_bytes(model: StepModel, pipeline: Pipeline, stage: int) -> float:
    """Return the gradients of a stage, all its devices together."""
    held = pipeline.stages[stage]
    before = model.job.held(held.first_layer, held.first_layer + held.num_layers).layers.params_before
    params = float(before[held.first_layer + held.num_layers] - before[held.first_layer])
    return params * model.job.element_bytes


def ring_order(fleet: Fleet, plan: TrainingPlan) -> tuple[int, ...]:
    """Return the pipelines in the order of the fastest ring, a pair being as slow as its slowest stage's link."""
    count = len(plan.pipelines)
    if count < 3:
        return tuple(range(count))
    per_byte, latency = np.zeros((count, count)), np.zeros((count, count))
    for r, source in enumerate(plan.pipelines):
        for q, dest in enumerate(plan.pipelines):
            for a, b in zip(source.stages, dest.stages, strict=False):
                if a.domain != b.domain:
                    link = fleet.link(a.domain, b.domain)
                    slow = 1 / link.bandwidth_bytes_per_s if link else np.inf
                    per_byte[r, q] = max(per_byte[r, q], slow)
                    latency[r, q] = max(latency[r, q], link.latency_s if link else np.inf)
    return best_ring(2.0**30, per_byte, latency)[0]


def _sums(model: StepModel, plan: TrainingPlan, key: Key, ring: Sequence[int], *, flat: bool) -> Iterator[Sum]:
    yield from _layer_sums(model, plan, key, ring, flat=flat)
    p, copy, s = key
    last = len(plan.pipelines[p].stages) - 1
    if model.job.layers.table_params and last and s in (0, last):
        size = model.job.layers.table_params * model.job.gradient_bytes
        yield Sum(ChakraCollective.ALL_REDUCE, ((p, copy, 0), (p, copy, last)), _bytes(size))


def _layer_sums(
    model: StepModel, plan: TrainingPlan, key: Key, ring: Sequence[int], *, flat: bool
) -> Iterator[Sum]:
    p, copy, s = key
    pipeline = plan.pipelines[p]
    size = gradient_bytes(model, pipeline, s)
    if size <= 0:
        return
    if flat:
        members = tuple((q, c, s) for q in ring for c in range(plan.pipelines[q].replicas))
        if len(members) > 1:
            yield Sum(ChakraCollective.ALL_REDUCE, members, _bytes(size))
        return
    copies = tuple((p, c, s) for c in range(pipeline.replicas))
    across = tuple((q, copy, s) for q in ring)
    if len(across) == 1:
        if len(copies) > 1:
            yield Sum(ChakraCollective.ALL_REDUCE, copies, _bytes(size))
        return
    part = size / len(copies)
    if len(copies) > 1:
        yield Sum(ChakraCollective.REDUCE_SCATTER, copies, _bytes(size))
    yield Sum(ChakraCollective.ALL_REDUCE, across, _bytes(part / plan.gradient_compression))
    if len(copies) > 1:
        yield Sum(ChakraCollective.ALL_GATHER, copies, _bytes(part))  # ASTRA-sim counts a gather's shard


def _bytes(size: float) -> int:
    return max(1, round(size))


def traces(
    work: Sequence[Worker], rank_of: Mapping[Key, int], *, num_ranks: int, num_dims: int
) -> tuple[tuple[tuple[Node, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return a trace per rank and the groups they name. A rank without work computes for 1 us."""
    members = dict.fromkeys(item.members for worker in work for item in worker.sums)
    ranks_of = {keys: tuple(rank_of[key] for key in keys) for keys in members}
    # The whole world needs no group: ASTRA-sim has one for it.
    named = [keys for keys in members if len(keys) < num_ranks]
    group_of = {keys: number for number, keys in enumerate(named, 1)}
    rank_nodes: list[tuple[Node, ...]] = [(_IDLE,)] * num_ranks  # an empty trace stops ASTRA-sim
    for worker in work:
        builder = _Builder(worker, rank_of, num_dims)
        builder.step(group_of)
        rank_nodes[rank_of[worker.key]] = tuple(builder.nodes)
    return tuple(rank_nodes), tuple(ranks_of[keys] for keys in named)


_IDLE: Final = Node(0, NodeType.COMP, "idle", duration_us=1)


class _Builder:
    """The nodes of one worker, in the order of its schedule."""

    def __init__(self, worker: Worker, rank_of: Mapping[Key, int], num_dims: int) -> None:
        pipeline, copy, stage = worker.key
        self.worker, self.num_dims, self.nodes = worker, num_dims, list[Node]()
        self.rank = rank_of[worker.key]
        self.previous = rank_of.get((pipeline, copy, stage - 1), -1)
        self.next = rank_of.get((pipeline, copy, stage + 1), -1)
        self.computed: list[int] = []

    def step(self, group_of: Mapping[tuple[Key, ...], int]) -> None:
        """Add a whole step: forwards and backwards in order, sums, update."""
        worker = self.worker
        before, after = (self.previous, worker.previous_bytes), (self.next, worker.next_bytes)
        for kind, m, *_ in in_turn(worker.warmup, worker.microbatches):
            if kind is SpanKind.FORWARD:
                self._pass(f"F{m}", m, worker.forward_us, before, after)
            else:
                self._pass(f"B{m}", worker.microbatches + m, worker.backward_us, after, before)
        self._sum(group_of)

    def _pass(self, name: str, tag: int, duration_us: int, source: tuple[int, int], dest: tuple[int, int]) -> None:
        waits = self.computed[-1:]
        if source[1]:
            attrs: dict[str, Value] = {
                "comm_src": source[0], "comm_dst": self.rank, "comm_size": source[1], "comm_tag": tag
            }  # fmt: skip
            waits = [*waits, self._add(NodeType.COMM_RECV, f"{name} in", attrs=attrs)]
        self.computed.append(self._add(NodeType.COMP, name, waits, duration_us=duration_us))
        if dest[1]:
            attrs = {"comm_src": self.rank, "comm_dst": dest[0], "comm_size": dest[1], "comm_tag": tag}
            self._add(NodeType.COMM_SEND, f"{name} out", self.computed[-1:], attrs=attrs)

    def _sum(self, group_of: Mapping[tuple[Key, ...], int]) -> None:
        # As in the analytic model a sum runs beside the last backward. A stage that still has to send gradients
        # starts it after that: a rank has one slot for messages, and its neighbour waits for them.
        waits = [self.nodes[-1].id] if self.worker.previous_bytes else self.computed[-2:-1]
        summed = []
        for item in self.worker.sums:
            attrs: dict[str, Value] = {
                "comm_type": int(item.kind), "comm_size": item.size_bytes, "involved_dim": (True,) * self.num_dims
            }  # fmt: skip
            if item.members in group_of:
                attrs["pg_name"] = str(group_of[item.members])
            waits = summed = [self._add(NodeType.COMM_COLL, item.kind.name.lower(), waits, attrs=attrs)]
        if self.worker.update_us:
            self._add(NodeType.COMP, "update", [*self.computed[-1:], *summed], duration_us=self.worker.update_us)

    def _add(
        self,
        kind: NodeType,
        name: str,
        waits: Sequence[int] = (),
        *,
        duration_us: int = 0,
        attrs: Mapping[str, Value] | None = None,
    ) -> int:
        self.nodes.append(Node(len(self.nodes), kind, name, tuple(waits), (), duration_us, attrs or {}))
        return self.nodes[-1].id
