"""What can hold one copy of the model: a domain, or the chain of a region's domains; and how fast it works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strata.simulate.order import ORDERED
from strata.simulate.pipeline_times import stack
from strata.simulate.screening import one_f_one_b_s, path_s, stage_bounds_s
from strata.training.plan.exact.config import CommonConfig, ParallelConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.rows import build_chain
from strata.training.plan.exact.shapes import Shapes, Unit
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan

MANY: Final = 10**9
"""Microbatches without end."""

FASTEST: Final = 24
"""Inner shapes of a unit that are considered: those that could work through most samples per second."""


@dataclass(frozen=True, slots=True)
class Inner:
    """One way to run a unit. A step of M microbatches per copy takes about after + max(path, before + M × work) of
    the largest of `paces_s`: what stages take that work in turn (see `simulate.splits`)."""

    plan: TrainingPlan
    path_s: float
    after_s: float
    closing_s: float
    """Of what is after, this starts when all units are done: updates, and what ZeRO gathers then."""
    every_s: float
    """Time between microbatches in steady state, waits for the links of a chain included."""
    hidden_s: float
    """How much of a gradient sum between units the last backward can hide: that of the shortest stage."""
    paces_s: tuple[tuple[float, float], ...]
    """What comes before and after all microbatches at a pace, and that pace; without those that others exceed."""
    room: int = MANY
    """Microbatches of a copy that its memory is planned for: of more, more would be in flight."""
    config: ParallelConfig | None = None

    @property
    def samples(self) -> int:
        """Samples one microbatch of every copy makes together."""
        return self.plan.microbatch_size * self.plan.pipelines[0].replicas

    @property
    def fill_s(self) -> float:
        """Time of the first microbatch, and of what follows the last before the closing."""
        return self.path_s + self.after_s - self.closing_s

    def least_s(self, microbatches: int) -> float:
        """Return about how long so many microbatches per copy take."""
        busy_s = max(before + microbatches * work for before, work in self.paces_s)
        return self.after_s + max(self.path_s, busy_s)


class Units:
    """The inner shapes of every unit, built once for each `CommonConfig`."""

    def __init__(self, problem: Problem, *, fastest: int = FASTEST, is_thorough: bool = True) -> None:
        """Consider the `fastest` shapes of a unit that fit; `is_thorough`: split for few microbatches, too."""
        self.problem, self.fastest, self.is_thorough, self.shapes = problem, fastest, is_thorough, Shapes(problem)
        self._like: dict[tuple[object, CommonConfig], list[Inner]] = {}
        self._of_setting: dict[object, list[Inner]] = {}
        self._split: dict[tuple[object, ParallelConfig, int], list[TrainingPlan]] = {}

    def inners(self, unit: Unit, common: CommonConfig) -> list[Inner]:
        """Return `inners_of_kind` with the name of the unit's domain."""
        like, name = self.inners_of_kind(unit, common), self.problem.fleet.domains[unit[0]].name
        if len(unit) > 1:
            return like
        return [
            replace(inner, plan=replace(inner.plan, pipelines=(moved(inner.plan.pipelines[0], name),)))
            for inner in like
        ]

    def inners_of_kind(self, unit: Unit, common: CommonConfig) -> list[Inner]:
        """Return the fastest ways to run a unit that fit memory, none where it cannot hold the model.

        They may have the name of another unit of its kind: their times are the same.
        """
        kind = (self.kind(unit), common)
        if kind not in self._like:
            self._like[kind] = list(self._ways(unit, common))
        return self._like[kind]

    def kind(self, unit: Unit) -> object:
        """Return what makes units interchangeable: everything of a single domain but its name and price."""
        if len(unit) > 1:
            return unit
        domain = self.problem.fleet.domains[unit[0]]
        return replace(domain, name="", region="", price_usd_per_device_hour=None)

    def _ways(self, unit: Unit, common: CommonConfig) -> Iterator[Inner]:
        num_fitting = 0
        for config in self.shapes.fastest_first(unit, common):
            inners = self.of_setting(unit, config)
            yield from inners
            num_fitting += bool(inners)
            if num_fitting == self.fastest:
                return

    def of_setting(self, unit: Unit, config: ParallelConfig) -> list[Inner]:
        """Return the ways to run a unit of this kind in one setting, none where it cannot hold the model.

        Where memory asks for recomputation, those come with them whose layers are split for 1, 2, 4, …
        microbatches alone: fewer are in flight, and less is recomputed in another split.
        """
        key = (self.kind(unit), config, self.is_thorough)
        # What runs in one domain does not depend on the links between domains.
        known = self._of_setting if len(unit) > 1 else self.problem.inner_shapes
        if key not in known:
            plans = self._built(unit, config, self.problem.job.global_batch)
            inners = [self._timed(plan) for plan in plans]
            again = (plan for plan in plans if plan.recompute is not config.recompute)
            first, deepest = 1, max((len(plan.pipelines[0].stages) for plan in again), default=0)
            while first < deepest and self.is_thorough:
                inners += [replace(self._timed(plan), room=first) for plan in self._built(unit, config, first)]
                first *= 2
            known[key] = [replace(inner, config=config) for inner in inners]
        return known[key]

    def split_for(self, unit: Unit, inner: Inner, microbatches: int) -> TrainingPlan:
        """Return a shape of a unit with its layers split as is best for so many microbatches a copy."""
        assert inner.config is not None, "shapes of units are of a setting"
        if len(inner.plan.pipelines[0].stages) == 1:
            return inner.plan
        key = (self.kind(unit), inner.config, microbatches)
        if key not in self._split:
            self._split[key] = self._built(unit, inner.config, microbatches) or [inner.plan]
        like = [plan for plan in self._split[key] if plan.schedule is inner.plan.schedule]
        return min(like, key=lambda plan: self.problem.model.bounds_s([plan])[0], default=inner.plan)

    def _built(self, unit: Unit, config: ParallelConfig, microbatches: int) -> list[TrainingPlan]:
        # All units follow one schedule, whose bounds are those of whole stages.
        whole = tuple(schedule for schedule in self.problem.job.schedules if schedule not in ORDERED)
        if not self.is_thorough and Schedule.ONE_F_ONE_B in whole and len(unit) == 1:
            whole = (Schedule.ONE_F_ONE_B,)
        return list(build_chain(self.problem, config, unit, microbatches=microbatches, schedules=whole))

    def _timed(self, plan: TrainingPlan) -> Inner:
        model, pipeline = self.problem.model, plan.pipelines[0]
        times = model.times(plan, pipeline)
        messages = [hop.serial_s for hop in (*times.there, *times.back)]
        stacked = stack([times])
        before, work = (each[0] for each in stage_bounds_s(stacked))
        period_s, way_s = max(float(work.max()), *messages, 0.0), float(path_s(stacked)[0])
        pace_s = max(*times.forward_s, *times.backward_s, *messages)
        every_s, paces = period_s, [(way_s - pace_s, pace_s), *zip(before.tolist(), work.tolist(), strict=True)]
        if len(plan.domains) > 1 and plan.schedule is not Schedule.GPIPE:
            warmup = np.array([stage.warmup for stage in pipeline.stages], dtype=float)
            whole_s = float(one_f_one_b_s(stacked, pipeline.microbatches, warmup)[0])
            every_s = max(period_s, (whole_s - way_s) / max(1, pipeline.microbatches - 1))
            paces = [(way_s - every_s, every_s)]
        elif plan.schedule is not Schedule.GPIPE:
            ahead = np.array([stage.warmup for stage in pipeline.stages])
            # Between two stages in a row are two microbatches, which go through both in a round trip.
            trips = before[1:] + work[1:] - before[:-1]
            for each_s, later, below in (
                (work, ahead * work, way_s - before - work),
                (trips / 2, (ahead[:-1] - 1) * trips / 2, (way_s - before - work)[1:]),
            ):
                paces += zip(
                    (way_s + np.minimum(below, later) - later - each_s).tolist(), each_s.tolist(), strict=True
                )
            every_s = float((trips / 2).max(initial=every_s))
        return Inner(
            plan,
            path_s=way_s,
            after_s=times.closing_s + times.sync_s,
            closing_s=times.closing_s,
            every_s=every_s,
            hidden_s=min(times.backward_s),
            paces_s=_unexceeded(paces),
        )


def _unexceeded(paces: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return those that no others exceed for all numbers of microbatches; the last is the slowest."""
    kept: list[tuple[float, float]] = []
    for pace in sorted(paces, reverse=True):
        if pace[1] <= (kept[-1][1] if kept else 0.0):
            continue
        while len(kept) > 1 and _equal_at(kept[-2], pace) <= _equal_at(*kept[-2:]):
            kept.pop()
        kept.append(pace)
    return tuple(kept)


def _equal_at(early: tuple[float, float], late: tuple[float, float]) -> float:
    """Return of how many microbatches the slower pace takes as long as one with more before them."""
    return (early[0] - late[0]) / (late[1] - early[1])


def moved(pipeline: Pipeline, domain: str) -> Pipeline:
    """Return the pipeline of one domain in another one of its kind."""
    return replace(pipeline, stages=tuple(replace(stage, domain=domain) for stage in pipeline.stages))
