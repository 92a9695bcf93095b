"""How nodes serve what is sent to them: continuous batching on pipelines, by the lines of a layout.

*Decode*: the n sequences of a path with S stages run as m = min(S, n) microbatches, as in vLLM and SGLang. A step
takes as long as its slowest node is busy with all of them, or as one microbatch takes around the ring, whichever
is longer. All sequences of a path go forward at that pace, which only changes when something comes, goes, fails
or slows down; between such moments tokens are a line over time and are integrated exactly.

*Prefill*: one prompt at a time on the path's slowest node, first come, first served; the other stages and the
hops add their time once. It is cut into chunks that ride along with decode steps (Sarathi-Serve, arXiv
2403.02310): a node spends on prefill what decode leaves of a step, and at least one chunk a step, by which the
step gets longer. Prefill on the other nodes does not slow decode: an approximation.

What the router has let in runs: slots and KV memory are its business. A node's factor stretches all its times.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from strata.serving.layout import Layout, Line, Route, StageServer
from strata.serving.planning.allocation import Pipeline, Stage
from strata.simulate.event_clock import EventClock

CHUNK_TOKENS: Final = 512
"""Tokens of a prompt that ride along with one decode step (Sarathi-Serve's middle setting; assumed)."""
_CLOSE: Final = 1e-6
"""A token that is so nearly there is there."""


@dataclass(slots=True, eq=False)
class ReplayAttempt:
    """A request on a route: tokens to read, tokens to generate, and how far it is.

    target: where the path's count of tokens will stand when it is done. work_s: prefill that is left, chunk_s: of
    one chunk of it; onward_s: from there to the first token.
    """

    request_id: str
    number: int
    route: Route
    read_tokens: int
    new_tokens: int
    state: Literal["reading", "passing", "decoding", "over"] = "reading"
    path: Path | None = None
    reader: ReplayNode | None = None
    work_s: float = 0.0
    chunk_s: float = 0.0
    onward_s: float = 0.0
    target: float = 0.0


@dataclass(slots=True, eq=False)
class _Server:
    """A range of layers on a machine and the sequences it decodes; `depth`: stages of its pipeline."""

    lines: StageServer
    depth: int
    count: int = 0

    @property
    def rounds(self) -> int:
        return min(self.depth, self.count)


@dataclass(slots=True, eq=False)
class ReplayNode:
    """One node: what it decodes and reads, and how busy it was; `heads` are requests whose route begins here."""

    node_id: str
    is_up: bool = True
    factor: float = 1.0
    servers: dict[Stage, _Server] = field(default_factory=dict)
    paths: dict[Path, None] = field(default_factory=dict)
    reading: deque[ReplayAttempt] = field(default_factory=deque)
    heads: dict[str, None] = field(default_factory=dict)
    work_s: float = 0.0
    chunk_s: float = 0.0
    share: float = 0.0
    load: float = 0.0
    busy_s: float = 0.0
    since_s: float = 0.0
    timing: int = 0

    def integrate(self, now_s: float) -> None:
        """Move on to now at the pace of the last retiming."""
        passed_s, self.since_s = now_s - self.since_s, now_s
        self.busy_s += passed_s * self.load
        if self.reading:
            self.reading[0].work_s -= passed_s * self.share


@dataclass(slots=True, eq=False)
class Path:
    """A chain of stages that requests run along. `tokens` counts what each of its sequences has generated."""

    stages: Pipeline
    servers: tuple[StageServer, ...]
    machines: tuple[ReplayNode, ...]
    ring: Line
    onward: Line
    closing: Line
    count: int = 0
    tokens: float = 0.0
    step_s: float = 0.0
    hop_s: float = 0.0
    since_s: float = 0.0
    timing: int = 0
    targets: list[tuple[float, int, ReplayAttempt]] = field(default_factory=list)
    number: int = 0
    passed_tokens: float = 0.0
    decode_s: float = 0.0
    decode_hop_s: float = 0.0

    def integrate(self, now_s: float) -> None:
        """Move on to now at the pace of the last retiming."""
        passed_s, self.since_s = now_s - self.since_s, now_s
        if self.step_s and self.count:
            steps = passed_s / self.step_s
            self.tokens += steps
            self.passed_tokens += steps * self.count
            self.decode_s += passed_s * self.count
            self.decode_hop_s += steps * self.hop_s * self.count

    def retime(self) -> None:
        """Find how long a step takes now; 0 where it never ends."""
        self.step_s = self.hop_s = 0.0
        if not self.count or not all(machine.is_up for machine in self.machines):
            return
        slowest_s = chain_s = 0.0
        for machine, stage in zip(self.machines, self.stages, strict=True):
            server = machine.servers[stage]
            slowest_s = max(slowest_s, machine.work_s + machine.chunk_s)
            chain_s += machine.factor * server.lines.decode.at(server.count / server.rounds)
        self.hop_s = self.ring.at(self.count / min(len(self.stages), self.count))
        self.step_s = max(slowest_s, chain_s + self.hop_s)


Around = tuple[dict[Path, None], dict[ReplayNode, None]]
"""Paths and machines that set each other's pace, in an order that repeats."""


class SimulatedService:
    """All nodes and paths. Says `first_token` and `finished` of the attempts it was given."""

    def __init__(
        self,
        clock: EventClock[float],
        layout_of: Callable[[Pipeline], Layout],
        *,
        first_token: Callable[[ReplayAttempt], None],
        finished: Callable[[ReplayAttempt], None],
    ) -> None:
        self.machines: dict[str, ReplayNode] = {}
        self.paths: dict[Pipeline, Path] = {}
        self._clock, self._layout_of = clock, layout_of
        self._first_token, self._finished = first_token, finished

    def add(self, node_id: str) -> ReplayNode:
        """Return the machine of a node, a new one where it is not known or was down."""
        machine = self.machines.get(node_id)
        if machine is None:
            machine = self.machines[node_id] = ReplayNode(node_id, since_s=self._clock.now)
        elif not machine.is_up:
            self.change(node_id, is_up=True, factor=1.0)
        return machine

    def change(self, node_id: str, *, is_up: bool = True, factor: float | None = None) -> None:
        """Let a node die, come back or slow down. What runs on a dead one stands still until it is stopped."""
        machine = self.machines[node_id]
        around = self._settle((machine,))
        machine.is_up = is_up
        if factor is not None:
            for attempt in machine.reading:
                attempt.work_s *= factor / machine.factor
            machine.factor = factor
        self._retime(around)

    def start(self, attempt: ReplayAttempt) -> None:
        """Take an attempt in; it waits for its prefill."""
        path = attempt.path = self._path(attempt.route.stages)
        path.machines[0].heads[attempt.request_id] = None
        works = [
            machine.factor * server.prefill.at(attempt.read_tokens)
            for machine, server in zip(path.machines, path.servers, strict=True)
        ]
        slowest = works.index(max(works))
        reader = attempt.reader = path.machines[slowest]
        attempt.work_s = works[slowest]
        for machine, work_s in zip(path.machines, works, strict=True):
            machine.busy_s += work_s if machine is not reader else 0.0
        attempt.chunk_s = attempt.work_s * min(1.0, CHUNK_TOKENS / attempt.read_tokens)
        attempt.onward_s = sum(works) - attempt.work_s + path.onward.at(attempt.read_tokens) + path.closing.at(1)
        path.passed_tokens += attempt.read_tokens
        around = self._settle((reader,))
        reader.reading.append(attempt)
        self._retime(around)

    def stop(self, attempt: ReplayAttempt) -> int:
        """End an attempt wherever it is; returns the tokens it has generated."""
        path, reader = attempt.path, attempt.reader
        assert path is not None
        assert reader is not None
        assert attempt.state != "over"
        was, attempt.state = attempt.state, "over"
        path.machines[0].heads.pop(attempt.request_id, None)
        if was == "reading":
            around = self._settle((reader,))
            reader.reading.remove(attempt)
            self._retime(around)
        if was != "decoding":
            return 0
        around = self._settle(path.machines)
        left = max(1, math.ceil(attempt.target - path.tokens - _CLOSE))
        self._leave(path)
        self._retime(around)
        return attempt.new_tokens - left

    def integrate(self) -> None:
        """Bring all counters up to now."""
        self._settle(self.machines.values())

    # -- prefill

    def _read(self, machine: ReplayNode, timing: int) -> None:
        if timing != machine.timing or not machine.reading:
            return
        around = self._settle((machine,))
        attempt = machine.reading.popleft()
        attempt.state = "passing"
        self._retime(around)
        self._clock.at(self._clock.now + attempt.onward_s, self._passed, attempt)

    def _passed(self, attempt: ReplayAttempt) -> None:
        path = attempt.path
        assert path is not None
        if attempt.state != "passing" or not all(machine.is_up for machine in path.machines):
            return
        if attempt.new_tokens > 1:
            attempt.state = "decoding"
            around = self._settle(path.machines)
            around[0][path] = None
            path.count += 1
            for machine, stage in zip(path.machines, path.stages, strict=True):
                machine.paths[path] = None
                machine.servers[stage].count += 1
            attempt.target = path.tokens + attempt.new_tokens - 1
            path.number += 1
            heapq.heappush(path.targets, (attempt.target, path.number, attempt))
            self._retime(around)
        self._first_token(attempt)
        if attempt.new_tokens == 1 and attempt.state == "passing":
            self._end(path, attempt)

    # -- decode

    def _step(self, path: Path, timing: int) -> None:
        if timing != path.timing:
            return
        around = self._settle(path.machines)
        done = []
        while path.targets and (path.targets[0][2].state == "over" or path.targets[0][0] <= path.tokens + _CLOSE):
            attempt = heapq.heappop(path.targets)[2]
            if attempt.state == "decoding":
                done.append(attempt)
        for _ in done:
            self._leave(path)
        self._retime(around)
        for attempt in done:
            self._end(path, attempt)

    def _end(self, path: Path, attempt: ReplayAttempt) -> None:
        attempt.state = "over"
        path.machines[0].heads.pop(attempt.request_id, None)
        self._finished(attempt)

    @staticmethod
    def _leave(path: Path) -> None:
        """Take one decoding sequence off a path that is settled."""
        path.count -= 1
        for machine, stage in zip(path.machines, path.stages, strict=True):
            machine.servers[stage].count -= 1
            if not path.count:
                machine.paths.pop(path, None)

    # -- pace

    def _path(self, stages: Pipeline) -> Path:
        path = self.paths.get(stages)
        if path is None:
            layout = self._layout_of(stages)
            servers = {server.node_id: server for server in layout.servers}
            names = [stage.node_id for stage in stages]
            machines = tuple(self.machines[name] for name in names)
            closing = layout.hop(names[-1], names[0])
            ring = layout.ring(names)
            onward = Line(ring.fixed_s - closing.fixed_s, ring.per_unit_s - closing.per_unit_s)
            path = self.paths[stages] = Path(
                stages, tuple(servers[name] for name in names), machines, ring, onward, closing,
                since_s=self._clock.now,
            )  # fmt: skip
            for machine, stage, server in zip(machines, stages, path.servers, strict=True):
                machine.servers.setdefault(stage, _Server(server, len(stages)))
        return path

    def _settle(self, changed: Iterable[ReplayNode]) -> Around:
        """Integrate up to now, before anything changes; returns what will have to be timed anew then."""
        machines = dict.fromkeys(changed)
        paths = {path: None for machine in machines for path in machine.paths}
        now_s = self._clock.now
        for path in paths:
            path.integrate(now_s)
            for machine in path.machines:
                machines[machine] = None
        for machine in machines:
            machine.integrate(now_s)
        return paths, machines

    def _retime(self, around: Around) -> None:
        """Find the new pace and what will end first; to be called after anything has changed."""
        paths, machines = around
        now_s, clock = self._clock.now, self._clock
        for machine in machines:
            machine.work_s = machine.chunk_s = 0.0
            for server in machine.servers.values():
                if server.count:
                    line = server.lines.decode
                    work_s = server.rounds * line.fixed_s + line.per_unit_s * server.count
                    machine.work_s += machine.factor * work_s
            if machine.reading:
                machine.chunk_s = machine.reading[0].chunk_s
        for path in paths:
            path.since_s = now_s
            path.retime()
            path.timing += 1
            while path.targets and path.targets[0][2].state == "over":
                heapq.heappop(path.targets)
            if path.step_s and path.targets:
                left = max(0.0, path.targets[0][0] - path.tokens)
                clock.at(now_s + left * path.step_s, self._step, path, path.timing)
        for machine in machines:
            step_s = min((path.step_s for path in machine.paths if path.step_s), default=0.0)
            machine.load = min(1.0, machine.work_s / step_s) if step_s else 0.0
            machine.timing += 1
            if machine.reading and machine.is_up:
                machine.share, machine.load = 1.0 - machine.load, 1.0
                work_s = machine.reading[0].work_s
                left_s = work_s / machine.share if work_s > 0 else 0.0
                clock.at(now_s + left_s, self._read, machine, machine.timing)
            else:
                machine.share = 0.0
