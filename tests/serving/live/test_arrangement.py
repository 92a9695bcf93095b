"""What nodes measure: the layout that routers reckon with, and when layers are laid out anew for it."""

from __future__ import annotations

import pytest

from strata.serving.live.events import Heartbeat, Tick
from strata.serving.live.instructions import Replan
from strata.serving.wire import StepSample
from tests.serving.live.cluster import Cluster, node


def test_measurements_reach_the_routers_with_the_next_tick():
    cluster = Cluster("a", "b")
    before = cluster.core.nodes()[0].decode_s
    slow = tuple(StepSample("decode", 0, 16, 8, 200.0, 1.0) for _ in range(20))
    cluster.tell(Heartbeat("a", 1, samples=slow))
    cluster.tell(Tick())
    assert cluster.core.nodes()[0].decode_s > 5 * before


def block(seconds):
    """What one block took, measured a few times before the node joined."""
    return tuple(StepSample("decode", 1, 2, units, 0.0, seconds) for units in (1, 1, 1, 8, 8, 8))


def layers(cluster):
    (pipeline,) = cluster.core.serving()
    return {stage.node_id: stage.end - stage.first for stage in pipeline}


def test_the_first_plan_goes_by_what_a_block_took_before_its_node_joined():
    cluster = Cluster()
    cluster.join("a", "b", samples={"a": block(0.01), "b": block(0.03)})
    assert layers(cluster) == {"a": 24, "b": 8}


def test_what_a_block_took_in_an_earlier_life_is_forgotten():
    cluster = Cluster()
    cluster.join("a", "b", samples={"a": block(0.01), "b": block(0.03)})
    cluster.join("b", samples={"b": block(0.01)})
    assert abs(layers(cluster)["a"] - layers(cluster)["b"]) <= 2


def works(cluster, **seconds):
    """Have nodes measure steps over the layers they have, and time pass until a plan may follow."""
    held = {s.node_id: (s.first, s.end) for stages in cluster.core.serving() for s in stages}
    for name, each_s in seconds.items():
        first, end = held[name]
        steps = tuple(StepSample("decode", first, end, n, 0.0, each_s * (end - first)) for n in (1, 1, 1, 8, 8, 8))
        for _ in range(4):  # until what was measured before counts for little
            cluster.tell(Heartbeat(name, 1, samples=steps))
    cluster.run(100.0)


def test_layers_leave_a_node_that_has_become_slower_than_the_plan_had_it():
    """Found by use: for a slower node its layers were kept for ever, however far off the plan's times were."""
    cluster = Cluster()
    cluster.join("a", "b", samples={"a": block(0.01), "b": block(0.01)})
    assert abs(layers(cluster)["a"] - layers(cluster)["b"]) <= 2
    works(cluster, a=0.01, b=0.03)
    assert layers(cluster)["a"] > 2 * layers(cluster)["b"]
    (reason,) = (r for r in cluster.core.status()["reasons"] if r["token"] == "times-unforeseen")
    assert reason["subject"] == "b"


def test_the_node_that_has_changed_is_named_among_many():
    """Found by use: of four nodes, one that took as long as it had was named."""
    cluster = Cluster()
    cluster.join(*(node(name, gb=6.5) for name in "abcd"), samples={name: block(0.01) for name in "abcd"})
    works(cluster, a=0.01, b=0.02, c=0.01, d=0.01)
    (reason,) = (r for r in cluster.core.status()["reasons"] if r["token"] == "times-unforeseen")
    assert reason["subject"] == "b"


@pytest.mark.parametrize("seconds", [{"a": 0.03, "b": 0.03}, {"a": 0.01, "b": 0.012}])
def test_what_all_nodes_take_longer_or_one_a_little_asks_for_no_plan(seconds):
    cluster = Cluster()
    cluster.join("a", "b", samples={"a": block(0.01), "b": block(0.01)})
    plans = sum(isinstance(one, Replan) for one in cluster.log)
    works(cluster, **seconds)
    assert sum(isinstance(one, Replan) for one in cluster.log) == plans


def test_a_plan_is_made_anew_once_for_times_it_had_not_foreseen():
    cluster = Cluster()
    cluster.join("a", "b", samples={"a": block(0.01), "b": block(0.01)})
    plans = sum(isinstance(one, Replan) for one in cluster.log)
    works(cluster, a=0.01, b=0.03)
    cluster.run(600.0)
    assert sum(isinstance(one, Replan) for one in cluster.log) == plans + 1


def arrangements(cluster):
    """Count from here on how often the routers are given a layout."""
    router, seen = cluster.core._requests.router, []
    arrange = router.arrange
    router.arrange = lambda layout: (seen.append(layout), arrange(layout))
    return seen


def test_routers_are_not_arranged_for_measurements_that_change_nothing():
    cluster = Cluster("a", "b")
    samples = tuple(StepSample("decode", 0, 16, 8, 200.0, 1.0) for _ in range(20))
    cluster.tell(Heartbeat("a", 1, hop_s={"b": 0.002}, samples=samples))
    cluster.tell(Tick())
    seen = arrangements(cluster)
    cluster.tell(Heartbeat("a", 1, hop_s={"b": 0.0021}, samples=samples))
    cluster.tell(Tick())
    assert len(seen) == 0
    cluster.tell(Heartbeat("a", 1, hop_s={"b": 0.02}))
    cluster.tell(Tick())
    assert len(seen) == 1


def test_routers_are_arranged_when_a_pipeline_serves_not_when_a_node_has_loaded():
    cluster = Cluster()
    seen = arrangements(cluster)
    cluster.join("a", "b", "c", "d")
    assert len(cluster.pipelines) == len(seen) == 2
