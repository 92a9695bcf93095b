"""Whether an interrupted request takes along what it has cached: by what both ways would take."""

from dataclasses import replace

import numpy as np
import pytest

from strata.serving.layout import Line
from strata.serving.live.events import Failed, FirstToken
from strata.serving.live.handover import hand_over
from strata.serving.live.instructions import Abort, Dispatch
from strata.serving.planning.allocation import Stage
from strata.workload.huggingface import model
from strata.workload.inference import ModelInfo
from tests.serving.live.cluster import Cluster, request
from tests.serving.routing.layouts import layout, server

LLAMA = ModelInfo.of(model("llama-3.1-8b"))
OLD = (Stage("a", 0, 16), Stage("b", 16, 32))


def found(*, hop_s=1e-3, bytes_per_s=1e9, step_s=0.01, prefill_s=1e-4, info=LLAMA, generated=100, new=None):
    c, d = (
        server(name, first, first + 16, step_s=step_s, per_sequence_s=0.0, prefill_s=prefill_s)
        for name, first in (("c", 0), ("d", 16))
    )
    known = layout((c, d))
    hop = Line(hop_s, info.hidden_bytes / bytes_per_s)
    hops = {(old, name): hop for old in "ab" for name in "cd"} | {("c", "d"): hop, ("d", "c"): hop}
    stages = known.pipelines[0] if new is None else new
    return hand_over(info, replace(known, hops=hops), OLD, stages, prompt_tokens=1000, generated=generated)


def test_both_ways_are_foreseen_layer_by_layer():
    one = found()
    layer_bytes = 2 * 8 * 128 * 2 * 1099  # keys and values of eight heads, bf16
    assert one.kv_bytes == 32 * layer_bytes
    # Two workers fetch sixteen layers each, at the same time.
    assert one.moves_s == pytest.approx(16 * (2e-3 + layer_bytes / 1e9))
    ring_s = 2 * (1e-3 + LLAMA.hidden_bytes / 1e9)
    assert one.recomputes_s == pytest.approx(2 * 1000 * 1e-4 + ring_s + 100 * 2 * 0.01)
    assert one.is_chosen
    assert one.to_dict()["chosen"] == "move"
    assert one.to_dict()["trust"] == "analytic"


@pytest.mark.parametrize(
    ("changes", "moves"),
    [
        ({}, True),
        ({"bytes_per_s": 1e7}, False),  # a slow link
        ({"hop_s": 0.1}, False),  # one between continents: a layer at a time
        ({"step_s": 1e-5, "prefill_s": 1e-7}, False),  # fast nodes
        ({"step_s": 1e-5, "prefill_s": 1e-7, "bytes_per_s": 1e12, "hop_s": 1e-6}, True),
    ],
)
def test_the_shorter_way_is_chosen(changes, moves):
    assert found(**changes).is_chosen is moves


def test_what_a_window_has_passed_over_cannot_be_moved():
    windows = np.full(32, np.inf)
    windows[3] = 512
    one = found(info=replace(LLAMA, windows=windows))
    assert not one.is_chosen
    assert one.to_dict()["move_s"] is None
    windows[3] = 4096
    assert found(info=replace(LLAMA, windows=windows)).is_chosen


def test_a_node_that_holds_what_it_held_fetches_from_itself_for_nothing():
    new = (Stage("c", 0, 16), Stage("d", 16, 32))
    known = layout((server("c", 0, 16), server("d", 16, 32)))
    assert hand_over(LLAMA, known, new, new, prompt_tokens=10, generated=5).moves_s == 0.0


def test_a_node_that_leaves_keeps_what_began_there_and_one_that_is_silent_does_not():
    cluster = Cluster("a", "b", "c", "d")
    cluster.run(5)
    cluster.send(request("begun"), request("waits"))
    cluster.tell(FirstToken("begun", 1))
    gone = cluster.at["begun"].route.stages
    cluster.log.clear()
    cluster.leave(gone[0].node_id)
    cluster.run(20)
    aborted = {each.request_id: each.is_kept for each in cluster.log if isinstance(each, Abort)}
    sent = {each.request_id: each.kept for each in cluster.log if isinstance(each, Dispatch)}
    assert aborted["begun"]
    assert (sent["begun"].attempt, sent["begun"].stages) == (1, gone)
    assert sent.get("waits") is None
    cluster.log.clear()
    now = cluster.at["begun"].route.stages
    cluster.tell(FirstToken("begun", 2))
    cluster.silent.add(now[0].node_id)
    cluster.run(200)
    assert {each.is_kept for each in cluster.log if isinstance(each, Abort)} == {False}
    assert all(each.kept is None for each in cluster.log if isinstance(each, Dispatch))


def test_an_attempt_whose_memory_had_gone_is_not_one_of_those_a_request_has():
    """It waited longer than that is kept, or others needed the room: nobody and nothing of the request failed."""
    cluster = Cluster("a", "b", "c", "d", max_attempts=2)
    cluster.run(5)
    cluster.send(request("r"))
    cluster.tell(FirstToken("r", 1))
    cluster.leave(cluster.at["r"].route.stages[0].node_id)
    cluster.run(20)
    assert cluster.at["r"].attempt == 2
    cluster.tell(Failed("r", 2, generated=10))
    assert (cluster.at["r"].attempt, cluster.at["r"].kept) == (3, None)
    cluster.tell(Failed("r", 3, generated=10))
    assert cluster.at["r"].attempt == 4
    cluster.tell(Failed("r", 4, generated=10))
    assert cluster.rejected == {"r": "attempts-exhausted"}


def test_an_attempt_that_a_node_with_notice_or_a_new_layout_ends_is_not_one_of_those_a_request_has():
    """A long answer that five layouts followed each other under was given up."""
    cluster = Cluster("a", "b", max_attempts=1)
    cluster.run(5)
    cluster.send(request("r"))
    for attempt in range(1, 5):
        assert cluster.at["r"].attempt == attempt
        cluster.tell(FirstToken("r", attempt))
        gone = cluster.at["r"].route.stages[0].node_id
        cluster.leave(gone)
        cluster.join(gone)
        cluster.run(20)
    assert cluster.rejected == {}


@pytest.mark.parametrize("node_id", ["c", None])
def test_an_attempt_that_went_on_or_whose_node_failed_counts(node_id):
    cluster = Cluster("a", "b", "c", "d", max_attempts=2)
    cluster.run(5)
    cluster.send(request("r"))
    cluster.tell(FirstToken("r", 1))
    cluster.leave(cluster.at["r"].route.stages[0].node_id)
    cluster.run(20)
    if node_id is None:
        cluster.tell(FirstToken("r", 2))
    cluster.tell(Failed("r", 2, generated=10, node_id=node_id))
    cluster.run(20)
    assert cluster.at["r"].attempt == 3
    cluster.tell(Failed("r", 3, generated=10))
    assert cluster.rejected == {"r": "attempts-exhausted"}
