"""Zones: from a split pipeline to plans that name them, never over a zone's quota.

A region's replicas are filled zone by zone in some order of its zones, either *aligned* (replica j of all
stages in one zone: no egress between stages) or *stage by stage* (a stage in few zones: little egress in
its ring). Degrees of tensor parallelism are powers of two, so filling the largest first wastes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

from strata.evaluation.published_benchmarks.plan import BenchmarkPlan, BenchmarkStage, ReplicaRun
from strata.evaluation.published_benchmarks.search.stage_kinds import KindTable, StagePart

MAX_ZONE_ORDERS: Final = 120

Demand = list[tuple[StagePart, int]]
"""How many replicas of which part a stage has, in ring order."""


class UnplacedPipeline(NamedTuple):
    """A split pipeline without zones: kinds and first layers of its stages (L at the end), replicas."""

    kinds: tuple[int, ...]
    first: tuple[int, ...]
    replicas: int


class Style(NamedTuple):
    """How one region is filled."""

    zones: tuple[str, ...]
    is_aligned: bool


def layouts(table: KindTable, pipeline: UnplacedPipeline, *, thorough: bool) -> Iterator[BenchmarkPlan]:
    """Yield plans for a pipeline: a few, or with `thorough` every order of the zones of a region at a time."""
    demands = _demands(table, pipeline)
    if demands is None:
        return
    homes = [table.kinds[k].region for k in pipeline.kinds]
    usual = {home: next(_styles(table, home)) for home in homes}
    tried: set[tuple[BenchmarkStage, ...]] = set()
    for home in usual:
        for style in _styles(table, home) if thorough else _usual_styles(table, home):
            stages = _fill(table, pipeline, demands, {**usual, home: style})
            if stages is not None and stages not in tried:
                tried.add(stages)
                yield BenchmarkPlan(table.mbs, stages)


def _styles(table: KindTable, home: str) -> Iterator[Style]:
    zones = _zones(table, home)
    for order in itertools.islice(itertools.permutations(zones), MAX_ZONE_ORDERS):
        yield Style(order, is_aligned=True)
        if len(zones) > 1:
            yield Style(order, is_aligned=False)


def _usual_styles(table: KindTable, home: str) -> Iterator[Style]:
    return itertools.islice(_styles(table, home), 2)


def _zones(table: KindTable, home: str) -> list[str]:
    """Return a region's zones, largest first."""
    pools = table.pools
    size: dict[str, int] = {}
    for (r, gpu), zones in pools.zones.items():
        for zone in zones if r == home else ():
            size[zone] = size.get(zone, 0) + pools.quota[zone, gpu]
    return sorted(size, key=lambda zone: (-size[zone], zone))


def _demands(table: KindTable, pipeline: UnplacedPipeline) -> list[Demand] | None:
    """Share each mixed stage's replicas between its parts, the cheaper part first as far as its pool goes."""
    pools, D = table.pools, pipeline.replicas
    left = {name: int(size) for name, size in zip(pools.names, pools.capacity, strict=True)}
    kinds = [table.kinds[k] for k in pipeline.kinds]
    for kind in kinds:
        if len(kind.parts) == 1:
            left[kind.region, kind.parts[0].gpu] -= D * kind.parts[0].tp
    if any(count < 0 for count in left.values()):
        return None
    gpus, demands = table.scorer.file.gpus, []
    for kind in kinds:
        missing, demand = D, []
        for part in sorted(kind.parts, key=lambda p: gpus[p.gpu].price_usd_per_hour * p.tp):
            pool = (kind.region, part.gpu)
            count = D if len(kind.parts) == 1 else min(missing, left[pool] // part.tp)
            if count:
                demand.append((part, count))
                missing -= count
                left[pool] -= count * part.tp if len(kind.parts) > 1 else 0
        if missing:
            return None
        demands.append(demand)
    return demands


def _fill(
    table: KindTable, pipeline: UnplacedPipeline, demands: list[Demand], styles: dict[str, Style]
) -> tuple[BenchmarkStage, ...] | None:
    left = dict(table.pools.quota)
    slots: list[list[ReplicaRun]] = [[] for _ in demands]
    for home, style in styles.items():
        stages = [i for i, k in enumerate(pipeline.kinds) if table.kinds[k].region == home]
        for segment, count in _segments([demands[i] for i in stages]):
            parts = dict(zip(stages, segment, strict=True))
            rest = _fill_aligned(parts, count, style.zones, left, slots) if style.is_aligned else count
            if rest and not _fill_by_stage(parts, rest, style.zones, left, slots):
                return None
    first = pipeline.first
    return tuple(BenchmarkStage(first[i], first[i + 1] - 1, _merged(runs)) for i, runs in enumerate(slots))


def _segments(demands: list[Demand]) -> Iterator[tuple[list[StagePart], int]]:
    """Cut the replicas where a mixed stage changes its part; yields the part of each stage and how many."""
    marks = sorted({mark for demand in demands for mark in itertools.accumulate(count for _, count in demand)})
    for start, end in itertools.pairwise([0, *marks]):
        parts = []
        for demand in demands:
            position = 0
            for part, count in demand:
                position += count
                if position > start:
                    parts.append(part)
                    break
        yield parts, end - start


def _fill_aligned(
    parts: dict[int, StagePart],
    count: int,
    zones: tuple[str, ...],
    left: dict[tuple[str, str], int],
    slots: list[list[ReplicaRun]],
) -> int:
    """Put whole pipelines into zones; return how many replicas found no zone for all their stages."""
    need: dict[str, int] = {}
    for part in parts.values():
        need[part.gpu] = need.get(part.gpu, 0) + part.tp
    for zone in zones:
        here = min(count, *(left.get((zone, gpu), 0) // units for gpu, units in need.items()))
        if here:
            for i, part in parts.items():
                slots[i].append(ReplicaRun(part.gpu, part.tp, zone, here))
            for gpu, units in need.items():
                left[zone, gpu] -= here * units
            count -= here
    return count


def _fill_by_stage(
    parts: dict[int, StagePart],
    count: int,
    zones: tuple[str, ...],
    left: dict[tuple[str, str], int],
    slots: list[list[ReplicaRun]],
) -> bool:
    for i, part in sorted(parts.items(), key=lambda item: -item[1].tp):
        missing = count
        for zone in zones:
            here = min(missing, left.get((zone, part.gpu), 0) // part.tp)
            if here:
                slots[i].append(ReplicaRun(part.gpu, part.tp, zone, here))
                left[zone, part.gpu] -= here * part.tp
                missing -= here
        if missing:
            return False
    return True


def _merged(runs: list[ReplicaRun]) -> tuple[ReplicaRun, ...]:
    """Join neighbouring runs of equal replicas."""
    merged: list[ReplicaRun] = []
    for run in runs:
        if merged and merged[-1][:3] == run[:3]:
            run = run._replace(num_replicas=run.num_replicas + merged.pop().num_replicas)
        merged.append(run)
    return tuple(merged)
