"""Replays in one line each: pipelines of like nodes, requests as data, and a scheduler that is only a queue."""

from __future__ import annotations

import math
from collections import deque

from strata.serving.layout import Layout, Line, Route, StageServer
from strata.serving.live.events import Arrive, Cancelled, Failed, Finished, Planned
from strata.serving.live.instructions import Dispatch
from strata.serving.node import Node
from strata.serving.planning.allocation import Stage
from strata.serving.replay.engine import Replay, ReplayEnvironment
from strata.workload.requests import Request


class Fifo:
    """Sends the oldest waiting request to the first pipeline with a free slot; knows nothing of nodes."""

    def __init__(self, pipelines, slots):
        self.free = [[slots, Route(stages)] for stages in pipelines]
        self.waiting, self.running, self.attempts = deque(), {}, {}

    def next_wake_s(self, now_s):
        return None

    def handle(self, event, now_s):
        match event:
            case Arrive(request):
                self.waiting.append(request.request_id)
            case Finished(request_id=name) | Failed(request_id=name) | Cancelled(name):
                if name in self.running:
                    self.running.pop(name)[0] += 1
                elif name in self.waiting:
                    self.waiting.remove(name)
                if isinstance(event, Failed):
                    self.waiting.appendleft(name)
        out = []
        for pipeline in self.free:
            while pipeline[0] and self.waiting:
                name = self.waiting.popleft()
                pipeline[0] -= 1
                self.running[name] = pipeline
                self.attempts[name] = self.attempts.get(name, 0) + 1
                out.append(Dispatch(name, self.attempts[name], pipeline[1], (1,) * len(pipeline[1].stages)))
        return out


def node(name):
    return Node(name, compute_capability=1e14)


def pipeline(*names):
    return tuple(Stage(name, i, i + 1) for i, name in enumerate(names))


def layout(stages, *, decode=Line(0.01), prefill=Line(), hop=Line(), curve=None):  # noqa: B008 (a NamedTuple of numbers)
    """The lines of a pipeline of like nodes."""
    names = [stage.node_id for stage in stages]
    return Layout(
        len(stages),
        tuple(StageServer(s.node_id, s.first, s.end, decode, prefill, 1000, 10**9, curve) for s in stages),
        (stages,),
        {(a, b): hop for a in names for b in names if a != b},
    )


def replay(requests, *pipelines, slots=1000, fault_events=(), absent=(), scheduler=None, more=None, **lines):
    """A replay of requests, (at_s, prompt, output) each, that has not run."""
    names = sorted({stage.node_id for stages in pipelines for stage in stages})
    around = ReplayEnvironment(
        layout_of=lambda stages: layout(stages, **lines),
        plan=lambda plan: Planned(plan.version, pipelines),
        load_s=lambda load: 1.0,
        **({"end_s": math.inf} | (more or {})),
    )
    return Replay(
        scheduler or Fifo(pipelines, slots),
        [node(name) for name in names],
        [request if isinstance(request, Request) else Request(*request) for request in requests],
        around,
        fault_events=fault_events,
        absent=absent,
    )


def ran(requests, *pipelines, **more):
    """The same, run to its end."""
    run = replay(requests, *pipelines, **more)
    assert run.run()
    run.close()
    return run
