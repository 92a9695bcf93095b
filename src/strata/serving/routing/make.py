"""Routers by the names that a configuration gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from strata.serving.routing.layered import DynamicProgrammingRouting
from strata.serving.routing.least_work import LeastWorkRouting
from strata.serving.routing.pipelines import RoundRobinPipelineRouting
from strata.serving.routing.router import Router

RoutingStrategy = Literal["auto", "dp", "rr"]


def make_router(strategy: RoutingStrategy) -> Router:
    """Return a router without a layout: it answers None until it is arranged."""
    routers: dict[RoutingStrategy, Callable[[], Router]] = {
        "auto": LeastWorkRouting,
        "dp": DynamicProgrammingRouting,
        "rr": RoundRobinPipelineRouting,
    }
    return routers[strategy]()
