"""What an allocator answers with: pipelines of stages, and what they are worth by one neutral model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from strata.decision import Reason
from strata.serving.planning.pool import NodePool
from strata.serving.planning.split import capacities, stages_s


class Stage(NamedTuple):
    """Layers [first, end) on one node."""

    node_id: str
    first: int
    end: int


Pipeline = tuple[Stage, ...]


class Performance(NamedTuple):
    """What one pipeline or a whole plan gives; `decode_s` of a plan is the mean over its tokens."""

    tokens_per_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Allocation:
    """Pipelines that share no node, what they are worth, what no plan can exceed, and why there are none."""

    pipelines: tuple[Pipeline, ...]
    performance: Performance
    bound_tokens_per_s: float
    reasons: tuple[Reason, ...] = ()

    @property
    def gap(self) -> float | None:
        """How far the plan's tokens/s may be from the best, as a share of the bound; None where that is 0."""
        if self.bound_tokens_per_s <= 0:
            return None
        return 1.0 - self.performance.tokens_per_s / self.bound_tokens_per_s


def pipeline_of(pool: NodePool, members: Sequence[int], counts: Sequence[int]) -> Pipeline:
    """Return members with so many layers each as stages."""
    first, stages = 0, []
    for i, count in zip(members, counts, strict=True):
        stages.append(Stage(pool.nodes[i].id, first, first + count))
        first += count
    return tuple(stages)


def performance_of(pool: NodePool, members: list[int], counts: Sequence[int]) -> Performance:
    """Return what one pipeline gives with as many microbatches in flight as keep it busy, or as fit."""
    times = stages_s(pool, members, counts)
    decode_s = sum(times) + pool.cycle_s(members)
    slots = pool.slots(members, counts)
    return Performance(pool.rate(slowest_s=max(times), decode_s=decode_s, slots=slots), decode_s)


def score(pool: NodePool, pipelines: Sequence[Pipeline]) -> Performance:
    """Return a plan's tokens/s and its decode time, the mean over tokens.

    Where pipelines share nodes, each gives way by as much as its busiest node is asked for too much.
    """
    index = pool.index
    worths, busy = list[Performance](), list[list[tuple[str, float]]]()
    load: dict[str, float] = {}
    for stages in pipelines:
        members, counts = [index[s.node_id] for s in stages], [s.end - s.first for s in stages]
        performance = performance_of(pool, members, counts)
        steps = performance.tokens_per_s / pool.batch
        shares = [
            (s.node_id, time * steps) for s, time in zip(stages, stages_s(pool, members, counts), strict=True)
        ]
        for name, share in shares:
            load[name] = load.get(name, 0.0) + share
        worths.append(performance)
        busy.append(shares)
    rate = weighted = 0.0
    for performance, shares in zip(worths, busy, strict=True):
        over = max(max(load[name] for name, _ in shares), 1.0)
        rate += performance.tokens_per_s / over
        weighted += performance.tokens_per_s / over * performance.decode_s
    return Performance(rate, weighted / rate if rate else math.inf)


def goodput(pool: NodePool, pipelines: Sequence[Sequence[tuple[str, int, int]]]) -> float | None:
    """Return the tokens/s a plan serves, prompts counted, within its goals; None where none are known."""
    if pool.service is None:
        return None
    index, total = pool.index, 0.0
    for stages in pipelines:
        members, counts = [index[name] for name, _, _ in stages], [end - first for _, first, end in stages]
        steps_s, cycle_s = stages_s(pool, members, counts), pool.cycle_s(members)
        total += pool.service.rate(
            members, counts, batch=pool.batch, steps_s=steps_s, cycle_s=cycle_s,
            slots=pool.slots(members, counts), is_strict=True,
        )  # fmt: skip
    return total


def faults(pool: NodePool, pipelines: Sequence[Pipeline], *, may_share: bool = False) -> list[str]:
    """Say what makes a plan illegal; nothing where it may run. A shared node must have the same layers in all."""
    index, problems = pool.index, list[str]()
    seen: dict[str, Stage] = {}
    for number, stages in enumerate(pipelines):
        at = 0
        for stage in stages:
            if stage.node_id in seen and not (may_share and seen[stage.node_id] == stage):
                problems.append(f"node {stage.node_id} is used twice")
            seen[stage.node_id] = stage
            if stage.first != at or stage.end <= stage.first:
                problems.append(
                    f"pipeline {number}: {stage.node_id} covers [{stage.first}, {stage.end}) after {at}"
                )
            at = stage.end
        if at != pool.num_layers:
            problems.append(f"pipeline {number} ends at layer {at} of {pool.num_layers}")
        unknown = [stage.node_id for stage in stages if stage.node_id not in index]
        problems += [f"pipeline {number}: unknown node {name}" for name in unknown]
        if stages and not unknown:
            caps = capacities(pool, [index[s.node_id] for s in stages])
            problems += [
                f"{s.node_id} holds {s.end - s.first} layers where {cap} fit"
                for s, cap in zip(stages, caps, strict=True)
                if s.end - s.first > cap
            ]
    return problems
