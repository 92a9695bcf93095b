"""What every router is: counts of who runs where, and a choice."""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from typing import Protocol

from strata.decision import Reason
from strata.serving.layout import Layout, Route
from strata.serving.request import RequestSignal
from strata.serving.routing.reservations import Reservations


class Router(Protocol):
    """Chooses routes. Deterministic: same calls, same answers; time comes in as `now_s`.

    The counts are the router's own: reserved by `route`, given back by `release`; heartbeats only reconcile.
    """

    reservations: Reservations

    def arrange(self, layout: Layout) -> None:
        """Take a new layout; what runs keeps its reservations on nodes that are still there."""

    def route(self, request: RequestSignal, now_s: float) -> Route | None:
        """Reserve and return a route, or None where no path has room now (`auto`: and meets the goals)."""

    def first_token(self, request_id: str, now_s: float) -> None:
        """Note that the first token of a request is there: its prompt has been read."""

    def release(self, request_id: str, now_s: float) -> None:
        """Give back what a request held; nothing where it holds nothing."""

    def reconcile(self, node_id: str, running: AbstractSet[str], now_s: float) -> tuple[str, ...]:
        """Return requests booked on a node for longer than a heartbeat that the node says it does not run."""
        return self.reservations.reconcile(node_id, running, now_s)

    def note_others(self, node_id: str, count: int) -> None:
        """Note how many requests a node has that did not come from us."""

    def load(self, node_id: str) -> tuple[int, int]:
        """Return the sequences and KV tokens booked on a node."""
        return self.reservations.load(node_id)

    def refuses(self, request: RequestSignal, now_s: float) -> Reason | None:
        """Say why no path could ever take a request, were all idle; None where waiting may help."""

    def patience_s(self, request: RequestSignal, now_s: float) -> float:
        """Return how long a request that comes now may wait for a path and still be in time [s]."""
        return math.inf

    def explain(self, request: RequestSignal, now_s: float) -> list[dict[str, float | str]]:
        """Return what each path would cost the request now, best first; at most a few."""
