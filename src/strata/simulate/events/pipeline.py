"""One copy of a pipeline in one step: a process a stage, and one a link and direction that sends in order."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import simpy

from strata.arrays import Floats
from strata.fleet.fleet import Fleet, Pair
from strata.simulate.events.network import Network
from strata.simulate.order import CHUNKED, KINDS, StageWork, orders, target
from strata.simulate.pipeline_times import NO_HOP, PipelineTimes, operations_s, wrap_hop
from strata.simulate.timeline import NOTHING, Record, SpanKind
from strata.simulate.traffic import Hop
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan

Steps = Generator[simpy.Event, Any, Any]


@dataclass(slots=True)
class SharedState:
    """What all jobs share: the clock, the fleet, its links, and the record of what happened."""

    env: simpy.Environment
    fleet: Fleet
    network: Network
    record: Record


def answers(processes: Iterable[simpy.Process]) -> list[Any]:
    """Return what processes that have ended returned."""
    return [process.value for process in processes]


@dataclass(slots=True)
class Sender:
    """Whose messages these are, and whether they are still wanted: what has failed sends and records no more."""

    name: str
    priority: int
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Traits:
    """How a copy differs from its plan: `copies` it stands for, and factors on its times, [S, M, 2]."""

    copies: int
    factors: Floats
    suffix: str = ""


class PipelineRun:
    """Runs one copy. `last_backward` fires when all stages are at their last: the seconds left, and a cause."""

    def __init__(
        self,
        world: SharedState,
        sender: Sender,
        *,
        plan: TrainingPlan,
        pipeline: Pipeline,
        times: PipelineTimes,
        prefix: str,
        traits: Traits,
    ) -> None:
        self.world, self.sender, self.pipeline, self.times, self.traits = world, sender, pipeline, times, traits
        self.chunks = plan.virtual_stages if plan.schedule in CHUNKED else 1
        self.is_folded = plan.schedule is Schedule.DUAL_PIPE_V
        self.orders = orders(plan, pipeline)
        self.busy_s = operations_s(plan, times)
        self._done: dict[tuple[int, StageWork], simpy.Event] = {}
        self._arrived: dict[tuple[int, StageWork], simpy.Event] = {}
        self.lanes, self._links = self._announce(prefix)
        self.last_backward = world.env.event()
        self._ends: list[float] = []

    def start(self, cause: int) -> simpy.Process:
        """Start all processes after the span `cause`; returns one that ends with the last of them."""
        env = self.world.env
        for i, order in enumerate(self.orders):
            messages: dict[tuple[SpanKind | None, int], list[tuple[StageWork, StageWork]]] = {}
            for work in order:
                self._done[i, work.bare] = env.event()
                to = target(i, work, stages=len(self.orders), chunks=self.chunks, is_folded=self.is_folded)
                if to is not None:
                    # Folded, what goes to a neighbour shares a wire, whichever way through the model.
                    way = (None if self.is_folded else work.kind, to[0])
                    messages.setdefault(way, []).append((work, to[1]))
                    self._arrived[to] = env.event()
            for (_, to_stage), batches in messages.items():
                env.process(self._send(i, to_stage, batches))
        stages = [env.process(self._work(i, order, cause)) for i, order in enumerate(self.orders)]
        return env.process(self._last(stages))

    def _last(self, stages: Sequence[simpy.Process]) -> Steps:
        yield self.world.env.all_of(stages)
        return max(answers(stages), key=self.world.record.end_s)

    def _work(self, stage: int, order: Sequence[StageWork], last: int) -> Steps:
        """Do the work of a stage in order, each as soon as what it needs is here; returns the last span."""
        env = self.world.env
        ending = max(i for i, work in enumerate(order) if work.kind is SpanKind.BACKWARD)
        together: list[StageWork] = []
        for i, work in enumerate(order):
            together.append(work)
            arrived = self._arrived.get((stage, work.bare))
            # What is here already delayed nothing: the stage's own work before stays the cause.
            if arrived is not None and not arrived.processed:
                last = yield arrived
            if work.is_beside:
                continue
            start_s = env.now
            if i == ending:
                # What is left waits for nothing.
                self._end(start_s + sum(self._seconds(stage, left) for left in order[i:]), last)
            yield env.timeout(sum(self._seconds(stage, each) for each in together))
            last = self._draw(stage, together, start_s, last)
            for each in together:
                self._done[stage, each.bare].succeed(last)
            together.clear()
        return last

    def _draw(self, stage: int, together: Sequence[StageWork], start_s: float, last: int) -> int:
        """Record what a stage did until now, things done together one after another; returns the last span."""
        for work in together:
            end_s = self.world.env.now if work is together[-1] else start_s + self._seconds(stage, work)
            last = self._add(self.lanes[stage], work.kind, start_s, last, end_s=end_s, microbatch=work.microbatch)
            start_s = end_s
        return last

    def _seconds(self, stage: int, work: StageWork) -> float:
        row = len(KINDS) if work.is_whole else KINDS.index(work.kind)
        factor = self.traits.factors[stage, work.microbatch, int(work.kind is not SpanKind.FORWARD)]
        return float(self.busy_s[row, stage] * factor)

    def _end(self, end_s: float, cause: int) -> None:
        """Note that one more stage is at its last backward, and ends then."""
        self._ends.append(end_s)
        if len(self._ends) == len(self.orders):
            self.last_backward.succeed((max(self._ends) - self.world.env.now, cause))

    def _send(self, stage: int, to: int, messages: Sequence[tuple[StageWork, StageWork]]) -> Steps:
        """Send the results of a stage one after another: each holds the link, then travels on its own."""
        # One process a link and direction: it takes the messages in the order of the work, so a link that serves
        # first come, first served needs no queue.
        env, last = self.world.env, NOTHING
        hop, lane = self._hop(stage, to, messages[0][0].kind), self._links.get((stage, to))
        source, dest = self.pipeline.stages[stage].domain, self.pipeline.stages[to].domain
        for work, wanted in messages:
            done = self._done[stage, work.bare]
            if not done.processed:
                last = yield done
            if self.sender.is_stopped:
                return
            start_s, latency_s = env.now, hop.latency_s
            if lane is None:
                if hop.serial_s:
                    yield env.timeout(hop.serial_s)
            else:
                yield self._flow((source, dest), hop)
                latency_s *= self.world.network.latency_factor((source, dest))
                label = f"{'F' if work.kind is SpanKind.FORWARD else 'B'}{work.microbatch}"
                last = self._add(lane, SpanKind.TRANSFER, start_s, last, label=label, microbatch=work.microbatch)
            self._arrive(self._arrived[to, wanted], latency_s, last)

    def _arrive(self, arrived: simpy.Event, latency_s: float, number: int) -> None:
        if latency_s:
            self.world.env.timeout(latency_s, number).callbacks.append(arrived.trigger)
        else:
            arrived.succeed(number)

    def _flow(self, pair: Pair, hop: Hop) -> simpy.Event:
        """Start the flow of one message of every copy; a card or an uplink slower than the link limits it."""
        copies = self.traits.copies
        work_s = copies * self.world.fleet.links[pair].serialisation_s(hop.wan_bytes)
        return self.world.network.send(
            pair, work_s, owner=self.sender, size_bytes=copies * hop.wan_bytes, weight=copies,
            priority=self.sender.priority,
            limit=work_s / hop.least_s if hop.least_s > work_s else np.inf,
        )  # fmt: skip

    def _hop(self, stage: int, to: int, kind: SpanKind) -> Hop:
        if self.is_folded:
            return NO_HOP if to == stage else self.times.there[stage] if to > stage else self.times.back[to]
        hops = self.times.there if kind is SpanKind.FORWARD else self.times.back
        if abs(to - stage) == 1 and (to > stage) == (kind is SpanKind.FORWARD):
            return hops[min(stage, to)]
        return wrap_hop(hops)

    def _add(
        self, lane: str, kind: SpanKind, start_s: float, cause: int, *, end_s: float | None = None,
        label: str = "", microbatch: int = -1,
    ) -> int:  # fmt: skip
        if self.sender.is_stopped:
            return NOTHING
        span_s = (start_s, self.world.env.now if end_s is None else end_s)
        return self.world.record.add(lane, kind, span_s, cause=cause, label=label, microbatch=microbatch)

    def _announce(self, prefix: str) -> tuple[list[str], dict[tuple[int, int], str]]:
        """Return the lane of each stage, and of each wide-area link by the stages it joins."""
        record, names = self.world.record, [stage.domain for stage in self.pipeline.stages]
        suffix = self.traits.suffix
        crossings = [pair for a, b in pairwise(names) for pair in ((a, b), (b, a))]
        stages: list[str] = []
        links: dict[tuple[int, int], str] = {}
        for i, name in enumerate(names):
            stages.append(record.lane(f"{prefix}stage {i} ({name}){suffix}"))
            for here, there in ((i, i + 1), (i + 1, i)) if i + 1 < len(names) else ():
                pair = (names[here], names[there])
                if pair[0] != pair[1]:
                    # A pipeline that crosses the same link twice gets a lane for each crossing.
                    where = f" (stage {i})" if crossings.count(pair) > 1 else ""
                    links[here, there] = record.lane(f"{prefix}link {pair[0]}>{pair[1]}{where}{suffix}")
        return stages, links
