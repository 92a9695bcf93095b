"""The live scheduler as a state machine: events in, instructions out, all under virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.live.absence import ABSENCE_S
from strata.serving.live.deadlines import TOGETHER_S, Deadlines
from strata.serving.live.events import (
    Cancelled,
    Failed,
    Finished,
    FirstToken,
    Heartbeat,
    Join,
    Leave,
    Tick,
)
from strata.serving.live.in_flight import RETRY_S
from strata.serving.live.instructions import Abort, Dispatch, EvictNode, Load, Reject, RejectJoin, Replan
from strata.serving.live.replan import answer
from strata.serving.live.rollout import PipelinePhase
from tests.serving.live.cluster import Cluster, node, request
from tests.support.laws import examples


def test_nodes_that_join_together_are_laid_out_together():
    cluster = Cluster("a", "b", "c", "d")
    assert [len(pipeline) for pipeline in cluster.pipelines] == [2, 2]
    assert sum(isinstance(one, Replan) for one in cluster.log) == 1


def test_a_request_before_anything_serves_waits_and_leaves_when_it_does():
    cluster = Cluster("a")
    cluster.send(request("r"))
    assert (cluster.pipelines, cluster.at) == ([], {})
    cluster.join("b")
    assert list(cluster.at) == ["r"]


def test_counts_go_down_when_requests_end_not_with_the_next_beat():
    """The peer took 16 requests a heartbeat (facts L2): here a finished one makes room at once."""
    cluster = Cluster("a", "b")
    slots = cluster.core.nodes()[0].slots
    cluster.send(*(request(f"r{i}") for i in range(slots + 5)))
    assert len(cluster.at) == slots
    cluster.finish("r0", "r1")
    assert len(cluster.at) == slots
    assert cluster.core.status()["requests"] == {"waiting": 3, "unfinished": slots + 3}


def test_every_node_of_a_route_has_its_tokens_a_second():
    """Found empty in a review: nothing ever told the collector what a node had served."""
    cluster = Cluster("a", "b", "c", "d")
    cluster.send(request("r0"))
    nodes = [stage.node_id for stage in cluster.at["r0"].route.stages]
    cluster.finish("r0")
    throughput = cluster.core.metrics.generate_report()["throughput"]
    assert throughput["by_node_tokens_per_s"] == dict.fromkeys(nodes, throughput["tokens_per_s"])


def test_room_is_kept_for_all_a_request_may_generate():
    """The peer's KV admission was a no-op (facts L1)."""
    cluster = Cluster("a", "b")
    most = min(one.kv_tokens for one in cluster.core.nodes())
    cluster.send(
        request("half", prompt=most // 2, output=1), request("too much", prompt=most // 2 + 10, output=10)
    )
    assert list(cluster.at) == ["half"]
    cluster.finish("half")
    assert list(cluster.at) == ["too much"]
    cluster.send(request("never", prompt=most, output=1))
    assert cluster.rejected == {"never": "request-too-long"}


def test_a_dead_node_s_requests_go_on_elsewhere_with_what_they_had():
    cluster = Cluster("a", "b", "c", "d")
    cluster.send(*(request(f"r{i}") for i in range(8)))
    victim = cluster.at["r0"].route.stages[1].node_id
    hit = [r for r, d in cluster.at.items() if any(s.node_id == victim for s in d.route.stages)]
    cluster.silent.add(victim)
    out = cluster.tell(Failed("r0", 1, generated=7, node_id=victim))
    assert {one.request_id for one in out if isinstance(one, Dispatch)} == set(hit)
    assert all(cluster.at[r].attempt == 2 for r in hit)
    assert not any(s.node_id == victim for d in cluster.at.values() for s in d.route.stages)
    assert cluster.core.explain("r0")["timeline"][1]["reason"]["token"] == "attempt-failed"


def test_a_request_on_two_pipelines_of_a_lost_node_is_taken_back_once():
    """Two serving pipelines may share a node's layers; the request's route is then in both."""
    cluster = Cluster("a", "b", "c")
    (first,) = cluster.core._rollout.in_phase(PipelinePhase.SERVING)
    cluster.send(request("r"))
    twin = cluster.core._rollout._add(first.stages, PipelinePhase.SERVING, cluster.now_s)
    twin.running.add("r")
    cluster.tell(Leave("a", cluster.lives.pop("a")))
    assert cluster.core.status()["requests"]["unfinished"] == 1
    assert cluster.at["r"].attempt == 2


def test_survivors_take_over_the_layers_of_a_lost_node_where_they_have_room():
    """The peer cannot repair by trimming alone (facts F6)."""
    cluster = Cluster(*(node(name, hop_s=dict.fromkeys("abc", 1e-3)) for name in "abc"))
    assert [sorted(p) for p in cluster.pipelines] == [["a", "b", "c"]]
    cluster.silent.add("b")
    cluster.send(request("r"))
    cluster.tell(Failed("r", 1, generated=0, node_id="b"))
    assert [sorted(p) for p in cluster.pipelines] == [["a", "c"]]
    assert cluster.at["r"].attempt == 2


def test_two_broken_pipelines_leave_survivors_that_serve_together():
    """The peer left them idle until somebody joined (facts F4)."""
    cluster = Cluster("a", "b", "c", "d")
    first, second = cluster.pipelines
    cluster.leave(first[0])
    cluster.leave(second[1])
    assert [sorted(pipeline) for pipeline in cluster.pipelines] == [sorted([first[1], second[0]])]


def test_a_suspect_that_beats_is_taken_back():
    cluster = Cluster("a", "b", "c", "d")
    cluster.send(request("r"))
    suspect = cluster.at["r"].route.stages[0].node_id
    cluster.tell(Failed("r", 1, generated=0, node_id=suspect))
    assert suspect not in {name for pipeline in cluster.pipelines for name in pipeline}
    cluster.run(6.0)
    assert len(cluster.pipelines) == 2


def test_a_node_that_beats_and_does_no_work_is_left_and_its_requests_go_on_elsewhere():
    """Found in a review: all requests went to the one node that was stuck, and it was never suspected."""
    cluster = Cluster("a", "b", "c", "d")
    cluster.send(*(request(f"r{i}") for i in range(8)))
    stuck = cluster.at["r0"].route.stages[1].node_id
    for _ in range(3):
        cluster.tell(Heartbeat(stuck, 1, frozenset(cluster.at), is_stuck=True))
        cluster.tell(Tick())
        assert stuck not in {stage.node_id for at in cluster.at.values() for stage in at.route.stages}
    assert cluster.core.status()["suspects"] == [stuck]
    assert cluster.core.status()["requests"]["unfinished"] == 8


def test_a_node_that_fails_each_time_it_is_back_is_tried_ever_less_often():
    """Found in a review: a node that answered 500 cost 25 attempts at 96 requests."""
    cluster = Cluster(node("a", gb=40.0), node("b", gb=40.0))
    tried = 0
    for number in range(60):
        cluster.run(5.0)
        cluster.send(request(f"r{number}"))
        name = f"r{number}"
        while any(stage.node_id == "b" for stage in cluster.at[name].route.stages):
            tried += 1
            cluster.tell(Failed(name, cluster.at[name].attempt, generated=0, node_id="b"))
        cluster.finish(name)
    assert 3 <= tried <= 10
    assert cluster.core.status()["requests"]["unfinished"] == 0


def test_silence_expels_spares_and_servers_alike():
    """The peer's dead standby nodes were given layers (facts F5)."""
    cluster = Cluster("a", "b", "c")
    cluster.silent |= {"a", "b", "c"}
    cluster.run(66.0)
    assert {one.node_id for one in cluster.log if isinstance(one, EvictNode)} == {"a", "b", "c"}
    assert cluster.core.status()["ready"] is False


def test_a_plan_that_takes_long_expels_nobody():
    """The peer planned on its event thread and threw out every healthy node (facts A3)."""
    cluster = Cluster()
    cluster.is_lazy = True
    cluster.join("a", "b")
    assert [type(one) for one in cluster.held] == [Replan]
    cluster.run(300.0)
    cluster.catch_up()
    assert len(cluster.pipelines) == 1
    assert not any(isinstance(one, EvictNode) for one in cluster.log)


def test_a_node_that_beats_but_never_loads_is_left_out():
    cluster = Cluster()
    cluster.stuck.add("a")
    cluster.join("a", "b", "c")
    cluster.send(request("r"))
    assert cluster.pipelines == [] or "a" not in cluster.pipelines[0]
    cluster.run(300.0)
    assert cluster.pipelines == [["b", "c"]] or cluster.pipelines == [["c", "b"]]
    assert "r" in cluster.at


def test_a_node_that_loads_slowly_is_not_taken_for_stuck_by_a_clock_that_jumps():
    cluster = Cluster()
    cluster.stuck.add("a")
    cluster.join("a", "b")
    cluster.now_s += 10_000.0
    cluster.run(10.0)
    assert not any(isinstance(one, EvictNode) for one in cluster.log)


def test_our_own_long_sleep_expels_nobody():
    cluster = Cluster("a", "b")
    cluster.now_s += 3600.0
    assert not any(isinstance(one, EvictNode) for one in cluster.tell(Tick()))


def test_a_clock_that_jumps_back_stands_still():
    cluster = Cluster("a", "b")
    cluster.now_s = -1000.0
    cluster.send(request("r"))
    assert cluster.core.explain("r")["timeline"][0]["waited_s"] == 0.0


def test_a_node_that_joins_again_loses_what_it_ran_and_an_older_life_is_refused():
    """Quick rejoin confused the peer's counts (facts F5, its issue 166)."""
    cluster = Cluster("a", "b", "c", "d")
    cluster.send(*(request(f"r{i}") for i in range(4)))
    hit = [r for r, d in cluster.at.items() if any(s.node_id == "a" for s in d.route.stages)]
    cluster.join("a")
    assert hit
    assert all(cluster.at[r].attempt == 2 for r in hit)
    (refused,) = cluster.tell(Join(node("a"), 1))
    assert isinstance(refused, RejectJoin)
    assert refused.reason.token == "node-stale"


def test_a_partitioned_node_that_returns_must_join_anew():
    cluster = Cluster("a", "b", "c", "d")
    cluster.silent.add("a")
    cluster.run(70.0)
    (refused,) = cluster.tell(Heartbeat("a", 1))
    assert isinstance(refused, RejectJoin)
    assert refused.reason.token == "join-again"
    cluster.silent.clear()
    cluster.join("a")
    assert len(cluster.pipelines) == 2


def test_what_an_older_attempt_says_is_not_heard():
    cluster = Cluster("a", "b", "c", "d")
    cluster.send(request("r"))
    cluster.tell(Failed("r", 1, generated=3))
    cluster.tell(FirstToken("r", 1))
    cluster.tell(Finished("r", 1, 100))
    assert cluster.core.status()["requests"]["unfinished"] == 1
    cluster.tell(Finished("r", 2, 100))
    assert cluster.core.status()["requests"]["unfinished"] == 0


def test_a_request_its_first_node_forgot_is_sent_again():
    cluster = Cluster("a", "b")
    cluster.send(request("r"))
    first = cluster.at["r"].route.stages[0].node_id
    for _ in range(2):
        cluster.now_s += 5.0
        cluster.tell(Heartbeat(first, 1, frozenset({"r"})))
    cluster.now_s += 5.0
    out = cluster.tell(Heartbeat(first, 1))
    assert [type(one) for one in out] == [Abort, Dispatch]


def test_a_request_is_given_up_after_its_attempts():
    cluster = Cluster("a", "b", max_attempts=2)
    cluster.send(request("r"))
    cluster.tell(Failed("r", 1, generated=0))
    (end,) = cluster.tell(Failed("r", 2, generated=0))
    assert isinstance(end, Reject)
    assert end.reason.token == "attempts-exhausted"
    assert end.retry_after_s == cluster.core.config.heartbeat_interval_s


def test_an_interrupted_request_is_served_however_late():
    """It was admitted: that its node died is no reason to refuse it."""
    cluster = Cluster("a", "b", heartbeat_timeout=6.0)
    cluster.send(request("r", ttft_goal_s=2.0))
    cluster.silent |= {"a", "b"}
    cluster.run(20.0)
    assert cluster.at == {}
    cluster.lives.clear()
    cluster.silent.clear()
    cluster.join("c", "d")
    assert cluster.at["r"].attempt == 2


def test_a_cancelled_request_is_aborted_where_it_runs_and_forgotten_where_it_waits():
    cluster = Cluster("a", "b")
    slots = cluster.core.nodes()[0].slots
    cluster.send(*(request(f"r{i}") for i in range(slots + 1)))
    assert cluster.tell(Cancelled(f"r{slots}")) == []
    assert isinstance(cluster.tell(Cancelled("r0"))[0], Abort)
    assert cluster.core.status()["requests"] == {"waiting": 0, "unfinished": slots - 1}


def test_a_full_queue_says_so_and_two_requests_of_one_id_are_one():
    cluster = Cluster(queue_limit=2)
    cluster.send(request("a"), request("a"), request("b"), request("c"))
    assert cluster.rejected == {"a": "request-known", "c": "queue-full"}


def test_a_node_too_small_for_a_layer_stays_spare_and_hurts_nobody():
    """It killed the peer's event thread (facts F1)."""
    cluster = Cluster("a", "b")
    cluster.join(node("tiny", gb=0.01))
    assert [sorted(p) for p in cluster.pipelines] == [["a", "b"]]


def test_an_engine_behind_one_address_serves_without_loading_anything():
    cluster = Cluster()
    cluster.join(node("vllm", gb=80.0, model="llama-3.1-8b"))
    cluster.send(request("r"))
    assert [s.node_id for s in cluster.at["r"].route.stages] == ["vllm"]
    assert not any(isinstance(one, (Load, Replan)) for one in cluster.log)


def test_a_suspect_engine_is_back_with_its_next_beat():
    cluster = Cluster()
    cluster.join(node("vllm", gb=80.0, model="llama-3.1-8b"))
    cluster.send(request("r"))
    cluster.tell(Failed("r", 1, generated=0, node_id="vllm"))
    assert cluster.pipelines == []
    cluster.heartbeat("vllm")
    assert cluster.pipelines == [["vllm"]]
    assert cluster.at["r"].attempt == 2


def test_a_suspect_that_joins_once_more_is_given_work_again():
    cluster = Cluster()
    cluster.join(node("vllm", gb=80.0, model="llama-3.1-8b"))
    cluster.send(request("r"))
    cluster.tell(Failed("r", 1, generated=0, node_id="vllm"))
    cluster.tell(Join(node("vllm", gb=80.0, model="llama-3.1-8b"), cluster.lives["vllm"]))
    assert cluster.pipelines == [["vllm"]]


def test_a_new_layout_is_not_adopted_where_it_does_not_pay():
    cluster = Cluster("a", "b", "c", "d")
    before = cluster.pipelines
    cluster.obey(cluster.core.rebalance(cluster.now_s))
    assert cluster.pipelines == before
    assert [r["token"] for r in cluster.core.status()["reasons"]] == ["plan-kept"]


def test_much_better_nodes_are_moved_to_while_the_old_ones_serve():
    cluster = Cluster(*(node(name, gb=60.0, speed=0.1) for name in "ab"))
    cluster.send(request("r"))
    cluster.join(*(node(name, gb=60.0) for name in "cd"))
    assert "r" in cluster.at
    assert cluster.at["r"].attempt == 1
    assert {"c", "d"} <= {name for pipeline in cluster.pipelines for name in pipeline}


def test_a_node_that_holds_the_model_alone_does_not_send_the_others_idle():
    cluster = Cluster(*(node(name, hop_s=dict.fromkeys("abc", 0.5)) for name in "abc"))
    cluster.run(700.0)
    cluster.join(node("whole", gb=60.0))
    cluster.run(60.0)
    assert len(cluster.pipelines) == 2


def test_load_above_the_threshold_asks_for_a_plan_once_in_a_while():
    cluster = Cluster("a", "b", rebalance_threshold=0.5)
    slots = cluster.core.nodes()[0].slots
    plans = sum(isinstance(one, Replan) for one in cluster.log)
    cluster.send(*(request(f"r{i}") for i in range(slots)))
    cluster.run(100.0)
    assert sum(isinstance(one, Replan) for one in cluster.log) == plans + 1


@pytest.mark.parametrize("strategy", ["rr", "dp", "auto"])
@examples(15)
@given(data=st.data())
def test_every_request_ends_exactly_once_whatever_happens(strategy, data):
    cluster = Cluster("a", "b", "c", "d", routing_strategy=strategy, max_attempts=50)
    sent, ended = 0, set()
    for _ in range(data.draw(st.integers(1, 30))):
        what = data.draw(st.sampled_from(["send", "send", "finish", "fail", "leave", "join", "time", "silence"]))
        running = sorted(cluster.at)
        if what == "send":
            cluster.send(request(f"r{sent}"))
            sent += 1
        elif what == "finish" and running:
            name = data.draw(st.sampled_from(running))
            cluster.finish(name)
            ended.add(name)
        elif what == "fail" and running:
            name = data.draw(st.sampled_from(running))
            failed = cluster.at.pop(name)
            suspect = data.draw(st.sampled_from([None, failed.route.stages[0].node_id]))
            cluster.tell(Failed(name, failed.attempt, 1, suspect))
        elif what == "leave" and len(cluster.lives) > 1:
            cluster.leave(data.draw(st.sampled_from(sorted(cluster.lives))))
        elif what == "join":
            cluster.join(data.draw(st.sampled_from("abcdef")))
        elif what == "time":
            cluster.run(data.draw(st.sampled_from([0.1, 3.0, 40.0])))
        elif what == "silence":
            cluster.silent = {data.draw(st.sampled_from("abcdef"))}
        for name in cluster.at:
            assert name not in ended
    cluster.silent.clear()
    cluster.join("y", "z")
    cluster.run(30.0)
    for _ in range(sent + 1):
        cluster.finish(*sorted(cluster.at))
    status = cluster.core.status()
    assert status["requests"] == {"waiting": 0, "unfinished": 0}
    # After half a minute of nobody; and of no attempt that runs.
    assert set(cluster.rejected.values()) <= {"nobody-serves"}
    assert not cluster.rejected.keys() & (ended | cluster.at.keys())
    assert all(one["running"] == 0 for one in status["nodes"])


@given(st.permutations(["a", "b", "c", "d", "e"]))
@examples(10)
def test_the_layout_does_not_depend_on_the_order_of_joining(names):
    assert Cluster(*names).pipelines == Cluster("a", "b", "c", "d", "e").pipelines


def test_a_plan_that_leaves_nothing_as_it_was_does_not_say_what_stays():
    cluster = Cluster("a", "b", "c", "d")
    cluster.leave("a")
    cluster.leave("c")
    cluster.run(2.0)
    assert cluster.pipelines == [["b", "d"]]
    assert cluster.core.status()["reasons"] == []


def test_a_node_with_room_for_no_layer_is_named_while_others_serve():
    cluster = Cluster("a", "b", node("small", gb=0.3))
    assert cluster.pipelines == [["a", "b"]]
    (reason,) = cluster.core.status()["reasons"]
    assert (reason["token"], reason["subject"]) == ("holds-no-layer", "small")
    assert reason["text"].startswith("small: serves nothing: one layer")


def test_a_request_whose_goal_passed_while_it_waited_is_told_so():
    cluster = Cluster("a", "b")
    cluster.send(*(request(f"r{i}", ttft_goal_s=5.0) for i in range(500)))
    assert len(cluster.at) < 500
    cluster.run(10.0)
    assert set(cluster.rejected.values()) == {"waited-too-long"}


def test_all_whose_goal_passes_are_told_in_that_moment_however_many_wait_before_them():
    cluster = Cluster("a", "b")  # whose next beat is 5 s away
    cluster.run(1.0)
    cluster.send(*(request(f"r{i}", ttft_goal_s=2.0) for i in range(500)))
    ran = set(cluster.at)
    cluster.run(2.0 + TOGETHER_S)
    assert set(cluster.rejected) == {f"r{i}" for i in range(500)} - ran
    assert set(cluster.rejected.values()) == {"waited-too-long"}
    assert all(one.retry_after_s == RETRY_S for one in cluster.log if isinstance(one, Reject))


def test_a_goal_that_passes_where_nobody_serves_yet_is_told_in_that_moment():
    cluster = Cluster()
    cluster.send(request("r", ttft_goal_s=2.0), request("s", ttft_goal_s=20.0), request("t"))
    cluster.run(2.0 + TOGETHER_S)
    assert cluster.rejected == {"r": "not-served-in-time"}


def test_where_nobody_serves_requests_wait_for_workers_of_a_gateway_started_again_and_no_longer():
    cluster = Cluster()
    cluster.send(request("r"))
    cluster.run(ABSENCE_S - 1.0)
    assert cluster.rejected == {}
    cluster.run(1.0)
    assert cluster.rejected == {"r": "nobody-serves"}
    assert cluster.log[-1].retry_after_s == cluster.core.config.heartbeat_interval_s
    cluster.send(request("s"))  # it is known by now
    assert cluster.rejected["s"] == "nobody-serves"
    cluster.join("a", "b")
    cluster.send(request("t"))
    assert list(cluster.at) == ["t"]


def test_nodes_that_cannot_hold_the_model_are_as_good_as_nobody_and_those_that_load_are_waited_for():
    alone = Cluster("a")
    alone.send(request("r"))
    alone.run(ABSENCE_S)
    assert alone.rejected == {"r": "nobody-serves"}
    cluster = Cluster()
    cluster.stuck |= {"a", "b"}
    cluster.join("a", "b")
    cluster.send(request("r"))
    cluster.run(ABSENCE_S + 10.0)
    assert cluster.core.status()["requests"]["waiting"] == 1


def test_what_was_interrupted_waits_for_nodes_however_long():
    cluster = Cluster("a", "b")
    cluster.send(request("r"))
    cluster.leave("a")
    cluster.leave("b")
    cluster.run(ABSENCE_S + 100.0)
    assert cluster.rejected == {}
    cluster.join("c", "d")
    assert cluster.at["r"].attempt == 2


def test_who_asked_for_no_time_or_of_a_router_that_minds_none_waits_on():
    cluster = Cluster("a", "b", routing_strategy="rr")
    cluster.send(*(request(f"r{i}", ttft_goal_s=2.0) for i in range(500)))
    cluster.run(10.0)
    assert cluster.rejected == {}


def test_who_could_be_in_time_on_a_faster_node_that_came_waits_for_it():
    cluster = Cluster(node("slow", gb=20.0, speed=0.02))
    cluster.send(*(request(f"r{i}") for i in range(200)), request("late", ttft_goal_s=30.0))
    cluster.run(10.0)
    cluster.join(node("fast", gb=20.0, speed=2.0))
    cluster.run(18.5)  # the slow one takes more than a second to read a prompt
    assert cluster.rejected == {}
    cluster.run(1.0)
    assert cluster.rejected == {"late": "waited-too-long"}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 9))), max_size=30))
