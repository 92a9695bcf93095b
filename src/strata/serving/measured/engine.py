"""One pipeline and the queue before it, as in engines: what a log of requests is compared with.

The pipeline is that of the simulator (`replay/service.py`). The queue is that of vLLM's scheduler (v1, without
prefix caching): first come, first served, admitted as long as there are free sequences, room for more tokens of
prompts in a step, and KV memory for those; where KV memory runs out, the request that was admitted last gives its
memory up and comes first again, to be read anew with what it had generated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np

from strata.arrays import Floats
from strata.serving.layout import Layout, Route
from strata.serving.replay.path import ReplayAttempt
from strata.serving.replay.service import SimulatedService
from strata.simulate.event_clock import EventClock
from strata.workload.requests import Request


class RequestTimes(NamedTuple):
    """What requests took, in the order of their coming [N]: to the first token, and to the last [s]."""

    ttft_s: Floats
    latency_s: Floats

    def tpot_s(self, output_tokens: Floats) -> Floats:
        """Return the seconds a token after the first; nan where there is none."""
        after = np.where(output_tokens > 1, output_tokens - 1, np.nan)
        return np.asarray((self.latency_s - self.ttft_s) / after)


@dataclass(slots=True, eq=False)
class _QueuedRequest:
    """A request in the queue or on the pipeline: `number`th to come, with what it has generated."""

    number: int
    request: Request
    generated: int = 0

    @property
    def prompt_tokens(self) -> int:
        return self.request.prompt_tokens + self.generated


class EngineRun:
    """One run of requests through the one pipeline of a layout."""

    def __init__(self, layout: Layout, requests: Sequence[Request], *, sequences: int, step_tokens: int) -> None:
        (self._stages,) = layout.pipelines
        self._clock = EventClock(0.0)
        self._service = SimulatedService(
            self._clock,
            lambda _: layout,
            step_tokens=step_tokens,
            first_token=self._first,
            finished=self._finished,
        )
        for stage in self._stages:
            self._service.add(stage.node_id)
        self._sequences, self._step_tokens = sequences, step_tokens
        self._kv_tokens = min(server.kv_tokens for server in layout.servers)
        self._waiting = deque[_QueuedRequest]()
        self._running = dict[str, tuple[_QueuedRequest, ReplayAttempt]]()
        self._timing, self._names = 0, count()
        self._times = RequestTimes(np.full(len(requests), np.nan), np.full(len(requests), np.nan))
        self._requests = requests
        for number, request in enumerate(requests):
            self._clock.at(request.at_s, self._arrive, _QueuedRequest(number, request))

    def run(self) -> RequestTimes:
        """Return the times of all requests; nan for those that never fit."""
        while self._clock.step():
            pass
        return self._times

    def _arrive(self, queued: _QueuedRequest) -> None:
        if queued.request.prompt_tokens + queued.request.output_tokens <= self._kv_tokens:
            self._waiting.append(queued)
            self._admit()

    def _first(self, attempt: ReplayAttempt) -> None:
        queued, _ = self._running[attempt.request_id]
        if np.isnan(self._times.ttft_s[queued.number]):
            self._times.ttft_s[queued.number] = self._clock.now - queued.request.at_s
        self._admit()

    def _finished(self, attempt: ReplayAttempt) -> None:
        queued, _ = self._running.pop(attempt.request_id)
        self._times.latency_s[queued.number] = self._clock.now - queued.request.at_s
        self._admit()

    def _used(self) -> tuple[float, float]:
        """Return the tokens in KV memory, and those of them that are still to be read."""
        self._service.integrate()
        attempts = [attempt for _, attempt in self._running.values()]
        unread = sum(max(0.0, attempt.left_tokens) for attempt in attempts if attempt.state == "reading")
        begun = sum(attempt.read_tokens for attempt in attempts if attempt.state in ("reading", "passing"))
        return begun + sum(path.context_tokens for path in self._service.paths.values()), unread

    def _admit(self) -> None:
        """Let in what may come in."""
        used, unread = self._used()
        while self._waiting and len(self._running) < self._sequences and unread < self._step_tokens:
            queued = self._waiting[0]
            if used + queued.prompt_tokens > self._kv_tokens:
                break
            self._waiting.popleft()
            used, unread = used + queued.prompt_tokens, unread + queued.prompt_tokens
            name = str(next(self._names))
            attempt = ReplayAttempt(
                name, 1, Route(self._stages), queued.prompt_tokens, queued.request.output_tokens - queued.generated
            )
            self._running[name] = queued, attempt
            self._service.start(attempt)
        self._foresee(used)

    def _foresee(self, used: float) -> None:
        """Look again when KV memory will be full."""
        self._timing += 1
        if pace := sum(path.count / path.step_s for path in self._service.paths.values() if path.step_s):
            self._clock.at(self._clock.now + (self._kv_tokens - used) / pace, self._look, self._timing)

    def _look(self, timing: int) -> None:
        """Take the last that came out, where KV memory is full; nobody comes in for it before another ends."""
        if timing != self._timing:
            return
        used, _ = self._used()
        if used >= self._kv_tokens - 1 and len(self._running) > 1:
            _, (queued, attempt) = self._running.popitem()
            queued.generated += self._service.stop(attempt)
            self._waiting.appendleft(queued)
            used, _ = self._used()
        self._foresee(used)
