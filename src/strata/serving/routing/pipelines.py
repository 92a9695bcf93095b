"""What routers that choose among whole pipelines know of them: P pipelines as arrays, and the room in each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Bools, Floats
from strata.decision import Reason
from strata.serving.layout import Layout, Line, Route, StageServer
from strata.serving.planning.allocation import Pipeline, Stage
from strata.serving.request import RequestSignal
from strata.serving.routing.reservations import Reservations
from strata.serving.routing.router import Router

EXPLAINED: Final = 5
"""Paths shown by `explain`."""


class Times(NamedTuple):
    """By pipeline [P]: prompt tokens it need not read, seconds to the first token, seconds of a step."""

    cached_tokens: Floats
    ttft_s: Floats
    step_s: Floats


def part(server: StageServer, stage: Stage, line: Line) -> Line:
    """Return a server's line for the layers of a stage, which may be fewer than it serves; layers alike."""
    share = (stage.end - stage.first) / (server.end - server.first)
    return Line(line.fixed_s * share, line.per_unit_s * share)


class PipelineRouter(Router):
    """The common part of both: subclasses `choose`. Pipelines are in canonical order, whoever joined first.

    Lines, fixed and per-unit seconds [P, 2]: `around` of one microbatch once around the ring, over its sequences;
    `slowest` of the slowest node's decode step; `fill` of a prompt's tokens up to the first new one, all hops
    included; `pace` of the slowest node's prefill. depth [P]: stages. lump [P]: sequences of a microbatch at most.
    rate [P]: tokens/s of a full pipeline.
    free_slots, free_kv [P]: as booked, of its busiest node; running [P]: with what others sent there.
    """

    most_slots: Floats
    _nodes: list[tuple[int, ...]]

    def __init__(self) -> None:
        self.reservations = Reservations()
        self._take(())

    def arrange(self, layout: Layout) -> None:
        """Take a new layout; what runs keeps its reservations on nodes that are still there.

        Pipelines between whose nodes there is no link are left out.
        """
        servers = sorted(layout.servers, key=lambda server: server.node_id)
        self.reservations.arrange(servers)
        joined = (
            pipeline
            for pipeline in layout.pipelines
            if layout.ring([s.node_id for s in pipeline]).fixed_s < np.inf
        )
        self._take(tuple(sorted(joined)))
        for p, pipeline in enumerate(self.pipelines):
            self._figure(p, [servers[i] for i in self._nodes[p]], pipeline, layout)
        self.rate = self.most_slots / np.maximum(self.step_s(self.most_slots), 1e-12)
        self._refresh(range(len(self.pipelines)))

    def route(self, request: RequestSignal, now_s: float) -> Route | None:
        """Reserve and return a route, or None where no pipeline has room now."""
        chosen = self.choose(request, now_s)
        if chosen is None:
            return None
        p, route = chosen
        self.reservations.reserve(request.request_id, self._names[p], self._nodes[p], request.kv_tokens, now_s)
        self._refresh(self._touching[p])
        return route

    def choose(self, request: RequestSignal, now_s: float) -> tuple[int, Route] | None:
        """Return the pipeline a request takes, and note that; None where none has room."""
        raise NotImplementedError

    def times(self, request: RequestSignal, now_s: float) -> Times:
        """Return what a request would see of each pipeline."""
        cached = np.zeros(len(self.pipelines))
        fill_s = self.fill[:, 0] + self.fill[:, 1] * request.prefill_tokens
        return Times(cached, fill_s, self.step_s(self.running + 1.0))

    def step_s(self, sequences: Floats) -> Floats:
        """Return how long a decode step of so many sequences takes on each pipeline, where no prompt is read [P].

        They go around as microbatches, as many as there are stages, or as take them all: a step ends when the
        slowest node has done them all, or one has come around.
        """
        slowest_s, around_s = self.busy_s(sequences)
        return np.maximum(slowest_s, around_s, out=around_s)

    def busy_s(self, sequences: Floats) -> tuple[Floats, Floats]:
        """Return the slowest node's work in a decode step, and the time of one microbatch around the ring [P]."""
        rounds = np.maximum(np.minimum(self.depth, sequences), np.ceil(sequences / self.lump))
        slowest_s = self.slowest[:, 0] * rounds + self.slowest[:, 1] * sequences
        return slowest_s, self.around[:, 0] + self.around[:, 1] * (sequences / np.maximum(rounds, 1.0))

    def release(self, request_id: str, now_s: float) -> None:
        """Give back what a request held; nothing where it holds nothing."""
        nodes = self.reservations.release(request_id)
        if nodes:
            self._refresh({p for node in nodes for p in self._through[node]})

    def note_others(self, node_id: str, count: int) -> None:
        """Note how many requests a node has that did not come from us."""
        self._refresh({p for node in self.reservations.note_others(node_id, count) for p in self._through[node]})

    def refuses(self, request: RequestSignal, now_s: float) -> Reason | None:
        """Say why no pipeline could ever take a request, were it idle; None where one could, or none is there."""
        if not self.pipelines or request.kv_tokens <= self.most_kv.max():
            return None
        return Reason("request-too-long", data={"tokens": request.kv_tokens, "most": int(self.most_kv.max())})

    def explain(self, request: RequestSignal, now_s: float) -> list[dict[str, float | str]]:
        """Return what each pipeline would cost a request now, those with room first; at most a few."""
        (cached, ttft_s, step_s), cost, has_capacity = self.weighed(request, now_s)
        return [
            {
                "path": " > ".join(self._names[p]),
                "state": "open" if has_capacity.item(p) else "full",
                "cost_s": cost.item(p),
                "ttft_s": ttft_s.item(p),
                "tpot_s": step_s.item(p),
                "cached_tokens": cached.item(p),
            }
            for p in np.lexsort((cost, ~has_capacity))[:EXPLAINED].tolist()
        ]

    def weighed(self, request: RequestSignal, now_s: float) -> tuple[Times, Floats, Bools]:
        """Return what a request would see of each pipeline, its cost there, and where there is room [P]."""
        times = self.times(request, now_s)
        return times, times.ttft_s + request.steps_left * times.step_s, self.has_capacity(request)

    def has_capacity(self, request: RequestSignal) -> Bools:
        """Return which pipelines have a slot and the KV memory of the whole request left [P]."""
        has_both: Bools = (self.free_slots > 0) & (self.free_kv >= request.kv_tokens)
        return has_both

    def _take(self, pipelines: tuple[Pipeline, ...]) -> None:
        self.pipelines, size = pipelines, len(pipelines)
        self.around, self.slowest, self.fill, self.pace = (np.zeros((size, 2)) for _ in range(4))
        self.depth = np.array([len(pipeline) for pipeline in pipelines], dtype=float)
        self.lump = np.full(size, np.inf)
        self.rate, self.most_slots, self.most_kv = (np.zeros(size) for _ in range(3))
        self.free_slots, self.free_kv, self.running = (np.zeros(size) for _ in range(3))
        self._names = [tuple(stage.node_id for stage in pipeline) for pipeline in pipelines]
        self._nodes = [tuple(self.reservations.index[name] for name in names) for names in self._names]
        self._through: list[list[int]] = [[] for _ in self.reservations.index]
        for p, nodes in enumerate(self._nodes):
            for node in nodes:
                self._through[node].append(p)
        self._touching = [sorted({q for i in nodes for q in self._through[i]}) for nodes in self._nodes]

    def _figure(self, p: int, servers: list[StageServer], pipeline: Pipeline, layout: Layout) -> None:
        both = list(zip(servers, pipeline, strict=True))
        names = self._names[p]
        decodes = [part(server, stage, server.decode) for server, stage in both]
        prefills = [part(server, stage, server.prefill) for server, stage in both]
        self.most_slots[p] = slots = min(server.slots for server in servers)
        self.most_kv[p] = min(server.kv_tokens for server in servers)
        self.lump[p] = lump = min(server.step_sequences for server in servers)
        rounds = max(min(len(names), slots), math.ceil(slots / lump))
        around, fill = layout.ring(list(names)), Line()
        for decode, prefill in zip(decodes, prefills, strict=True):
            around, fill = around.plus(decode), fill.plus(prefill)
        for source, dest in pairwise(names):
            fill = fill.plus(layout.hop(source, dest))
        if len(names) > 1:
            fill = fill.plus(Line(layout.hop(names[-1], names[0]).at(1)))
        self.around[p], self.fill[p] = around, fill
        self.slowest[p] = max(decodes, key=lambda line: line.fixed_s * rounds + line.per_unit_s * slots)
        self.pace[p] = max(line.fixed_s for line in prefills), max(line.per_unit_s for line in prefills)

    def _refresh(self, changed: Iterable[int]) -> None:
        reservations = self.reservations
        slots, kv_tokens, running, kv_used, others = (
            reservations.slots,
            reservations.kv_tokens,
            reservations.running,
            reservations.kv_used,
            reservations.others,
        )
        for p in changed:
            nodes = self._nodes[p]
            self.free_slots[p] = min([slots[i] - running[i] for i in nodes])
            self.free_kv[p] = min([kv_tokens[i] - kv_used[i] for i in nodes])
            self.running[p] = max([running[i] + others[i] for i in nodes])


class RoundRobinPipelineRouting(PipelineRouter):
    """Smooth weighted round robin, as in nginx; the weights are the pipelines' rates.

    Every pipeline with room gains its weight; the one with most is taken and pays what all gained. Shares are
    proportional to rates, and turns of a fast pipeline lie between those of slow ones.
    """

    def arrange(self, layout: Layout) -> None:
        """Take a new layout; turns start anew."""
        super().arrange(layout)
        self._credit = np.zeros(len(self.pipelines))

    def choose(self, request: RequestSignal, now_s: float) -> tuple[int, Route] | None:
        """Return the pipeline whose turn it is; None where none has room."""
        room = self.has_capacity(request)
        if not room.any():
            return None
        gain = self.rate * room
        self._credit += gain
        p = int(np.where(room, self._credit, -np.inf).argmax())
        self._credit[p] -= gain.sum()
        _, ttft_s, step_s = self.times(request, now_s)
        return p, Route(self.pipelines[p], 0, ttft_s.item(p), step_s.item(p))
