"""A node left idle serves a stage beside another one: more tokens, the same layers wherever a node appears."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.live.config import SchedulerConfig
from strata.serving.live.instructions import Replan
from strata.serving.live.replan import horizon_tokens
from strata.serving.planning.allocate import allocate
from strata.serving.planning.allocation import Stage, faults, score
from strata.serving.planning.goal import Goal
from tests.serving.live.cluster import DEMAND, Cluster, llama, request
from tests.serving.live.cluster import node as machine
from tests.serving.planning.pools import node, pool, random_pool
from tests.support.laws import examples


@pytest.mark.long("a law over searched allocations")
@given(st.integers(0, 2000), st.integers(2, 10))
@examples(40)
def test_sharing_never_serves_less_and_stays_legal(seed, nodes):
    one = random_pool(seed, num_nodes=nodes, layers=16, room=(0.2, 0.6))
    alone = allocate(one, goal=Goal.THROUGHPUT)
    shared = allocate(one, goal=Goal.THROUGHPUT, share_stages=True)
    assert faults(one, shared.pipelines, may_share=True) == []
    assert shared.performance.tokens_per_s >= alone.performance.tokens_per_s * (1 - 1e-9)
    assert shared.performance.tokens_per_s <= shared.bound_tokens_per_s * (1 + 1e-9)


def test_a_third_node_that_holds_too_little_for_a_pipeline_adds_its_speed():
    """Two hold 4 of 8 layers each, the third too: alone it is idle, beside another it takes half its sequences."""
    one = pool(*(node(name, room=4) for name in "abc"), hop_s=0.0)
    alone, shared = allocate(one, goal=Goal.THROUGHPUT), allocate(one, share_stages=True)
    assert len(alone.pipelines[0]) <= 3
    assert shared.performance.tokens_per_s >= alone.performance.tokens_per_s


def test_tokens_of_pipelines_that_share_a_node_are_not_counted_twice():
    one = pool(*(node(name, room=8) for name in "abc"), hop_s=0.0)
    both = ((Stage("a", 0, 4), Stage("b", 4, 8)), (Stage("a", 0, 4), Stage("c", 4, 8)))
    assert score(one, both).tokens_per_s == pytest.approx(score(one, both[:1]).tokens_per_s)
    uneven = ((Stage("a", 0, 2), Stage("b", 2, 8)), (Stage("a", 0, 2), Stage("c", 2, 8)))
    assert score(one, uneven).tokens_per_s == pytest.approx(2 * score(one, uneven[:1]).tokens_per_s)
    assert faults(one, both) == ["node a is used twice"]
    assert faults(one, both, may_share=True) == []


def test_what_a_layout_earns_until_the_horizon_is_no_more_than_its_nodes_work_together():
    """Each pipeline was counted as if it had its nodes alone."""
    one = pool(*(node(name, room=8) for name in "abc"), hop_s=0.0)
    first, second = (Stage("a", 0, 4), Stage("b", 4, 8)), (Stage("a", 0, 4), Stage("c", 4, 8))
    held = dict.fromkeys("abc", (0, 8))
    plan, serving = Replan(1, (), current=(first, second)), replace(one, held=held)
    alone, both = (
        horizon_tokens(plan, serving, pipelines, model=llama(), demand=DEMAND, config=SchedulerConfig())
        for pipelines in ([first], [first, second])
    )
    assert both == pytest.approx(alone)


def test_a_live_cluster_serves_along_shared_stages():
    nodes = [machine("a", gb=14.0), machine("b", gb=14.0), machine("c", gb=3.0)]
    cluster = Cluster(share_stages=True)
    cluster.join(*nodes)
    used = {name for names in cluster.pipelines for name in names}
    assert {"a", "b"} <= used
    cluster.send(*(request(f"r{i}") for i in range(6)))
    assert len(cluster.at) == 6
    cluster.finish(*sorted(cluster.at))
    assert all(one["running"] == 0 for one in cluster.core.status()["nodes"])
