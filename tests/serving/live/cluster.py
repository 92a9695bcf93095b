"""A cluster in ten lines under virtual time: the core with a driver that does at once what it is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from strata.serving.live.events import Arrive, Event, Finished, Heartbeat, Join, Leave, Loaded, Tick
from strata.serving.live.instructions import (
    Abort,
    Dispatch,
    EvictNode,
    Instruction,
    Load,
    Reject,
    RejectJoin,
    Release,
    Replan,
)
from strata.serving.live.replan import answer
from strata.serving.node import Node
from strata.serving.request import RequestSignal
from strata.serving.wire import StepSample
from strata.workload.huggingface import model
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

GB = 1e9
DEMAND = Demand(batch=8, prompt_tokens=200, output_tokens=100)


@cache
def llama() -> ModelInfo:
    """16 GB of weights in 32 layers."""
    return ModelInfo.of(model("llama-3.1-8b"))


def node(name: str, *, gb: float = 14.0, speed: float = 1.0, region: str = "here", **more: Any) -> Node:
    """Two of them hold the model, one does not."""
    return Node(
        name,
        speed * 100e12,
        memory_bytes=gb * GB,
        memory_bandwidth_bytes_per_s=speed * 1e12,
        region=region,
        **more,
    )


def request(name: str, *, prompt: int = 200, output: int = 100, **more: Any) -> RequestSignal:
    return RequestSignal(name, prompt_tokens=prompt, max_tokens=output, **more)


class Cluster:
    """Nodes beat by themselves while `run` passes time, but for the `silent`; those `stuck` load nothing."""

    def __init__(
        self,
        *names: str,
        demand: Demand = DEMAND,
        info: ModelInfo | None = None,
        learns: bool = False,
        **settings: Any,
    ) -> None:
        settings = {"allocation_strategy": "auto", "routing_strategy": "auto"} | settings
        self.core = Core(SchedulerConfig(**settings), info or llama(), demand, learns=learns)
        self.now_s = 0.0
        self.lives: dict[str, int] = {}
        self.silent: set[str] = set()
        self.stuck: set[str] = set()
        self.is_lazy = False
        self.held: list[Replan | Load] = []
        self.log: list[Instruction] = []
        self.at: dict[str, Dispatch] = {}
        self.rejected: dict[str, str] = {}
        self.join(*names)

    def join(self, *names: str | Node, samples: Mapping[str, Sequence[StepSample]] | None = None) -> None:
        """Have nodes join, each a moment after the other; samples: what layers took there before."""
        for one in names:
            joining = one if isinstance(one, Node) else node(one)
            self.lives[joining.node_id] = self.lives.get(joining.node_id, 0) + 1
            measured = tuple((samples or {}).get(joining.node_id, ()))
            self.tell(Join(joining, self.lives[joining.node_id], measured))
        self.run(1.0)

    def leave(self, name: str) -> None:
        self.tell(Leave(name, self.lives.pop(name)))

    def send(self, *requests: RequestSignal) -> None:
        for one in requests:
            self.tell(Arrive(one))

    def finish(self, *names: str, tokens: int = 100) -> None:
        for name in names:
            self.tell(Finished(name, self.at.pop(name).attempt, tokens))

    def run(self, seconds: float) -> None:
        """Let time pass: beats every 5 s, ticks whenever the core wants one."""
        end_s = self.now_s + seconds
        while (wake_s := self.core.next_wake_s(self.now_s)) is not None and wake_s <= end_s:
            self.now_s = max(wake_s, self.now_s + 1e-6)
            self.heartbeat(*(name for name in self.lives if name not in self.silent))
            self.tell(Tick())
        self.now_s = end_s
        self.tell(Tick())

    def heartbeat(self, *names: str) -> None:
        for name in names:
            running = frozenset(r for r, d in self.at.items() if any(s.node_id == name for s in d.route.stages))
            self.tell(Heartbeat(name, self.lives[name], running))

    def tell(self, event: Event) -> list[Instruction]:
        return self.obey(self.core.handle(event, self.now_s))

    def obey(self, instructions: Iterable[Instruction]) -> list[Instruction]:
        todo, done = deque(instructions), list[Instruction]()
        while todo:
            one = todo.popleft()
            done.append(one)
            if isinstance(one, (Replan, Load)) and self.is_lazy:
                self.held.append(one)
            elif isinstance(one, Replan):
                todo += self.core.handle(
                    answer(one, self.core.model, self.core.demand, self.core.config), self.now_s
                )
            elif isinstance(one, Load):
                if one.node_id in self.lives and one.node_id not in self.silent | self.stuck:
                    loaded = Loaded(one.node_id, self.lives[one.node_id], one.version)
                    todo += self.core.handle(loaded, self.now_s)
            elif isinstance(one, Dispatch):
                self.at[one.request_id] = one
            elif isinstance(one, Abort):
                self.at.pop(one.request_id, None)
            elif isinstance(one, Reject):
                self.rejected[one.request_id] = one.reason.token
            else:
                assert isinstance(one, (Release, RejectJoin, EvictNode))
        self.log += done
        return done

    def catch_up(self) -> None:
        """Do what was held back while the cluster was lazy."""
        self.is_lazy, held, self.held = False, self.held, []
        self.obey(held)

    @property
    def pipelines(self) -> list[list[str]]:
        return sorted([stage.node_id for stage in pipeline] for pipeline in self.core.serving())
