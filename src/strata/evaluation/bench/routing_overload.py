"""A pool close to its limit under virtual time, through the live scheduler: what it serves and how long one waits.

The peer's counts only go down with heartbeats: it served 6.4 of 28 requests a second here, and p99 waited 80 s
(facts measured on Parallax at commit 162354a: four pipelines of 16 slots, requests of 2 s).
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import Final, NamedTuple

import numpy as np

from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from strata.serving.live.events import Arrive, Event, Finished, Heartbeat, Join, Tick
from strata.serving.live.instructions import Dispatch, Reject
from strata.serving.node import Node
from strata.serving.request import RequestSignal
from strata.serving.routing.make import RoutingStrategy
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

PIPELINES: Final = 4
SLOTS: Final = 16
SERVICE_S: Final = 2.0
BEAT_S: Final = 10.0
"""As the peer's nodes beat."""


class Overload(NamedTuple):
    """Requests that came and were done a second, what 99 % waited at most, and how many were refused."""

    offered_per_s: float
    served_per_s: float
    p99_wait_s: float
    refused: int


def overload(
    model: ModelInfo, strategy: RoutingStrategy, *, rate_per_s: float, horizon_s: float, rng: np.random.Generator
) -> Overload:
    """Offer Poisson arrivals to four whole pipelines of 16 slots, which take 2 s for any request: 32 a second."""
    core = Core(SchedulerConfig(routing_strategy=strategy), model, Demand(SLOTS, 100, 100))
    order, running = count(), [set[str]() for _ in range(PIPELINES)]
    todo: list[tuple[float, int, Event]] = []

    def at(now_s: float, event: Event) -> None:
        heapq.heappush(todo, (now_s, next(order), event))

    for p in range(PIPELINES):
        node = Node(f"p{p}", 1e14, 80e9, 2e12, model=model.model_name, slots=SLOTS, kv_tokens=SLOTS * 1000)
        at(-1.0, Join(node, 1))
        for now_s in np.arange(p / PIPELINES, horizon_s, BEAT_S).tolist():
            at(now_s, Heartbeat(f"p{p}", 1))
    for now_s in np.arange(1.0, horizon_s).tolist():
        at(now_s, Tick())
    arrived = np.cumsum(rng.exponential(1 / rate_per_s, int(rate_per_s * horizon_s * 1.2) + 100))
    arrivals = arrived[arrived < horizon_s].tolist()
    for i, now_s in enumerate(arrivals):
        at(now_s, Arrive(RequestSignal(f"r{i}", 100, 100)))
    waits, served, refused = list[float](), 0, 0
    while todo and todo[0][0] < horizon_s:
        now_s, _, event = heapq.heappop(todo)
        if isinstance(event, Heartbeat):
            event = Heartbeat(event.node_id, event.incarnation, frozenset(running[int(event.node_id[1:])]))
        elif isinstance(event, Finished):
            served += 1
            for requests in running:
                requests.discard(event.request_id)
        for done in core.handle(event, now_s):
            if isinstance(done, Dispatch):
                waits.append(now_s - arrivals[int(done.request_id[1:])])
                running[int(done.route.stages[0].node_id[1:])].add(done.request_id)
                at(now_s + SERVICE_S, Finished(done.request_id, done.attempt, 100))
            elif isinstance(done, Reject):
                refused += 1
    p99_s = float(np.quantile(waits, 0.99)) if waits else 0.0
    return Overload(len(arrivals) / horizon_s, served / horizon_s, p99_s, refused)