@examples(40)
def test_deadlines_pass_once_the_last_that_was_set(steps):
    deadlines, due = Deadlines(), dict[str, int]()
    for number, (name, at) in enumerate(steps):
        if at is None:
            deadlines.remove(name)
            due.pop(name, None)
        else:
            deadlines.add(name, float(number + at))
            due[name] = number + at
        passed = {name for name, at in due.items() if at < number}
        assert sorted(deadlines.passed(float(number))) == sorted(passed)
        due = {name: at for name, at in due.items() if name not in passed}
        assert (deadlines.wake_s() is None) == (not due)


def test_answers_are_the_same_for_the_same_events():
    def timeline() -> list:
        cluster = Cluster("a", "b", "c", "d", "e")
        cluster.send(*(request(f"r{i}") for i in range(20)))
        cluster.leave("b")
        cluster.run(10.0)
        return [one for one in cluster.log if not isinstance(one, Replan)]

    assert timeline() == timeline()


def test_a_node_without_room_for_a_model_that_stays_together_says_what_all_of_it_takes():
    cluster, tiny = Cluster(), (node("tiny", gb=0.001),)
    whole = replace(cluster.core.model, is_whole=True)
    planned = answer(Replan(1, tiny), whole, cluster.core.demand, cluster.core.config)
    reason = planned.reasons[-1]
    assert (reason.token, reason.subject) == ("holds-not-all", "tiny")
    of_a_layer = answer(Replan(1, tiny), cluster.core.model, cluster.core.demand, cluster.core.config).reasons[-1]
    assert of_a_layer.token == "holds-no-layer"
    assert reason.data["need"] != of_a_layer.data["need"]
    assert "all layers, which stay together" in str(reason)


