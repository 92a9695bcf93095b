"""Drives the live scheduler under virtual time: requests, heartbeats, failures in; its instructions carried out.

The same `Core` as in the gateway, the same events; only what happens on nodes is computed (`service.py`) instead
of done. Until 0, when the first request may come, planning and loading take no time: the cluster is up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from strata.decision import Reason
from strata.serving.layout import Layout
from strata.serving.live import events, instructions
from strata.serving.live.core import Core
from strata.serving.node import Node
from strata.serving.planning.allocation import Pipeline
from strata.serving.replay.fault_events import FaultEvent
from strata.serving.replay.path import ReplayAttempt, ReplayNode
from strata.serving.replay.record import CounterSnapshot, QueueSample, Record, SimulatedRequest
from strata.serving.replay.service import SimulatedService
from strata.serving.request import RequestSignal
from strata.serving.wire import StepSample
from strata.simulate.event_clock import EventClock
from strata.workload.requests import Request
from strata.workload.serving_job import STEP_TOKENS

WARM_UP_S: Final = 10.0
"""Virtual time before the first request: joins settle, the first plan is made and loaded."""


EVERY: Final = 4096
"""Steps between two signs of progress."""
GLANCES: Final = 200
"""How often the queue is looked at, for the picture."""


@dataclass(frozen=True, slots=True)
class ReplayEnvironment:
    """What the scheduler does not decide.

    layout_of: lines of a route, the truth of the replay; plan: answers `Replan`; load_s: time of a `Load` [s]
    beside ranges that the node holds.
    heartbeat_interval_s: as the scheduler's. plan_s: how long planning takes [s]. notice_s: from a node's death
    until those who wait for it notice the broken connection; infinite: only missing heartbeats tell.
    patience_s: how long a client waits for its first token. ttft_goal_s, tpot_goal_s: of each request.
    start_s, end_s: what is measured lies between them; arrivals end at the latter. drain_s: how long those that
    are there then may still take. context: cached tokens, for the samples that nodes send. step_tokens:
    of prompts, in one step.
    """

    layout_of: Callable[[Pipeline], Layout]
    plan: Callable[[instructions.Replan], events.Planned]
    load_s: Callable[[instructions.Load, Sequence[tuple[int, int]]], float]
    heartbeat_interval_s: float = 5.0
    plan_s: float = 0.1
    notice_s: float = 0.05
    patience_s: float = math.inf
    ttft_goal_s: float = math.inf
    tpot_goal_s: float = math.inf
    start_s: float = 0.0
    end_s: float = math.inf
    drain_s: float = 600.0
    context: float = 0.0
    step_tokens: int = STEP_TOKENS


@dataclass(slots=True)
class _Member:
    """Of a node: its present incarnation, whether it is up, and when its disk is free."""

    node: Node
    incarnation: int = 0
    is_in: bool = False
    free_s: float = -math.inf


class Replay:
    """One run. Deterministic: the same requests and happenings give the same record."""

    def __init__(
        self,
        scheduler: Core,
        nodes: Iterable[Node],
        requests: Iterable[Request],
        environment: ReplayEnvironment,
        *,
        fault_events: Iterable[FaultEvent] = (),
        absent: Collection[str] = (),
    ) -> None:
        self.record = Record()
        self.clock = EventClock(-WARM_UP_S)
        self.service = SimulatedService(
            self.clock,
            environment.layout_of,
            step_tokens=environment.step_tokens,
            first_token=self._first_token,
            finished=self._finished,
        )
        self.waiting: dict[str, SimulatedRequest] = {}
        self.refusals: list[Reason] = []
        self.batch_cuts: list[Reason] = []
        self.has_planned = False
        self.num_evicted = self.num_plans = self.num_loads = 0
        self.marks: list[CounterSnapshot] = []
        self.queue_samples: list[QueueSample] = []
        self._scheduler, self._environment = scheduler, environment
        self._requests: Iterator[Request] = iter(requests)
        self._nodes = {node.node_id: _Member(node) for node in nodes}
        self._unfinished: dict[str, SimulatedRequest] = {}
        self._attempts: dict[str, ReplayAttempt] = {}
        self._count = 0
        self._is_fed = False
        self._tick_s = math.inf
        for number, name in enumerate(sorted(self._nodes.keys() - set(absent))):
            self.clock.at(-WARM_UP_S, self._join, name, number / len(self._nodes))
        for fault_event in sorted(fault_events, key=lambda event: (event.at_s, event.kind, event.node_id)):
            self.clock.at(fault_event.at_s, self._happen, fault_event)
        self.clock.at(environment.start_s, self._mark)
        self.clock.at(environment.end_s, self._mark)
        self.clock.at(0.0 if environment.end_s < math.inf else math.inf, self._glance)
        self._feed()

    def run(self, advance: Callable[[float], None] = lambda _now_s: None) -> bool:
        """Run to the end; False where an interrupt stopped it. `advance` hears the time now and then."""
        try:
            for number in count(1):
                if self.is_over or not self.clock.step():
                    break
                if not number % EVERY:
                    advance(self.clock.now)
        except KeyboardInterrupt:
            return False
        finally:
            self.service.integrate()
        return True

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to come or to wait for, and what is measured has been."""
        now_s, environment = self.clock.now, self._environment
        if self._is_fed and not self._unfinished:
            return environment.end_s == math.inf or len(self.marks) > 1
        return now_s > environment.end_s + environment.drain_s

    def close(self) -> None:
        """Note what has not ended as unfinished, and where the counters stand if the end never came.

        Where not even the start came, all there is counts.
        """
        if not self.marks:
            self.marks.append(CounterSnapshot(min(0.0, self.clock.now), {}, {}))
        while len(self.marks) < 2:
            self._mark()
        for simulated in self._unfinished.values():
            self.record.add(simulated, "unfinished", self.clock.now)
        self._unfinished.clear()

    # -- what is measured

    def _mark(self) -> None:
        self.service.integrate()
        busy_s = {name: machine.busy_s for name, machine in self.service.machines.items()}
        paths = {
            stages: (path.passed_tokens, path.decode_s, path.decode_hop_s)
            for stages, path in self.service.paths.items()
        }
        self.marks.append(CounterSnapshot(self.clock.now, busy_s, paths))

    def _glance(self) -> None:
        running: dict[Pipeline, int] = {}
        for attempt in self._attempts.values():
            running[attempt.route.stages] = running.get(attempt.route.stages, 0) + 1
        self.queue_samples.append(QueueSample(self.clock.now, len(self.waiting), running))
        self.clock.at(self.clock.now + self._environment.end_s / GLANCES, self._glance)

    # -- what happens

    def _feed(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._is_fed = True
        else:
            self.clock.at(request.at_s, self._arrive, request)

    def _arrive(self, request: Request) -> None:
        self._feed()
        self._count += 1
        name, environment = f"r{self._count}", self._environment
        self._unfinished[name] = self.waiting[name] = SimulatedRequest(request, name)
        signal = RequestSignal(
            name,
            prompt_tokens=request.prompt_tokens,
            max_tokens=request.output_tokens,
            blocks=request.blocks,
            ttft_goal_s=environment.ttft_goal_s,
            tpot_goal_s=environment.tpot_goal_s,
        )
        if environment.patience_s < math.inf:
            self.clock.at(self.clock.now + environment.patience_s, self._give_up, name)
        self._tell(events.Arrive(signal))

    def _give_up(self, name: str) -> None:
        simulated = self._unfinished.get(name)
        if simulated is not None and math.isnan(simulated.first_token_s):
            self._end(name)
            self.record.add(simulated, "cancelled", self.clock.now)
            self._tell(events.Cancelled(name))

    def _first_token(self, attempt: ReplayAttempt) -> None:
        simulated = self._unfinished[attempt.request_id]
        if math.isnan(simulated.first_token_s):
            simulated.first_token_s = self.clock.now
        self._tell(events.FirstToken(attempt.request_id, attempt.number))

    def _finished(self, attempt: ReplayAttempt) -> None:
        simulated = self._end(attempt.request_id)
        self.record.add(simulated, "served", self.clock.now)
        self._tell(events.Finished(attempt.request_id, attempt.number, simulated.request.output_tokens))

    def _end(self, name: str) -> SimulatedRequest:
        """Forget a request, and stop it where it still runs."""
        attempt = self._attempts.pop(name, None)
        if attempt is not None and attempt.state != "over":
            self.service.stop(attempt)
        self.waiting.pop(name, None)
        return self._unfinished.pop(name)

    def _happen(self, fault_event: FaultEvent) -> None:
        name = fault_event.node_id
        member = self._nodes[name]
        if fault_event.kind == "join":
            if not member.is_in:
                self._join(name, 0.0)
        elif fault_event.kind == "slow":
            if member.is_in:
                self.service.change(name, factor=fault_event.factor)
        elif member.is_in:
            member.is_in = False
            self.service.change(name, is_up=False)
            if fault_event.kind == "leave":
                self._tell(events.Leave(name, member.incarnation))
            for attempt in list(self._attempts.values()):
                self._watch(attempt)

    def _join(self, name: str, share: float) -> None:
        member = self._nodes[name]
        member.incarnation, member.is_in, member.free_s = member.incarnation + 1, True, -math.inf
        self.service.add(name)
        self._tell(events.Join(member.node, member.incarnation))
        heartbeat_s = self.clock.now + self._environment.heartbeat_interval_s * (share or 1.0)
        self.clock.at(heartbeat_s, self._heartbeat, name, member.incarnation)

    def _heartbeat(self, name: str, incarnation: int) -> None:
        member = self._nodes[name]
        if not member.is_in or member.incarnation != incarnation:
            return
        machine = self.service.machines[name]
        self._tell(events.Heartbeat(name, incarnation, frozenset(machine.heads), samples=self._samples(machine)))
        self.clock.at(self.clock.now + self._environment.heartbeat_interval_s, self._heartbeat, name, incarnation)

    def _samples(self, machine: ReplayNode) -> tuple[StepSample, ...]:
        """Return what the node would have measured of the steps it does now."""
        samples, context = [], self._environment.context
        for stage, server in machine.servers.items():
            if server.count:
                units = max(1, round(server.count / server.rounds))
                if server.lines.curve is not None:
                    context = server.context_tokens / server.count
                seconds = machine.factor * server.lines.decode_s(units, units * context)
                samples.append(StepSample("decode", stage.first, stage.end, units, context, seconds))
        if machine.reading:
            first = machine.reading[0]
            stage = next(candidate for candidate in first.route.stages if candidate.node_id == machine.node_id)
            seconds = machine.factor * machine.servers[stage].lines.prefill.at(first.read_tokens)
            samples.append(StepSample("prefill", stage.first, stage.end, first.read_tokens, 0.0, seconds))
        return tuple(samples)

    def _watch(self, attempt: ReplayAttempt) -> None:
        """Let whoever waits for a dead node notice."""
        for stage in attempt.route.stages:
            if not self._nodes[stage.node_id].is_in:
                self.clock.at(self.clock.now + self._environment.notice_s, self._notice, attempt, stage.node_id)
                return

    def _notice(self, attempt: ReplayAttempt, node_id: str) -> None:
        if attempt.state != "over":
            simulated = self._break_off(attempt)
            self._tell(events.Failed(attempt.request_id, attempt.number, simulated.generated, node_id))

    def _break_off(self, attempt: ReplayAttempt) -> SimulatedRequest:
        simulated = self._unfinished[attempt.request_id]
        del self._attempts[attempt.request_id]
        simulated.generated += self.service.stop(attempt)
        simulated.interruptions += 1
        self.waiting[attempt.request_id] = simulated
        return simulated

    def _tick(self, due_s: float) -> None:
        if due_s == self._tick_s:
            self._tick_s = math.inf
            self._tell(events.Tick())

    # -- what the scheduler wants

    def _tell(self, event: events.Event) -> None:
        now_s = self.clock.now
        for instruction in self._scheduler.handle(event, now_s):
            self._obey(instruction)
        wake_s = self._scheduler.next_wake_s(now_s)
        if wake_s is not None and wake_s < self._tick_s:
            self._tick_s = wake_s
            self.clock.at(wake_s, self._tick, wake_s)

    def _obey(self, instruction: instructions.Instruction) -> None:
        now_s, is_warm = self.clock.now, self.clock.now >= 0
        match instruction:
            case instructions.Dispatch():
                self._dispatch(instruction)
            case instructions.Abort(request_id=name, attempt=number):
                attempt = self._attempts.get(name)
                if attempt is not None and attempt.number == number:
                    self._break_off(attempt)
            case instructions.Reject(request_id=name, reason=reason):
                simulated = self._end(name)
                if self._environment.start_s <= simulated.request.at_s < self._environment.end_s:
                    self.refusals.append(reason)
                self.record.add(simulated, "rejected", now_s)
            case instructions.Replan():
                self.num_plans += 1
                planned = self._environment.plan(instruction)
                self.batch_cuts += [reason for reason in planned.reasons if reason.token == "batch-cut"]
                self.clock.at(now_s + self._environment.plan_s * is_warm, self._tell, planned)
            case instructions.Load(node_id=name, version=version):
                member = self._nodes[name]
                self.num_loads += is_warm
                self.has_planned = True
                held = [(first, end) for other, first, end in self._scheduler.desired(name) if other != version]
                load_s = self._environment.load_s(instruction, held)
                member.free_s = max(now_s, member.free_s) + load_s * is_warm
                self.clock.at(member.free_s, self._loaded, events.Loaded(name, member.incarnation, version))
            case instructions.EvictNode():
                self.num_evicted += 1
            case instructions.RejectJoin(node_id=name, incarnation=incarnation):
                member = self._nodes[name]
                if member.is_in and member.incarnation == incarnation:
                    self.clock.at(now_s, self._join, name, 0.0)
            case instructions.Release():
                pass  # memory is the scheduler's to keep; nothing runs on what it releases

    def _dispatch(self, instruction: instructions.Dispatch) -> None:
        name, route = instruction.request_id, instruction.route
        simulated = self._unfinished[name]
        assert name not in self._attempts, f"{name} is sent while it runs"
        self.waiting.pop(name, None)
        if math.isnan(simulated.sent_s):
            simulated.sent_s = self.clock.now
        tokens = simulated.request.prompt_tokens + simulated.generated
        attempt = ReplayAttempt(
            name,
            instruction.attempt,
            route,
            read_tokens=max(1, tokens - route.cached_tokens),
            new_tokens=simulated.request.output_tokens - simulated.generated,
            cached_tokens=min(route.cached_tokens, tokens - 1),
        )
        self._attempts[name] = attempt
        self.service.start(attempt)
        self._watch(attempt)

    def _loaded(self, event: events.Loaded) -> None:
        member = self._nodes[event.node_id]
        if member.is_in and member.incarnation == event.incarnation:
            self._tell(event)
