"""The seed's five KPIs: what was not measured is None, shares are means over time."""

from __future__ import annotations

import numpy as np
import pytest

from strata.serving.live.metrics import GONE_S, MetricsCollector

KPIS = {"request_latency", "throughput", "resource_utilization", "load_balance", "network_efficiency"}


def test_a_report_has_all_five_and_says_none_where_nothing_was_measured():
    report = MetricsCollector().generate_report()
    assert set(report) == KPIS | {"elapsed_s", "trust"}
    assert report["request_latency"]["end_to_end_s"] is None
    assert report["throughput"]["requests_per_s"] is None
    assert report["load_balance"]["jain"] is None
    assert report["network_efficiency"]["useful_share"] is None


def test_latencies_are_percentiles_and_throughput_is_by_time():
    metrics = MetricsCollector()
    for i in range(1, 101):
        metrics.count("served")
        metrics.collect_request_latency(f"r{i}", i / 100)
        metrics.collect_tokens(0.1, 0.02, 50)
    metrics.at(10.0)
    report = metrics.generate_report()
    assert report["request_latency"]["end_to_end_s"]["p50"] == pytest.approx(0.505)
    assert report["throughput"]["requests_per_s"] == pytest.approx(10.0)
    assert report["throughput"]["tokens_per_s"] == pytest.approx(500.0)


def test_usage_is_a_mean_over_the_time_it_lasted():
    metrics = MetricsCollector()
    metrics.collect_resource_usage("a", {"slots": 1.0})
    metrics.collect_resource_usage("b", {"slots": 0.0})
    metrics.at(3.0)
    metrics.collect_resource_usage("a", {"slots": 0.0})
    metrics.at(4.0)
    report = metrics.generate_report()
    assert report["resource_utilization"]["by_node"] == {"a": {"slots": 0.75}, "b": {"slots": 0.0}}
    assert report["resource_utilization"]["mean"] == pytest.approx(0.375)
    assert report["load_balance"]["jain"] == pytest.approx(0.5)
    assert report["load_balance"]["coefficient_of_variation"] == pytest.approx(1.0)


def test_a_node_that_has_gone_is_not_counted_on():
    metrics = MetricsCollector()
    metrics.collect_resource_usage("a", {"slots": 1.0})
    metrics.at(1.0)
    metrics.forget("a")
    metrics.at(100.0)
    assert metrics.generate_report()["resource_utilization"]["by_node"] == {"a": {"slots": 1.0}}


def test_work_done_again_makes_the_network_less_efficient():
    metrics = MetricsCollector()
    metrics.collect_network(300.0)
    metrics.collect_network(0.0, 100.0)
    metrics.at(2.0)
    assert metrics.generate_report()["network_efficiency"] == {"useful_share": 0.75, "bytes_per_s": 200.0}


def test_nodes_long_gone_lose_their_names_and_nothing_else():
    metrics = MetricsCollector()
    for i in range(50):
        metrics.at(i * GONE_S)
        metrics.collect_resource_usage(f"n{i}", {"slots": (i % 3) / 2, "kv": 0.25})
        metrics.at(i * GONE_S + 10.0)
        metrics.forget(f"n{i}")
        metrics.count("served")
    report = metrics.generate_report()
    assert set(report["resource_utilization"]["by_node"]) == {"n48", "n49"}
    loads = np.array([max((i % 3) / 2, 0.25) for i in range(50)])
    assert report["throughput"]["served"] == 50
    assert report["resource_utilization"]["mean"] == pytest.approx(loads.mean())
    assert report["load_balance"]["jain"] == pytest.approx(loads.sum() ** 2 / (50 * (loads**2).sum()))
    assert report["load_balance"]["coefficient_of_variation"] == pytest.approx(loads.std() / loads.mean())


def test_a_node_that_comes_back_is_the_same_node():
    metrics = MetricsCollector()
    metrics.collect_resource_usage("a", {"slots": 1.0})
    metrics.at(10.0)
    metrics.forget("a")
    metrics.at(20.0)
    metrics.collect_resource_usage("a", {"slots": 0.0})
    metrics.at(30.0 + GONE_S)
    report = metrics.generate_report()["resource_utilization"]["by_node"]["a"]
    assert report["slots"] == pytest.approx(10.0 / (20.0 + GONE_S))


def test_a_node_that_was_there_for_no_time_counts_for_nothing():
    metrics = MetricsCollector()
    metrics.collect_resource_usage("a", {"slots": 1.0})
    metrics.forget("a")
    metrics.at(2 * GONE_S)
    metrics.at(2 * GONE_S + 1)
    assert metrics.generate_report()["resource_utilization"] == {"mean": None, "by_node": {}}


def test_what_a_machine_has_in_use_is_told_and_is_no_load_of_ours():
    metrics = MetricsCollector()
    metrics.collect_resource_usage("a", {"slots": 0.5, "kv": 0.25, "cpu": 0.9, "memory": 1.0})
    metrics.at(2.0)
    report = metrics.generate_report()
    assert report["resource_utilization"]["by_node"]["a"]["cpu"] == pytest.approx(0.9)
    assert report["resource_utilization"]["mean"] == pytest.approx(0.5)
    assert metrics.usage == {"a": {"slots": 0.5, "kv": 0.25, "cpu": 0.9, "memory": 1.0}}


def test_joins_are_counted_beyond_a_nodes_life_and_for_so_many_names(monkeypatch):
    monkeypatch.setattr("strata.serving.live.metrics.NAMES", 2)
    metrics = MetricsCollector()
    for name in ("a", "b", "a"):
        metrics.count_join(name)
        metrics.forget(name)
    assert metrics.joins == {"b": 1, "a": 2}
    metrics.count_join("c")
    assert metrics.joins == {"a": 2, "c": 1}
