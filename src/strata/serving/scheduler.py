"""The names of seed 003: its `Scheduler`, the live core in one process for programs and notebooks, and allocators.

Nodes are taken to load their layers at once and to live until they are removed; a cluster whose nodes speak for
themselves is `strata serve gateway`, over the same core.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal

from strata.clock import Clock
from strata.decision import Reason
from strata.serving.layout import Route
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from strata.serving.live.events import Arrive, Cancelled, Event, Finished, Join, Leave, Loaded
from strata.serving.live.instructions import Dispatch, Instruction, Load, Reject, Replan
from strata.serving.live.replan import answer
from strata.serving.node import Node
from strata.serving.observe import pool_of
from strata.serving.planning.allocate import Strategy, allocate
from strata.serving.planning.allocation import Allocation, Pipeline
from strata.serving.planning.goal import Goal
from strata.serving.request import RequestSignal
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

USUAL_DEMAND = Demand(batch=8, prompt_tokens=1024, output_tokens=256)
"""What is asked of a model where nobody says: assumed."""


class Scheduler:
    """One model on some nodes: layers onto nodes, requests onto pipelines.

    config: all of the seed's settings, instead of the two strategies. clock: seconds that never run backwards.
    """

    def __init__(
        self,
        model_info: ModelInfo,
        nodes: Iterable[Node] = (),
        strategy: Literal["auto", "dp", "greedy"] = "dp",
        routing_strategy: Literal["auto", "dp", "rr"] = "rr",
        *,
        config: SchedulerConfig | None = None,
        demand: Demand = USUAL_DEMAND,
        clock: Clock = time.monotonic,
    ) -> None:
        if config is None:
            config = SchedulerConfig(allocation_strategy=strategy, routing_strategy=routing_strategy)
        self._core, self._clock = Core(config, model_info, demand), clock
        self._incarnations: dict[str, int] = {}
        self._routes: dict[str, tuple[int, Route]] = {}
        self._rejected: dict[str, Reason] = {}
        for node in nodes:
            self._join(node)
        self._obey(self._core.rebalance(clock()))

    @property
    def metrics(self) -> Any:
        """The collector of the five KPIs."""
        return self._core.metrics

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes as they are now, by id."""
        return {node.node_id: node for node in self._core.nodes()}

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """What serves now."""
        return self._core.serving()

    def add_node(self, node: Node) -> None:
        """Take a node in; spare nodes are laid out at once where they help."""
        self._join(node)
        self._obey(self._core.rebalance(self._clock()))

    def remove_node(self, node_id: str) -> None:
        """Take a node out; its requests go on elsewhere. Nothing happens for a node that is not there."""
        if node_id in self._incarnations:
            self._handle(Leave(node_id, self._incarnations[node_id]))

    def schedule_request(self, request: RequestSignal) -> Route | None:
        """Send a request off. None where it waits for room, or was rejected (`why_rejected`)."""
        self._handle(Arrive(request))
        return self.route_of(request.request_id)

    def route_of(self, request_id: str) -> Route | None:
        """Return where a request runs now; None while it waits, and after its end."""
        entry = self._routes.get(request_id)
        return entry[1] if entry else None

    def why_rejected(self, request_id: str) -> Reason | None:
        """Return why a request was given up; None where it was not."""
        return self._rejected.get(request_id)

    def finish_request(self, request_id: str, generated: int = 1) -> None:
        """Give back what a request held; whoever waits goes next."""
        if request_id in self._routes:
            attempt, _ = self._routes.pop(request_id)
            self._handle(Finished(request_id, attempt, generated))

    def cancel_request(self, request_id: str) -> None:
        """Forget a request, wherever it is."""
        self._routes.pop(request_id, None)
        self._handle(Cancelled(request_id))

    def rebalance(self) -> tuple[Pipeline, ...]:
        """Look for a better layout; return what serves afterwards. It stays where moving does not pay."""
        self._obey(self._core.rebalance(self._clock()))
        return self.pipelines

    def explain(self, request_id: str) -> dict[str, Any] | None:
        """Return where a request went and why."""
        return self._core.explain(request_id)

    def _join(self, node: Node) -> None:
        self._incarnations[node.node_id] = self._incarnations.get(node.node_id, 0) + 1
        self._handle(Join(node, self._incarnations[node.node_id]))

    def _handle(self, event: Event) -> None:
        self._obey(self._core.handle(event, self._clock()))

    def _obey(self, instructions: Iterable[Instruction]) -> None:
        todo = deque(instructions)
        while todo:
            instruction = todo.popleft()
            now_s = self._clock()
            if isinstance(instruction, Replan):
                planned = answer(instruction, self._core.model, self._core.demand, self._core.config)
                todo += self._core.handle(planned, self._clock())
            elif isinstance(instruction, Load):
                todo += self._core.handle(
                    Loaded(instruction.node_id, self._incarnations[instruction.node_id], instruction.version),
                    now_s,
                )
            elif isinstance(instruction, Dispatch):
                self._routes[instruction.request_id] = (instruction.attempt, instruction.route)
            elif isinstance(instruction, Reject):
                self._routes.pop(instruction.request_id, None)
                self._rejected[instruction.request_id] = instruction.reason


class LayerAllocator:
    """Allocates by one strategy; the answer is the same whatever order the nodes come in."""

    strategy: ClassVar[Strategy] = "auto"

    def __init__(self, goal: Goal = Goal.BOTH) -> None:
        self.goal = goal

    def allocate_layers(
        self, nodes: Sequence[Node], model_info: ModelInfo, *, demand: Demand = USUAL_DEMAND
    ) -> Allocation:
        """Return pipelines over the nodes; none, and the reasons, where they cannot hold the model."""
        return allocate(pool_of(nodes, model_info, demand), self.strategy, goal=self.goal)


class GreedyLayerAllocator(LayerAllocator):
    """Nodes from the most capable down, each filled, then cut evenly."""

    strategy = "greedy"


class DynamicProgrammingLayerAllocator(LayerAllocator):
    """Exact over ordered nodes: the least sum of stages and hops for latency, else the least slowest stage."""

    strategy = "dp"
