"""Requests between their arrival and their end: waiting, on a route, interrupted, sent again."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Final

from strata.decision import Reason
from strata.serving.layout import Layout, Route
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.deadlines import Deadlines
from strata.serving.live.instructions import Abort, Dispatch, Instruction, KeptAttempt, Reject
from strata.serving.live.metrics import MetricsCollector
from strata.serving.live.rollout import Rollout
from strata.serving.live.traffic import Traffic
from strata.serving.request import RequestSignal
from strata.serving.routing.make import make_router
from strata.serving.routing.queue import WaitingQueue, left

REMEMBERED: Final = 10_000
"""Requests whose timeline is kept after their end."""
OVERTAKEN: Final = 8
"""Waiting requests that may be too large for the room there is while smaller ones behind them are tried."""
RETRY_S: Final = 1.0
"""When a client should come again where others wait (assumed)."""
PASSING: Final = frozenset({"waited-too-long", "not-served-in-time"})
"""Reasons of which another time may not be one."""


@dataclass(slots=True)
class InFlightRequest:
    """One request. `versions` are the pipelines its present route uses; empty while it waits.

    kept: what its next attempt may go on from. is_unbegun: its present one is to, and has said nothing yet.
    num_spared: attempts that do not count.
    """

    signal: RequestSignal
    arrived_s: float
    attempt: int = 0
    route: Route | None = None
    versions: frozenset[int] = frozenset()
    first_token_s: float | None = None
    kept: KeptAttempt | None = None
    is_unbegun: bool = False
    num_spared: int = 0
    timeline: list[dict[str, Any]] = field(default_factory=list)


class InFlightRequests:
    """All requests that are not over. Methods return what is to be done, as those of `Rollout` do."""

    def __init__(
        self, config: SchedulerConfig, rollout: Rollout, metrics: MetricsCollector, *, hidden_bytes: float
    ) -> None:
        self.router = make_router(config.routing_strategy)
        self.traffic = Traffic(config.request_arrival_horizon)
        self._config, self._rollout, self._metrics, self._hidden_bytes = config, rollout, metrics, hidden_bytes
        self._queue = WaitingQueue(config.queue_limit)
        self._deadlines = Deadlines()
        self._requests: dict[str, InFlightRequest] = {}
        self._timelines: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        self._version_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def num_waiting(self) -> int:
        """Requests without a route."""
        return len(self._queue)

    def oldest_wait_s(self, now_s: float) -> float:
        """Return how long the request waits that came first of those without a route; 0 where none waits."""
        return now_s - min((r.arrived_s for r in self._requests.values() if r.route is None), default=now_s)

    def get(self, request_id: str) -> InFlightRequest | None:
        """Return a request that is not over."""
        return self._requests.get(request_id)

    def timeline(self, request_id: str) -> list[dict[str, Any]] | None:
        """Return what happened to a request; None for one never heard of, or long ago."""
        request = self._requests.get(request_id)
        return request.timeline if request else self._timelines.get(request_id)

    def recent(self, limit: int) -> list[tuple[str, list[dict[str, Any]]]]:
        """Return at most so many requests, by id, with their timelines: those in flight, then the last to end."""
        in_flight = ((request_id, request.timeline) for request_id, request in reversed(self._requests.items()))
        return list(islice(chain(in_flight, reversed(self._timelines.items())), limit))

    def arrange(self, layout: Layout, version_of: dict[str, int]) -> None:
        """Take the pipelines that serve now; `version_of` names the one on each node."""
        self.router.arrange(layout)
        self._version_of = version_of

    def arrive(self, signal: RequestSignal, now_s: float) -> list[Instruction]:
        """Queue a request, or say at once why not."""
        request_id = signal.request_id
        self.traffic.arrived(signal.max_tokens, now_s)
        if request_id in self._requests:
            return [Reject(request_id, Reason("request-known", subject=request_id))]
        request = InFlightRequest(signal, now_s)
        if not self._queue.push(signal, now_s):
            reason = Reason("queue-full", data={"waiting": len(self._queue)})
            return [self._rejected(request, reason, retry_after_s=RETRY_S)]
        self._requests[request_id] = request
        self._set_deadline(request, now_s)
        self.traffic.unfinished(len(self._requests), now_s)
        return []

    def dispatch(self, now_s: float) -> list[Instruction]:
        """Send off whoever has room, best first; a few that are too large do not hold up smaller ones."""
        out: list[Instruction] = list(self._late(now_s))
        routes: dict[str, Route] = {}
        refused: dict[str, Reason] = {}

        def has_route(signal: RequestSignal) -> bool:
            if route := self.router.route(signal, now_s):
                routes[signal.request_id] = route
            elif reason := self.router.refuses(signal, now_s):
                refused[signal.request_id] = reason
            return signal.request_id in routes

        while len(self._queue):
            while signal := self._queue.pop(now_s, has_route, tries=OVERTAKEN):
                out.append(self._sent(self._requests[signal.request_id], routes.pop(signal.request_id), now_s))
            if not refused:
                break
            # Waiting would not help them, and behind them others wait.
            out += [self._refuse(self._requests[name], reason, now_s) for name, reason in refused.items()]
            refused.clear()
        return out

    def wake_s(self) -> float | None:
        """Return when the goal of a waiting request will have passed; None where none has one."""
        return self._deadlines.wake_s()

    def give_up(self, reason: Reason, now_s: float) -> list[Instruction]:
        """Refuse all that were never sent; what was interrupted waits on: it was admitted."""
        new = [request for request in self._requests.values() if not request.attempt]
        return [self._refuse(request, reason, now_s) for request in new]

    def first_token(self, request_id: str, attempt: int, now_s: float) -> None:
        """Note when the first token came."""
        request = self._requests.get(request_id)
        if request and request.attempt == attempt:
            self.router.first_token(request_id, now_s)
            request.is_unbegun = False
            if request.first_token_s is None:
                request.first_token_s = now_s

    def finish(self, request_id: str, attempt: int, generated: int, now_s: float) -> list[str]:
        """Close a request that is done; return its nodes, none where an older attempt says so."""
        request = self._requests.get(request_id)
        if request is None or request.attempt != attempt or request.route is None:
            return []
        first_s, latency_s = request.first_token_s, now_s - request.arrived_s
        ttft_s = None if first_s is None else first_s - request.arrived_s
        tpot_s = (now_s - first_s) / (generated - 1) if first_s is not None and generated > 1 else None
        self.traffic.finished(request.signal.prompt_tokens, generated, now_s)
        self._metrics.count("served")
        if (ttft_s or 0.0) <= request.signal.ttft_goal_s and (tpot_s or 0.0) <= request.signal.tpot_goal_s:
            self._metrics.count("in_time")
        self._metrics.collect_request_latency(request_id, latency_s)
        self._metrics.collect_tokens(ttft_s, tpot_s, generated)
        self._metrics.collect_network(self._sent_bytes(request, generated))
        node_ids = [stage.node_id for stage in request.route.stages]
        for node_id in node_ids:
            self._metrics.collect_throughput(node_id, generated)
        request.timeline.append(
            {"first_token_after_s": ttft_s, "finished_after_s": latency_s, "tokens": generated}
        )
        self._close(request, now_s)
        return node_ids

    def cancel(self, request_id: str, now_s: float) -> list[Instruction]:
        """Close a request nobody waits for any more."""
        request = self._requests.get(request_id)
        if request is None:
            return []
        out: list[Instruction] = [] if request.route is None else [Abort(request_id, request.attempt)]
        self._queue.remove(request_id)
        self._metrics.count("cancelled")
        request.timeline.append({"cancelled_after_s": now_s - request.arrived_s})
        self._close(request, now_s)
        return out

    def break_off(
        self, request_id: str, attempt: int, generated: int, now_s: float, *, is_blamed: bool
    ) -> list[Instruction] | None:
        """Take back an attempt that has ended by itself; None where it is not the present one.

        is_blamed: some node is at fault.
        """
        request = self._requests.get(request_id)
        if request is None or request.attempt != attempt or request.route is None:
            return None
        request.signal = replace(request.signal, generated=generated)
        if request.is_unbegun and not is_blamed:
            # What was kept had gone: others needed the room, or it waited too long. The next computes it anew.
            request.num_spared += 1
        return self._interrupt(request, Reason("attempt-failed"), now_s)

    def take_back(
        self, request_ids: Iterable[str], reason: Reason, now_s: float, *, keeps: bool = False
    ) -> list[Instruction]:
        """Abort requests where they run; they go on elsewhere, from their old place in the queue.

        keeps: their nodes live on for a while, and may hand over what they have cached. That is a move, and no
        failed attempt.
        """
        out: list[Instruction] = []
        for request_id in sorted(request_ids):
            request = self._requests[request_id]
            request.num_spared += keeps
            is_kept = keeps and request.first_token_s is not None
            if is_kept and request.route is not None:
                request.kept = KeptAttempt(request.attempt, request.route.stages)
            out += [Abort(request_id, request.attempt, is_kept), *self._interrupt(request, reason, now_s)]
        return out

    def note(self, request_id: str, entry: dict[str, Any]) -> None:
        """Put into a request's timeline what was decided of it elsewhere."""
        if request := self._requests.get(request_id):
            request.timeline.append(entry)

    def starts_on(self, request_id: str, node_id: str) -> bool:
        """Return whether a node is the first of a request's route."""
        route = self._requests[request_id].route
        return route is not None and route.stages[0].node_id == node_id

    def kv_tokens(self, request_ids: Iterable[str]) -> int:
        """Return the KV memory that requests have booked [tokens]."""
        return sum(self._requests[request_id].signal.kv_tokens for request_id in request_ids)

    def _interrupt(self, request: InFlightRequest, reason: Reason, now_s: float) -> list[Instruction]:
        """Queue a request for its next attempt, or give it up after the last."""
        self._metrics.count("interrupted")
        self._metrics.collect_network(0.0, self._sent_bytes(request, request.signal.generated))
        request.timeline.append({"interrupted_after_s": now_s - request.arrived_s, "reason": reason.to_dict()})
        self._free(request, now_s)
        if request.attempt - request.num_spared >= self._config.max_attempts:
            self._close(request, now_s)
            reason = Reason("attempts-exhausted", data={"attempts": request.attempt})
            return [self._rejected(request, reason, retry_after_s=self._config.heartbeat_interval_s)]
        # Once admitted, it is served: late is better than never, and it was not its fault.
        signal = replace(request.signal, ttft_goal_s=math.inf, tpot_goal_s=math.inf)
        self._queue.push(signal, request.arrived_s, is_forced=True)
        return []

    def _set_deadline(self, request: InFlightRequest, now_s: float) -> None:
        """Note until when a request has to be sent; never before now."""
        due_s = request.arrived_s + self.router.patience_s(request.signal, now_s)
        if due_s < math.inf:
            self._deadlines.add(request.signal.request_id, max(due_s, now_s))

    def _late(self, now_s: float) -> Iterator[Reject]:
        """Refuse those who wait for a first token that can no longer be in time, however far behind they are."""
        for request_id in self._deadlines.passed(now_s):
            request = self._requests[request_id]
            if reason := self.router.refuses(left(request.signal, request.arrived_s, now_s), now_s):
                yield self._refuse(request, reason, now_s)
            else:  # faster pipelines have come
                self._set_deadline(request, now_s)

    def _refuse(self, request: InFlightRequest, reason: Reason, now_s: float) -> Reject:
        self._queue.remove(request.signal.request_id)
        self._close(request, now_s)
        retry_after_s = RETRY_S if reason.token in PASSING else None
        if reason.token == "nobody-serves":
            retry_after_s = self._config.heartbeat_interval_s  # sooner, nobody is heard
        return self._rejected(request, reason, retry_after_s=retry_after_s)

    def _sent(self, request: InFlightRequest, route: Route, now_s: float) -> Dispatch:
        versions = tuple(self._version_of[stage.node_id] for stage in route.stages)
        request_id = request.signal.request_id
        request.attempt, request.route, request.versions = request.attempt + 1, route, frozenset(versions)
        for version in request.versions:
            self._rollout[version].running.add(request_id)
        taken = " > ".join(stage.node_id for stage in route.stages)
        paths = self.router.explain(request.signal, now_s) if len(self._rollout) > 1 else ()
        request.timeline.append(
            {
                "attempt": request.attempt,
                "waited_s": now_s - request.arrived_s,
                "route": [list(stage) for stage in route.stages],
                "foreseen": {
                    "ttft_s": route.ttft_s,
                    "tpot_s": route.tpot_s,
                    "cached_tokens": route.cached_tokens,
                    "trust": "analytic",
                },
                "others": [path for path in paths if path["path"] != taken],
            }
        )
        kept, request.kept = request.kept, None
        request.is_unbegun = kept is not None
        self._deadlines.remove(request_id)
        return Dispatch(request_id, request.attempt, route, versions, kept)

    def _rejected(self, request: InFlightRequest, reason: Reason, *, retry_after_s: float | None = None) -> Reject:
        self._metrics.count("rejected")
        request.timeline.append({"rejected": reason.to_dict()})
        self._keep(request)
        return Reject(request.signal.request_id, reason, retry_after_s)

    def _free(self, request: InFlightRequest, now_s: float) -> None:
        request_id = request.signal.request_id
        self.router.release(request_id, now_s)
        for version in request.versions:
            if pipeline := self._rollout.get(version):
                pipeline.running.discard(request_id)
        request.route, request.versions = None, frozenset()

    def _close(self, request: InFlightRequest, now_s: float) -> None:
        self._free(request, now_s)
        self._deadlines.remove(request.signal.request_id)
        del self._requests[request.signal.request_id]
        self._keep(request)

    def _keep(self, request: InFlightRequest) -> None:
        self._timelines[request.signal.request_id] = request.timeline
        if len(self._timelines) > REMEMBERED:
            self._timelines.popitem(last=False)

    def _sent_bytes(self, request: InFlightRequest, generated: int) -> float:
        hops = len(request.route.stages) - 1 if request.route else 0
        return hops * self._hidden_bytes * (request.signal.prefill_tokens + generated)
