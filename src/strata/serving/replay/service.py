"""How nodes serve what is sent to them: continuous batching on pipelines, by the lines of a layout.

*Decode*: the n sequences of a path with S stages run as m = min(S, n) microbatches, as in vLLM and SGLang. A step
takes as long as its slowest node is busy with all of them, or as one microbatch takes around the ring, whichever
is longer. All sequences of a path go forward at that pace, which only changes when something comes, goes, fails
or slows down; between such moments tokens are a line over time and are integrated exactly.

Steps get longer as sequences do: by the tokens cached, where the layout says what one takes.

*Prefill*: on the path's slowest node, first come, first served; the other stages and the hops add their time once.
A step has room for `step_tokens` of prompts, of several where they are short (Sarathi-Serve, arXiv 2403.02310): a
node spends on prefill what decode leaves of a step, and at least these tokens a step, by which the step gets
longer. What a step of prompts takes besides its tokens (weights are read) is decode's already where it decodes.
Prefill on the other nodes does not slow decode: an approximation.

What the router has let in runs: slots and KV memory are its business. A node's factor stretches all its times.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from typing import Final

from strata.serving.layout import Layout, Line
from strata.serving.planning.allocation import Pipeline
from strata.serving.replay.path import Path, ReplayAttempt, ReplayNode, ReplayServer
from strata.simulate.event_clock import EventClock
from strata.workload.serving_job import STEP_TOKENS

_CLOSE: Final = 1e-6
"""A token that is so nearly there is there."""
_STRETCH: Final = 0.01
"""Share by which a step may get longer, with what it caches, until it is timed anew."""


Around = tuple[dict[Path, None], dict[ReplayNode, None]]
"""Paths and machines that set each other's pace, in an order that repeats."""


class SimulatedService:
    """All nodes and paths. Says `first_token` and `finished` of the attempts it was given."""

    def __init__(
        self,
        clock: EventClock[float],
        layout_of: Callable[[Pipeline], Layout],
        *,
        step_tokens: int = STEP_TOKENS,
        first_token: Callable[[ReplayAttempt], None],
        finished: Callable[[ReplayAttempt], None],
    ) -> None:
        self.machines: dict[str, ReplayNode] = {}
        self.paths: dict[Pipeline, Path] = {}
        self._clock, self._layout_of, self._step_tokens = clock, layout_of, step_tokens
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
        attempt.left_tokens = attempt.read_tokens
        attempt.alone_s, attempt.token_s = path.servers[slowest].prefill
        for machine, work_s in zip(path.machines, works, strict=True):
            machine.busy_s += work_s if machine is not reader else 0.0
        attempt.onward_s = sum(works) - works[slowest] + path.onward.at(attempt.read_tokens) + path.closing.at(1)
        attempt.onward_s += path.servers[0].request_s
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
        self._leave(path, attempt)
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
        # Tokens leave when their step ends, and prompts come in the midst of one.
        onward_s = attempt.onward_s + 0.5 * (machine.work_s + machine.chunk_s if machine.work_s else 0.0)
        self._clock.at(self._clock.now + onward_s, self._passed, attempt)

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
            path.context_tokens += attempt.cached_tokens + attempt.read_tokens
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
        for attempt in done:
            self._leave(path, attempt)
        self._retime(around)
        for attempt in done:
            self._end(path, attempt)

    def _end(self, path: Path, attempt: ReplayAttempt) -> None:
        attempt.state = "over"
        path.machines[0].heads.pop(attempt.request_id, None)
        self._finished(attempt)

    @staticmethod
    def _leave(path: Path, attempt: ReplayAttempt) -> None:
        """Take one decoding sequence off a path that is settled."""
        path.count -= 1
        generated = attempt.new_tokens - 1 - (attempt.target - path.tokens)
        path.context_tokens -= attempt.cached_tokens + attempt.read_tokens + generated
        if not path.count:
            path.context_tokens = 0.0  # what rounding left
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
                machine.servers.setdefault(stage, ReplayServer(server, len(stages)))
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
            self._weigh(machine)
        for path in paths:
            path.since_s = now_s
            path.retime()
            path.timing += 1
            while path.targets and path.targets[0][2].state == "over":
                heapq.heappop(path.targets)
            if path.step_s and path.targets:
                left = max(0.0, path.targets[0][0] - path.tokens)
                if path.growth_s:
                    left = min(left, max(1.0, _STRETCH * path.step_s / path.growth_s))
                clock.at(now_s + left * path.step_s, self._step, path, path.timing)
        for machine in machines:
            step_s = min((path.step_s for path in machine.paths if path.step_s), default=0.0)
            machine.load = min(1.0, machine.work_s / step_s) if step_s else 0.0
            machine.timing += 1
            machine.read_tokens_per_s = 0.0
            if machine.reading and machine.is_up:
                machine.load, pace = 1.0, self._pace(machine, step_s)
                if pace < math.inf:
                    machine.read_tokens_per_s = pace
                clock.at(
                    now_s + max(0.0, machine.reading[0].left_tokens) / pace, self._read, machine, machine.timing
                )

    def _weigh(self, machine: ReplayNode) -> None:
        """Find what a step has of decode and of prompts on a machine."""
        machine.work_s = machine.chunk_s = 0.0
        for server in machine.servers.values():
            server.context_tokens = 0.0
        for path in machine.paths:
            machine.servers[path.stages[path.machines.index(machine)]].context_tokens += path.context_tokens
        for server in machine.servers.values():
            if server.count:
                machine.work_s += machine.factor * server.rounds * server.round_s
        room = self._step_tokens
        for attempt in machine.reading:
            taken = min(room, attempt.read_tokens)
            machine.chunk_s += machine.factor * taken * attempt.token_s
            room -= taken
            if not room:
                break
        machine.chunk_tokens = self._step_tokens - room

    @staticmethod
    def _pace(machine: ReplayNode, step_s: float) -> float:
        """Return the tokens of prompts that a machine reads in a second; step_s: of decode, 0 for none."""
        if not step_s:
            step_s = machine.factor * machine.reading[0].alone_s + machine.chunk_s
            return machine.chunk_tokens / step_s if step_s else math.inf
        left_s = step_s - machine.work_s
        return machine.chunk_tokens * (max(1.0, left_s / machine.chunk_s) if machine.chunk_s else 1.0) / step_s
