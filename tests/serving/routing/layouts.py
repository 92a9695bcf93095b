"""Small layouts in one line each, and what a router's answers are checked against: every path by brute force."""

from __future__ import annotations

import math
import random
from itertools import pairwise

from strata.serving.layout import Layout, Line, StageServer
from strata.serving.planning.allocation import Stage
from strata.serving.request import RequestSignal
from strata.serving.routing.make import make_router

STRATEGIES = ["rr", "dp", "auto"]


def server(
    name: str,
    first: int = 0,
    end: int = 4,
    *,
    step_s: float = 0.01,
    per_sequence_s: float = 0.001,
    prefill_s: float = 1e-4,
    slots: int = 4,
    kv_tokens: int = 1000,
    step_sequences: float = math.inf,
) -> StageServer:
    decode, prefill = Line(step_s, per_sequence_s), Line(0.0, prefill_s)
    return StageServer(name, first, end, decode, prefill, slots, kv_tokens, step_sequences=step_sequences)


def layout(*pipelines: tuple[StageServer, ...], hop_s: float = 1e-3, **more) -> Layout:
    """Pipelines of servers, all hops alike unless `hops` names them."""
    servers = tuple({one.node_id: one for pipeline in pipelines for one in pipeline}.values())
    return Layout(pipelines[0][-1].end, servers, stages_of(pipelines), far=Line(hop_s), **more)


def stages_of(pipelines):
    return tuple(tuple(Stage(one.node_id, one.first, one.end) for one in pipeline) for pipeline in pipelines)


def alone(*servers: StageServer) -> Layout:
    """Each server a pipeline of its own."""
    return layout(*((one,) for one in servers))


def request(name: str = "r", prompt: int = 10, most: int = 10, **more) -> RequestSignal:
    return RequestSignal(name, prompt, most, **more)


def router(strategy: str, one: Layout):
    made = make_router(strategy)
    made.arrange(one)
    return made


def random_layout(seed: int, *, most_slots: int = 3) -> Layout:
    """2 to 4 pipelines over 6 layers, cut anywhere, and some servers that are in none."""
    rng = random.Random(seed)
    layers, pipelines = 6, []
    for p in range(rng.randint(2, 4)):
        cuts = sorted({0, layers, *(rng.randint(1, layers - 1) for _ in range(rng.randint(0, 2)))})
        pipelines.append(tuple(_random_server(rng, f"p{p}-{a}", a, b, most_slots) for a, b in pairwise(cuts)))
    spare = [
        _random_server(rng, f"spare{i}", a := rng.randrange(layers), rng.randint(a + 1, layers), most_slots)
        for i in range(rng.randrange(3))
    ]
    servers = (*(one for pipeline in pipelines for one in pipeline), *spare)
    names = [one.node_id for one in servers]
    hops = {
        (a, b): Line(rng.uniform(1e-3, 5e-2), rng.uniform(0, 1e-4))
        for a in names
        for b in names
        if a != b and rng.random() < 0.9
    }
    return Layout(layers, servers, stages_of(pipelines), hops)


def _random_server(rng: random.Random, name: str, first: int, end: int, most_slots: int) -> StageServer:
    return server(
        name,
        first,
        end,
        step_s=rng.uniform(1e-3, 3e-2) * (end - first),
        per_sequence_s=rng.uniform(0, 5e-3),
        prefill_s=rng.uniform(1e-5, 1e-3),
        slots=rng.randint(1, most_slots),
        kv_tokens=rng.randint(50, 400),
    )


def shuffled(one: Layout, seed: int) -> Layout:
    """The same layout, its nodes and pipelines in another order."""
    rng = random.Random(seed)
    servers, pipelines = list(one.servers), list(one.pipelines)
    rng.shuffle(servers)
    rng.shuffle(pipelines)
    return Layout(one.num_layers, tuple(servers), tuple(pipelines), one.hops, one.far)


def every_path(one: Layout, at: int = 0):
    """All ways through the layers; a server may be entered inside its range."""
    if at == one.num_layers:
        yield ()
    for server_ in one.servers:
        if server_.first <= at < server_.end:
            for rest in every_path(one, server_.end):
                yield (Stage(server_.node_id, at, server_.end), *rest)


def latency_s(one: Layout, path: tuple[Stage, ...], asked: RequestSignal, running: dict[str, int]) -> float:
    """Seconds until a request's last token, no prompt being read before it."""
    servers = {server_.node_id: server_ for server_ in one.servers}
    steps, total = asked.max_tokens - 1, 0.0
    for i, stage in enumerate(path):
        server_ = servers[stage.node_id]
        share = (stage.end - stage.first) / (server_.end - server_.first)
        total += share * server_.prefill.at(asked.prompt_tokens)
        total += share * steps * server_.decode.at(running[stage.node_id] + 1)
        if i + 1 < len(path):
            hop = one.hop(stage.node_id, path[i + 1].node_id)
            total += hop.at(asked.prompt_tokens) + steps * hop.at(1)
    return total + (1 + steps) * one.hop(path[-1].node_id, path[0].node_id).at(1)