def test_a_plan_of_odd_nodes_is_no_pipelines_and_a_reason():
    cluster = Cluster()
    planned = answer(
        Replan(1, (node("tiny", gb=0.001),)), cluster.core.model, cluster.core.demand, cluster.core.config
    )
    assert planned.pipelines == ()
    assert [reason.token for reason in planned.reasons] == ["layers-do-not-fit", "holds-no-layer"]
    assert answer(Replan(2, ()), cluster.core.model, cluster.core.demand, cluster.core.config).pipelines == ()


def test_a_leave_of_a_stranger_is_nothing():
    assert Cluster("a").tell(Leave("nobody", 1)) == []


def test_the_oldest_wait_is_that_of_who_came_first_and_has_no_route():
    cluster = Cluster()
    assert cluster.core.oldest_wait_s(cluster.now_s) == 0.0
    cluster.send(request("r1"))
    cluster.run(3.0)
    cluster.send(request("r2"))
    assert cluster.core.oldest_wait_s(cluster.now_s) == pytest.approx(3.0)
    cluster.join("a", "b")
    cluster.run(10.0)
    assert set(cluster.at) == {"r1", "r2"}
    assert cluster.core.oldest_wait_s(cluster.now_s) == 0.0


def test_a_node_that_comes_and_goes_has_joined_each_time():
    cluster = Cluster("a", "b")
    for _ in range(3):
        cluster.leave("a")
        cluster.join("a")
    assert cluster.core.metrics.joins == {"b": 1, "a": 4}
