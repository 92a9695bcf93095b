"""Seed 003's interface, as its document shows it: the five groups of its test list meet here in small."""

from __future__ import annotations

import pytest

from strata.serving.live.config import SchedulerConfig
from strata.serving.scheduler import DynamicProgrammingLayerAllocator, GreedyLayerAllocator, Scheduler
from tests.serving.live.cluster import llama, node, request


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def scheduler(*names: str, **more) -> Scheduler:
    return Scheduler(llama(), [node(name) for name in names], clock=Clock(), **more)


def test_the_settings_have_the_seed_s_names_and_defaults():
    config = SchedulerConfig()
    assert (config.allocation_strategy, config.routing_strategy) == ("dp", "rr")
    assert (config.rebalance_threshold, config.heartbeat_timeout) == (0.8, 60.0)
    assert config.request_arrival_horizon == 600.0


@pytest.mark.parametrize("strategy", ["dp", "greedy", "auto"])
@pytest.mark.parametrize("routing", ["rr", "dp", "auto"])
def test_requests_are_scheduled_along_whole_pipelines(strategy, routing):
    one = scheduler("a", "b", "c", "d", strategy=strategy, routing_strategy=routing)
    route = one.schedule_request(request("r"))
    assert route is not None
    assert (route.stages[0].first, route.stages[-1].end) == (0, 32)
    assert one.nodes[route.stages[0].node_id].get_current_load() > 0
    one.finish_request("r", generated=100)
    assert all(each.running == 0 for each in one.nodes.values())


def test_nodes_come_and_go():
    one = scheduler("a")
    assert one.schedule_request(request("r")) is None
    one.add_node(node("b"))
    assert one.route_of("r") is not None
    one.remove_node("a")
    assert one.route_of("r") is None or one.pipelines == ()
    one.add_node(node("c"))
    assert one.route_of("r") is not None


def test_rebalancing_keeps_what_is_good():
    one = scheduler("a", "b", "c", "d")
    assert one.rebalance() == one.pipelines


def test_a_node_says_whether_it_takes_a_request_and_how_long_it_needs():
    one = scheduler("a", "b").nodes["a"]
    assert one.can_handle_request(request("r"))
    assert not one.can_handle_request(request("r", prompt=10**9))
    assert one.get_latency_estimate(request("r", output=200)) > one.get_latency_estimate(request("r"))
    assert node("alone").get_current_load() == 1.0


def test_the_report_has_the_five_kpis():
    one = scheduler("a", "b")
    one.schedule_request(request("r"))
    one.finish_request("r")
    report = one.metrics.generate_report()
    assert report["throughput"]["served"] == 1
    assert {"request_latency", "resource_utilization", "load_balance", "network_efficiency"} <= set(report)


def test_why_a_request_was_given_up_or_went_where_it_did():
    one = scheduler("a", "b")
    assert one.schedule_request(request("long", prompt=10**9)) is None
    assert one.why_rejected("long").token == "request-too-long"
    one.schedule_request(request("r"))
    told = one.explain("r")
    assert told["timeline"][0]["route"] == [list(stage) for stage in one.route_of("r").stages]
    assert told["paths_now"][0]["path"]
    one.cancel_request("r")
    assert one.route_of("r") is None


@pytest.mark.parametrize("allocator", [GreedyLayerAllocator(), DynamicProgrammingLayerAllocator()])
def test_allocators_take_nodes_and_a_model(allocator):
    found = allocator.allocate_layers([node("a"), node("b")], llama())
    assert sum(stage.end - stage.first for stage in found.pipelines[0]) == 32
    assert allocator.allocate_layers([node("a", gb=1.0)], llama()).reasons
