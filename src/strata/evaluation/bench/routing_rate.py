"""How fast routers decide: synthetic layouts, requests of all sizes, and the time of every decision."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import numpy as np

from strata.serving.layout import Layout, Line, StageServer
from strata.serving.planning.allocation import Stage
from strata.serving.request import RequestSignal
from strata.serving.routing.router import Router

LAYERS: Final = 64
REGIONS: Final = 5
SLOTS: Final = 16
KV_TOKENS: Final = 200_000
SPEEDS: Final = (1.0, 1.5, 3.0)
"""Step times of kinds of nodes, as multiples of the fastest."""


def random_layout(replicas: int, stages: int, rng: np.random.Generator) -> Layout:
    """Return pipelines of nodes of three speeds in up to five regions; no two hops are alike.

    1-8 ms inside a region and 30-200 ms across, one way, each hop its own, at 10 Gbit/s and 8192 hidden values.
    """
    cuts = [round(LAYERS * s / stages) for s in range(stages + 1)]
    servers, pipelines = list[StageServer](), []
    for r in range(replicas):
        speed = float(rng.choice(SPEEDS))
        decode, prefill = Line(5e-3 * speed, 1e-4 * speed), Line(1e-3, 2e-5 * speed)
        pipeline = tuple(Stage(f"n{r:03d}-{s}", cuts[s], cuts[s + 1]) for s in range(stages))
        servers += [StageServer(*stage, decode, prefill, SLOTS, KV_TOKENS) for stage in pipeline]
        pipelines.append(pipeline)
    names = [server.node_id for server in servers]
    near = rng.uniform(1e-3, 8e-3, (len(names), len(names))).tolist()
    far = rng.uniform(30e-3, 200e-3, (len(names), len(names))).tolist()
    token_s = 8192 * 2 / (10e9 / 8)
    hops = {
        (a, b): Line(near[i][j] if i // stages % REGIONS == j // stages % REGIONS else far[i][j], token_s)
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if i != j
    }
    return Layout(LAYERS, tuple(servers), tuple(pipelines), hops)


def random_requests(rng: np.random.Generator) -> Iterator[RequestSignal]:
    """Go on for ever: prompts of 64 to 4096 tokens, answers of 16 to 512, half of them behind one of 20 long
    beginnings that others had before.
    """
    number = 0
    while True:
        prompts = np.exp(rng.uniform(np.log(64), np.log(4096), 256)).astype(int).tolist()
        answers = np.exp(rng.uniform(np.log(16), np.log(512), 256)).astype(int).tolist()
        shared = rng.integers(0, 40, 256).tolist()
        for prompt, answer, which in zip(prompts, answers, shared, strict=True):
            own, common = prompt // 16, 64 if which < 20 else 0
            blocks = (*(which * 64 + i for i in range(common)), *(10_000 + number * 256 + i for i in range(own)))
            yield RequestSignal(f"r{number}", prompt + 16 * common, answer, blocks=blocks)
            number += 1


def decision_times(
    router: Router, layout: Layout, *, count: int, rng: np.random.Generator, clock_ns: Callable[[], int]
) -> list[int]:
    """Return the time of `count` decisions [ns], each a route and the release of the oldest request.

    Half of the slots are taken all the while, and 20 ms of virtual time pass between two requests.
    """
    router.arrange(layout)
    requests, now_s, live = random_requests(rng), 0.0, deque[str]()
    for request in islice(requests, len(layout.pipelines) * SLOTS // 2):
        now_s += 0.02
        if router.route(request, now_s):
            live.append(request.request_id)
    times = []
    for request in islice(requests, count):
        now_s += 0.02
        oldest = live.popleft()
        started = clock_ns()
        route = router.route(request, now_s)
        router.release(oldest, now_s)
        times.append(clock_ns() - started)
        assert route is not None, "half of the slots are free"
        live.append(request.request_id)
    return times
