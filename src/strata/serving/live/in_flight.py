"""Requests between their arrival and their end: waiting, on a route, interrupted, sent again."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strata.decision import Reason
from strata.serving.layout import Layout, Route
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.forecast import Forecast
from strata.serving.live.instructions import Abort, Dispatch, Instruction, Reject
from strata.serving.live.metrics import MetricsCollector
from strata.serving.live.rollout import Rollout
from strata.serving.live.traffic import Traffic
from strata.serving.request import RequestSignal
from strata.serving.routing.make import make_router
from strata.serving.routing.queue import WaitingQueue

REMEMBERED: Final = 10_000
"""Requests whose story is kept after their end."""
OVERTAKEN: Final = 8
"""Waiting requests that may be too large for the room there is while smaller ones behind them are tried."""


@dataclass(slots=True)
class Flight:
    """One request. `versions` are the pipelines its present route uses; empty while it waits."""

    signal: RequestSignal
    arrived_s: float
    attempt: int = 0
    route: Route | None = None
    versions: tuple[int, ...] = ()
    first_token_s: float | None = None
    story: list[dict[str, Any]] = field(default_factory=list)


class Flights:
    """All requests that are not over. Methods append what is to be done to `out`."""

    def __init__(
        self, config: SchedulerConfig, rollout: Rollout, metrics: MetricsCollector, *, hidden_bytes: float
    ) -> None:
        self.router = make_router(config.routing_strategy)
        self.forecast = Forecast(config.request_arrival_horizon)
        self.traffic = Traffic(config.request_arrival_horizon)
        self._config, self._rollout, self._metrics, self._hidden_bytes = config, rollout, metrics, hidden_bytes
        self._queue = WaitingQueue(config.queue_limit)
        self._flights: dict[str, Flight] = {}
        self._stories: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        self._version_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def num_waiting(self) -> int:
        """Requests without a route."""
        return len(self._queue)

    def get(self, request_id: str) -> Flight | None:
        """Return a request that is not over."""
        return self._flights.get(request_id)

    def story(self, request_id: str) -> list[dict[str, Any]] | None:
        """Return what happened to a request; None for one never heard of, or long ago."""
        flight = self._flights.get(request_id)
        return flight.story if flight else self._stories.get(request_id)

    def arrange(self, layout: Layout, version_of: dict[str, int]) -> None:
        """Take the pipelines that serve now; `version_of` names the one on each node."""
        self.router.arrange(layout)
        self._version_of = version_of

    def arrive(self, signal: RequestSignal, now_s: float, out: list[Instruction]) -> None:
        """Queue a request, or say at once why not."""
        request_id = signal.request_id
        self.forecast.add(signal.max_tokens, now_s)
        if request_id in self._flights:
            out.append(Reject(request_id, Reason("request-known", subject=request_id)))
            return
        flight = Flight(signal, now_s)
        if not self._queue.push(signal, now_s):
            self._reject(flight, Reason("queue-full", data={"waiting": len(self._queue)}), out, retry_after_s=1.0)
        else:
            self._flights[request_id] = flight
            self.traffic.unfinished(len(self._flights), now_s)

    def dispatch(self, now_s: float, out: list[Instruction]) -> None:
        """Send off whoever has room, best first; a few that are too large do not hold up smaller ones."""
        if not len(self._queue):
            return
        route: Route | None = None
        refused: dict[str, Reason] = {}

        def has_room(signal: RequestSignal) -> bool:
            nonlocal route
            route = self.router.route(signal, now_s)
            if route is None and (reason := self.router.refuses(signal, now_s)) is not None:
                refused[signal.request_id] = reason
            return route is not None

        while True:
            while (signal := self._queue.pop(now_s, has_room, tries=OVERTAKEN)) is not None and route is not None:
                self._send(self._flights[signal.request_id], route, now_s, out)
            if not refused:
                return
            # Waiting would not help them, and behind them others wait.
            for request_id, reason in refused.items():
                flight = self._flights[request_id]
                self._queue.remove(request_id)
                self._close(flight, now_s)
                self._reject(flight, reason, out)
            refused.clear()

    def first_token(self, request_id: str, attempt: int, now_s: float) -> None:
        """Note when the first token came."""
        flight = self._flights.get(request_id)
        if flight and flight.attempt == attempt:
            self.router.first_token(request_id, now_s)
            if flight.first_token_s is None:
                flight.first_token_s = now_s

    def finish(self, request_id: str, attempt: int, generated: int, now_s: float) -> None:
        """Close a request that is done; what an older attempt says is not heard."""
        flight = self._flights.get(request_id)
        if flight is None or flight.attempt != attempt or flight.route is None:
            return
        first_s, latency_s = flight.first_token_s, now_s - flight.arrived_s
        ttft_s = None if first_s is None else first_s - flight.arrived_s
        tpot_s = (now_s - first_s) / (generated - 1) if first_s is not None and generated > 1 else None
        self.traffic.finished(flight.signal.prompt_tokens, generated, now_s)
        self._metrics.count("served")
        self._metrics.collect_request_latency(request_id, latency_s)
        self._metrics.collect_tokens(ttft_s, tpot_s, generated)
        self._metrics.collect_network(self._sent_bytes(flight, generated))
        flight.story.append({"finished_after_s": latency_s, "tokens": generated})
        self._close(flight, now_s)

    def cancel(self, request_id: str, now_s: float, out: list[Instruction]) -> None:
        """Close a request nobody waits for any more."""
        flight = self._flights.get(request_id)
        if flight is None:
            return
        if flight.route is not None:
            out.append(Abort(request_id, flight.attempt))
        self._queue.remove(request_id)
        self._metrics.count("cancelled")
        flight.story.append({"cancelled_after_s": now_s - flight.arrived_s})
        self._close(flight, now_s)

    def break_off(
        self, request_id: str, attempt: int, generated: int, now_s: float, out: list[Instruction]
    ) -> bool:
        """Take back an attempt that has ended by itself; False where it is not the present one."""
        flight = self._flights.get(request_id)
        if flight is None or flight.attempt != attempt or flight.route is None:
            return False
        flight.signal = replace(flight.signal, generated=generated)
        self._interrupt(flight, Reason("attempt-failed"), now_s, out)
        return True

    def take_back(self, request_ids: Iterable[str], reason: Reason, now_s: float, out: list[Instruction]) -> None:
        """Abort requests where they run; they go on elsewhere, from their old place in the queue."""
        for request_id in sorted(request_ids):
            flight = self._flights[request_id]
            out.append(Abort(request_id, flight.attempt))
            self._interrupt(flight, reason, now_s, out)

    def starts_on(self, request_id: str, node_id: str) -> bool:
        """Return whether a node is the first of a request's route."""
        route = self._flights[request_id].route
        return route is not None and route.stages[0].node_id == node_id

    def kv_tokens(self, request_ids: Iterable[str]) -> int:
        """Return the KV memory that requests have booked [tokens]."""
        return sum(self._flights[request_id].signal.kv_tokens for request_id in request_ids)

    def _interrupt(self, flight: Flight, reason: Reason, now_s: float, out: list[Instruction]) -> None:
        self._metrics.count("interrupted")
        self._metrics.collect_network(0.0, self._sent_bytes(flight, flight.signal.generated))
        flight.story.append({"interrupted_after_s": now_s - flight.arrived_s, "reason": reason.to_dict()})
        self._free(flight, now_s)
        if flight.attempt >= self._config.max_attempts:
            self._close(flight, now_s)
            reason = Reason("attempts-exhausted", data={"attempts": flight.attempt})
            self._reject(flight, reason, out, retry_after_s=self._config.heartbeat_interval_s)
        else:
            # Once admitted, it is served: late is better than never, and it was not its fault.
            signal = replace(flight.signal, ttft_goal_s=math.inf, tpot_goal_s=math.inf)
            self._queue.push(signal, flight.arrived_s, is_forced=True)

    def _send(self, flight: Flight, route: Route, now_s: float, out: list[Instruction]) -> None:
        versions = tuple(self._version_of[stage.node_id] for stage in route.stages)
        flight.attempt, flight.route, flight.versions = flight.attempt + 1, route, tuple(dict.fromkeys(versions))
        request_id = flight.signal.request_id
        for version in versions:
            self._rollout[version].running.add(request_id)
        flight.story.append(
            {
                "attempt": flight.attempt,
                "waited_s": now_s - flight.arrived_s,
                "route": [list(stage) for stage in route.stages],
                "foreseen": {
                    "ttft_s": route.ttft_s,
                    "tpot_s": route.tpot_s,
                    "cached_tokens": route.cached_tokens,
                    "trust": "analytic",
                },
                "others": self._others(flight.signal, route, now_s),
            }
        )
        out.append(Dispatch(request_id, flight.attempt, route, versions))

    def _others(self, signal: RequestSignal, route: Route, now_s: float) -> list[dict[str, float | str]]:
        """Return what other paths would have cost."""
        taken = " > ".join(stage.node_id for stage in route.stages)
        return [path for path in self.router.explain(signal, now_s) if path["path"] != taken]

    def _reject(
        self, flight: Flight, reason: Reason, out: list[Instruction], *, retry_after_s: float | None = None
    ) -> None:
        self._metrics.count("rejected")
        flight.story.append({"rejected": reason.to_dict()})
        self._keep(flight)
        out.append(Reject(flight.signal.request_id, reason, retry_after_s))

    def _free(self, flight: Flight, now_s: float) -> None:
        request_id = flight.signal.request_id
        self.router.release(request_id, now_s)
        for version in flight.versions:
            if pipeline := self._rollout.get(version):
                pipeline.running.discard(request_id)
        flight.route, flight.versions = None, ()

    def _close(self, flight: Flight, now_s: float) -> None:
        self._free(flight, now_s)
        del self._flights[flight.signal.request_id]
        self._keep(flight)

    def _keep(self, flight: Flight) -> None:
        self._stories[flight.signal.request_id] = flight.story
        if len(self._stories) > REMEMBERED:
            self._stories.popitem(last=False)

    def _sent_bytes(self, flight: Flight, generated: int) -> float:
        hops = len(flight.route.stages) - 1 if flight.route else 0
        return hops * self._hidden_bytes * (flight.signal.prefill_tokens + generated)
