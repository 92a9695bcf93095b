"""Seed 003's allocators: nodes and a model in, an allocation out, by the strategies behind `allocate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from strata.serving.node import Node
from strata.serving.observe import pool_of
from strata.serving.planning.allocate import Strategy, allocate
from strata.serving.planning.allocation import Allocation
from strata.serving.planning.goal import Goal
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

USUAL_DEMAND = Demand(batch=8, prompt_tokens=1024, output_tokens=256)
"""What is asked of a model where nobody says: assumed."""


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
