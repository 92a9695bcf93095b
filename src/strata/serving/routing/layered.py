"""The path of least end-to-end latency through the layers, whichever pipelines its nodes belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Floats
from strata.decision import Reason
from strata.serving.layout import Layout, Route
from strata.serving.planning.allocation import Stage
from strata.serving.request import RequestSignal
from strata.serving.routing.graph import graph_of
from strata.serving.routing.pipelines import EXPLAINED
from strata.serving.routing.reservations import Reservations
from strata.serving.routing.router import Router

SWEEPS: Final = 4
"""Heads whose best ring is searched for exactly, at most. Where more might be best, little is missed: with hops of
1 to 8 ms at random and 64 heads to choose from, 1 % on average."""

TIE: Final = 1 + 1e-9


class CheapestPath(NamedTuple):
    """A path as servers, and its seconds."""

    nodes: tuple[int, ...]
    total_s: float


class Prices(NamedTuple):
    """Seconds that a request needs of servers [S] and of hops [S, U], by boundary; and the tokens it will have."""

    enter: list[Floats]
    hops: list[Floats]
    tokens: int


class Sweep(NamedTuple):
    """Least seconds from each head on [H] and after each server [N]; those by next and last one, by boundary."""

    total_s: Floats
    ahead_s: Floats
    tables: list[Floats]


class Weighed(NamedTuple):
    """What a choice is made on: the sweep without the way back, what no path from each head is below [H], and what
    the prices were made of, which booking changes.
    """

    prices: Prices
    sweep: Sweep
    least_s: Floats
    price: Floats
    read_s: Floats


class DynamicProgrammingRouting(Router):
    """Backwards over the boundaries, every minimum over all servers at once; exact for each request.

    cost(path) = sum over nodes of (wait + fill(prompt) + steps * step(n + 1)) + hops of the prompt's activations
    + hops of `steps` tokens + closing hops of all tokens. A node entered inside its range costs its share.

    The wait is until the prompts sent to a node before are read, weighted by its share of the layers: along a
    path such waits overlap. The closing hop depends on the head, so the sweep without it only bounds; the heads
    that may be best are then searched one by one.

    Hops are looked up once a layout, and a node's prices change only with its load. The minima are not kept: each
    request weighs prompt and steps its own way, and every route and release moves the best server of a boundary.
    """

    def __init__(self) -> None:
        self.reservations = Reservations()
        self._read_s = np.zeros(0)
        self._turn = 0
        self._latest: tuple[tuple[str, float], Weighed] | None = None
        self.arrange(Layout(0))

    def arrange(self, layout: Layout) -> None:
        """Take a new layout; what runs keeps its reservations on nodes that are still there."""
        read_s = dict(zip(self.reservations.index, self._read_s.tolist(), strict=True))
        self.graph, self._latest = graph_of(layout), None
        servers = self.graph.servers
        names = [server.node_id for server in servers]
        self._hop = layout.lines(names, names)
        self.reservations.arrange(servers)
        self._fill = np.array([server.prefill for server in servers]).reshape(-1, 2)
        self._share = np.array([(server.end - server.first) / layout.num_layers for server in servers])
        self._read_s = np.array([read_s.get(server.node_id, -np.inf) for server in servers])
        # What a request's numbers (1, prompt tokens, steps) are multiplied by to give each node's seconds.
        self._price = np.zeros((3, len(servers)))
        self._price[1] = self._fill[:, 1]
        self._free_kv = np.zeros(len(servers))
        self._no_way_back = np.zeros(len(self.graph.tails))
        self._nearest_s = self.graph.closing_s.min(axis=0, initial=np.inf)
        self._refresh(range(len(servers)))

    def route(self, request: RequestSignal, now_s: float) -> Route | None:
        """Reserve and return the fastest path with room, or None where there is none now."""
        path = self._search(request, now_s)
        if path is None:
            return None
        assert self._latest is not None, "the search weighs"
        route = self._route(path.nodes, request, now_s, self._latest[1])
        names = tuple(stage.node_id for stage in route.stages)
        self.reservations.reserve(request.request_id, names, path.nodes, request.kv_tokens, now_s)
        for node, stage in zip(path.nodes, route.stages, strict=True):
            read_s = self._fill.item(node, 0) + self._fill.item(node, 1) * request.prefill_tokens
            server = self.graph.servers[node]
            read_s *= (stage.end - stage.first) / (server.end - server.first)
            self._read_s[node] = max(self._read_s.item(node), now_s) + read_s
        self._refresh(path.nodes)
        return route

    def release(self, request_id: str, now_s: float) -> None:
        """Give back what a request held; nothing where it holds nothing."""
        self._refresh(self.reservations.release(request_id))

    def note_others(self, node_id: str, count: int) -> None:
        """Note how many requests a node has that did not come from us."""
        self._refresh(self.reservations.note_others(node_id, count))

    def refuses(self, request: RequestSignal, now_s: float) -> Reason | None:
        """Say why no path could ever take a request, were all idle; None where one could, or none is there."""
        widest = self.graph.widest
        if not widest or request.kv_tokens <= widest:
            return None
        return Reason("request-too-long", data={"tokens": request.kv_tokens, "most": widest})

    def explain(self, request: RequestSignal, now_s: float) -> list[dict[str, float | str]]:
        """Return a fast path with room through each of the best heads now, at most a few, and what it costs.

        The way back counts in the cost, not in the choice of the path. Of the request that was routed last, at
        that time, it is what the route was chosen among.
        """
        is_latest = self._latest is not None and self._latest[0] == (request.request_id, now_s)
        weighed = self._latest[1] if self._latest and is_latest else self._weigh(request, now_s)
        prices, least_s = weighed.prices, weighed.least_s
        answer: list[dict[str, float | str]] = []
        for head in np.argsort(least_s)[:EXPLAINED].tolist():
            if least_s.item(head) == np.inf:
                break
            route = self._route(self._trace(head, weighed.sweep), request, now_s, weighed)
            answer.append(
                {
                    "path": " > ".join(stage.node_id for stage in route.stages),
                    "state": "open",
                    "cost_s": route.ttft_s + (prices.tokens - 1) * route.tpot_s,
                    "ttft_s": route.ttft_s,
                    "tpot_s": route.tpot_s,
                }
            )
        return sorted(answer, key=lambda row: row["cost_s"])

    def _weigh(self, request: RequestSignal, now_s: float) -> Weighed:
        prices = self._prices(request, now_s)
        sweep = self._sweep(prices, self._no_way_back)
        least_s = sweep.total_s + prices.tokens * self._nearest_s
        weighed = Weighed(prices, sweep, least_s, self._price.copy(), self._read_s.copy())
        self._latest = (request.request_id, now_s), weighed
        return weighed

    def _search(self, request: RequestSignal, now_s: float) -> CheapestPath | None:
        weighed = self._weigh(request, now_s)
        prices, sweep, least_s = weighed.prices, weighed.sweep, weighed.least_s
        bound_s = float(least_s.min(initial=np.inf))
        if bound_s == np.inf:
            return None
        self._turn += 1
        head = self._pick(least_s, bound_s)
        nodes = self._trace(head, sweep)
        end_s = prices.tokens * self.graph.closing_s.item(self.graph.place[nodes[-1]], head)
        best = CheapestPath(nodes, sweep.total_s.item(head) + end_s)
        if best.total_s > bound_s * TIE:
            for other in np.argsort(least_s, kind="stable")[:SWEEPS].tolist():
                if best.total_s <= least_s.item(other) * TIE:
                    break
                best = self._ring(other, prices, best)
        return best

    def _ring(self, head: int, prices: Prices, best: CheapestPath) -> CheapestPath:
        """Return the best path from a head with its way back to it, or `best` where that is no slower."""
        sweep = self._sweep(prices, prices.tokens * self.graph.closing_s[:, head])
        seconds = sweep.total_s.item(head)
        return best if best.total_s <= seconds else CheapestPath(self._trace(head, sweep), seconds)

    def _prices(self, request: RequestSignal, now_s: float) -> Prices:
        prompt, steps = request.prefill_tokens, request.steps_left
        cost: Floats = np.array((1.0, prompt, steps)) @ self._price
        cost += self._share * np.maximum(self._read_s - now_s, 0.0)
        cost[self._free_kv < request.kv_tokens] = np.inf
        edges: Floats = np.array((1.0 + steps, prompt + steps)) @ self.graph.edges
        enter = [cost[boundary.next] * boundary.share for boundary in self.graph.boundaries]
        return Prices(enter, [boundary.hops(edges) for boundary in self.graph.boundaries[:-1]], 1 + steps)

    def _sweep(self, prices: Prices, tails_s: Floats) -> Sweep:
        graph, ahead_s, tables = self.graph, np.empty(len(self._free_kv)), []
        ahead_s[graph.tails] = tails_s
        for boundary, enter, hops in zip(graph.boundaries, prices.enter, prices.hops, strict=False):
            table = hops + (enter + ahead_s[boundary.next])[:, None]
            ahead_s[boundary.before] = np.minimum.reduce(table, axis=0) if len(table) else np.inf
            tables.append(table)
        return Sweep(prices.enter[-1] + ahead_s[graph.boundaries[-1].next], ahead_s, tables)

    def _trace(self, head: int, sweep: Sweep) -> tuple[int, ...]:
        graph = self.graph
        node = graph.heads[head]
        nodes = [node]
        while (after := graph.after[node]) >= 0:
            column = sweep.tables[after][:, graph.place[node]]
            node = graph.next[after][self._pick(column, sweep.ahead_s.item(node))]
            nodes.append(node)
        return tuple(nodes)

    def _pick(self, seconds: Floats, least_s: float) -> int:
        """Return one of the least, another one every time."""
        ties = (seconds <= least_s * TIE).nonzero()[0]
        return int(ties[self._turn % len(ties)])

    def _route(self, nodes: Sequence[int], request: RequestSignal, now_s: float, weighed: Weighed) -> Route:
        """Return a path as a route, with the times a request that is not booked on it yet would see."""
        servers, hop, prompt = self.graph.servers, self._hop.item, request.prefill_tokens
        price, read_s, share_of = weighed.price.item, weighed.read_s.item, self._share.item
        stages, ttft_s, tpot_s, first = [], 0.0, 0.0, 0
        for node in nodes:
            server = servers[node]
            share = (server.end - first) / (server.end - server.first)
            wait_s = share_of(node) * max(read_s(node) - now_s, 0.0)
            ttft_s += share * (price(0, node) + prompt * price(1, node) + wait_s)
            tpot_s += share * price(2, node)
            stages.append(Stage(server.node_id, first, server.end))
            first = server.end
        for a, b in pairwise(nodes):
            fixed_s, per_token_s = hop(0, a, b), hop(1, a, b)
            ttft_s += fixed_s + per_token_s * prompt
            tpot_s += fixed_s + per_token_s
        back_s = hop(0, nodes[-1], nodes[0]) + hop(1, nodes[-1], nodes[0])
        return Route(tuple(stages), 0, ttft_s + back_s, tpot_s + back_s)

    def _refresh(self, nodes: Iterable[int]) -> None:
        """Note what is booked on nodes: all that the next search has to know of a change."""
        reservations, servers, price = self.reservations, self.graph.servers, self._price
        for node in nodes:
            running, server = reservations.running[node], servers[node]
            is_full = running >= reservations.slots[node]
            price[0, node] = np.inf if is_full else server.prefill.fixed_s
            price[2, node] = server.token_s(running + reservations.others[node] + 1)
            self._free_kv[node] = reservations.kv_tokens[node] - reservations.kv_used[node]
