"""The live scheduler in replays: overload, failures, joins, stragglers, and what the report says of them."""

import math
from collections import Counter
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.layout import Line
from strata.serving.live.arrangement import Arrangement
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from strata.serving.live.replan import answer
from strata.serving.live.transition import load_s
from strata.serving.replay.engine import Replay, ReplayEnvironment
from strata.serving.replay.fault_events import FaultEvent
from strata.serving.replay.picture import picture
from strata.serving.replay.record import OUTCOMES
from strata.serving.replay.report import report
from strata.serving.replay.setup import replay_job
from strata.workload.requests import Request, arrivals
from strata.workload.serving_job import Demand, ServingJob
from tests.serving.live.cluster import DEMAND, llama, node
from tests.serving.replay.worlds import layout
from tests.support.laws import examples


def requests(rate, seconds, *, prompt=200, output=100, seed=0):
    times = arrivals(np.random.default_rng(seed), rate)
    return [Request(at, prompt, output) for at in takewhile(lambda at: at < seconds, times)]


def replayed(nodes, asked, *, end_s=30.0, demand=DEMAND, fault_events=(), absent=(), more=None, **settings):
    config = SchedulerConfig(**({"allocation_strategy": "auto", "routing_strategy": "auto"} | settings))
    job = ServingJob("test", llama(), demand)
    run, core = replay_job(
        nodes, job, asked, config=config, start_s=0.0, end_s=end_s, fault_events=fault_events, absent=absent,
        **(more or {}),
    )  # fmt: skip
    assert run.run()
    run.close()
    return run, core


def outcomes(run):
    return {OUTCOMES[number]: count for number, count in Counter(run.record.outcome).items()}


def near(names):
    """Nodes a millisecond from each other; two of them hold the model."""
    return [node(name, hop_s={other: 0.001 for other in names if other != name}) for name in names]


def sixteen_slots():
    """Memory for the model and 16 sequences of the demand [GB]."""
    info = llama()
    tokens = 16.5 * DEMAND.kv_tokens * float(info.kv_bytes_per_token.sum())
    return (float(info.weight_bytes.sum()) + info.ends_bytes(0, info.num_layers) + tokens) / (1 - 0.08) / 1e9


@pytest.mark.long("serves thousands of requests")
@pytest.mark.parametrize("routing", ["rr", "dp", "auto"])
def test_28_requests_a_second_are_served_by_4_pipelines_of_16_slots_worth_32(routing):
    # Parallax's scheduler serves 6.4 of them a second, with waits of 80 s.
    nodes = [node(name, gb=sixteen_slots()) for name in "abcd"]
    core = Core(SchedulerConfig("auto", routing), llama(), DEMAND)
    around = ReplayEnvironment(
        lambda stages: layout(stages, decode=Line(2.0 / 99)),
        lambda plan: answer(plan, llama(), DEMAND, core.config),
        lambda _load, _held: 1.0,
        start_s=10.0,
        end_s=100.0,
    )
    asked = requests(28.0, 110.0)
    run = Replay(core, nodes, asked, around)
    run.run()
    run.close()
    found = report(run, DEMAND, seed=0)
    assert {server.slots for server in core._arrangement.layout.servers} == {16}
    assert outcomes(run) == {"served": len(asked)}
    assert found["served_per_s"]["estimate"] >= 27.5 / 28 * found["offered_per_s"]
    assert found["wait_s"]["p99"]["estimate"] < 1.0
    assert min(pipeline["running"] for pipeline in found["pipelines"]) > 0.75 * 14


@pytest.mark.long("serves thousands of requests")
@pytest.mark.parametrize("notice_s", [0.05, math.inf], ids=["connection", "heartbeats"])
@pytest.mark.parametrize("ttft_goal_s", [math.inf, 3.0], ids=["no-goal", "goal"])
def test_nothing_is_lost_that_another_pipeline_can_serve(notice_s, ttft_goal_s):
    asked = requests(1.5, 40.0)
    run, core = replayed(
        near("abcd"),
        asked,
        end_s=40.0,
        demand=replace(DEMAND, ttft_goal_s=ttft_goal_s),
        fault_events=[FaultEvent("kill", "a", 10.0)],
        heartbeat_timeout=6.0,
        heartbeat_interval_s=1.0,
        more={"notice_s": notice_s},
    )
    found = report(run, DEMAND, seed=0)
    assert outcomes(run) == {"served": len(asked)}
    assert found["requests"]["interrupted"] == found["requests"]["resumed"] > 0
    assert found["cluster"]["evicted"] == 1
    noticed_s = 0.05 if notice_s < 1 else 6.0 + 1.0 + 1.0
    assert max(run.record.latency_s) < noticed_s + 8.0
    assert len(core.serving()) == 1


def test_survivors_of_a_broken_pipeline_serve_again_with_a_spare():
    asked = requests(2.0, 60.0)
    run, core = replayed(
        near("abc"),
        asked,
        end_s=60.0,
        fault_events=[FaultEvent("kill", "a", 5.0)],
    )
    assert outcomes(run) == {"served": len(asked)}
    assert [sorted(stage.node_id for stage in p) for p in core.serving()] == [["b", "c"]]
    assert run.num_loads > 0
    assert max(run.record.latency_s) > load_s(llama(), 0, 16, bytes_per_s=core.config.reload_bytes_per_s)


def test_a_node_that_joins_takes_its_share_once_it_has_loaded():
    asked = requests(6.0, 120.0)
    run, core = replayed(
        [node("a", gb=24), node("b", gb=24)], asked, end_s=120.0, fault_events=[FaultEvent("join", "b", 30.0)],
        absent=["b"], rebalance_threshold=0.01,
    )  # fmt: skip
    assert outcomes(run) == {"served": len(asked)}
    assert len(core.serving()) == 2
    share = report(run, DEMAND, seed=0)["nodes"]
    assert share[0]["busy_share"] > share[1]["busy_share"] > 0
    loading_s = load_s(llama(), 0, 32, bytes_per_s=core.config.reload_bytes_per_s)
    assert share[1]["busy_share"] * 120.0 < 90.0 - loading_s


def test_a_node_that_comes_back_is_served_by_again():
    asked = requests(3.0, 90.0)
    run, core = replayed(
        [node("a", gb=24), node("b", gb=24)],
        asked,
        end_s=90.0,
        fault_events=[FaultEvent("kill", "b", 10.0), FaultEvent("join", "b", 30.0)],
    )
    assert outcomes(run) == {"served": len(asked)}
    assert len(core.serving()) == 2


def test_a_node_that_leaves_says_so_and_nothing_is_lost():
    asked = requests(3.0, 20.0)
    run, core = replayed(
        [node("a", gb=24), node("b", gb=24)], asked, end_s=20.0,
        fault_events=[FaultEvent("leave", "b", 10.0)],
    )  # fmt: skip
    assert outcomes(run) == {"served": len(asked)}
    assert len(core.serving()) == 1


def test_where_nothing_can_serve_requests_wait_for_a_while_and_are_refused():
    run, _ = replayed([node("a")], [Request(1.0, 200, 100)] * 5, end_s=5.0)
    assert outcomes(run) == {"rejected": 5}
    assert {reason.token for reason in run.refusals} == {"nobody-serves"}
    assert report(run, DEMAND, seed=0)["latency_s"] is None


def test_clients_without_patience_leave_and_are_cancelled_once():
    asked = requests(40.0, 10.0)
    run, core = replayed([node("a", gb=18)], asked, end_s=10.0, more={"patience_s": 2.0})
    found = outcomes(run)
    assert found["cancelled"] > 0
    assert found["served"] + found["cancelled"] == len(asked)
    assert np.nanmax(run.record.ttft_s) <= 2.0
    assert core.metrics.generate_report()["throughput"]["cancelled"] == found["cancelled"]


def test_what_no_node_can_hold_is_rejected_with_its_reason():
    run, _ = replayed([node("a", gb=18)], [Request(1.0, 10**6, 10)], end_s=5.0)
    assert outcomes(run) == {"rejected": 1}
    assert [reason.token for reason in run.refusals] == ["request-too-long"]


def test_the_scheduler_learns_of_a_straggler_from_what_it_measures():
    run, _ = replayed(
        [node(name, gb=24) for name in "abc"], requests(12.0, 120.0), end_s=120.0,
        fault_events=[FaultEvent("slow", "a", 0.0, 4.0)], rebalance_threshold=0.01, request_arrival_horizon=60.0,
    )  # fmt: skip
    passed = {stages[0].node_id: path.passed_tokens for stages, path in run.service.paths.items()}
    assert passed["a"] < 0.7 * min(passed["b"], passed["c"])


def test_layers_leave_a_straggler_and_tokens_come_sooner(monkeypatch):
    def late_tpot_s():
        run, core = replayed(
            near("ab"), requests(6.0, 240.0), end_s=240.0, fault_events=[FaultEvent("slow", "a", 20.0, 3.0)]
        )
        (pipeline,) = core.serving()
        tpot_s = run.record.tpot_s
        return {s.node_id: s.end - s.first for s in pipeline}, np.nanmean(tpot_s[len(tpot_s) // 2 :])

    layers, tpot_s = late_tpot_s()
    monkeypatch.setattr(Arrangement, "unforeseen", lambda self, nodes: None)
    kept, kept_tpot_s = late_tpot_s()
    assert layers["a"] < kept["a"]
    assert tpot_s < 0.8 * kept_tpot_s


@pytest.mark.parametrize("routing", ["rr", "dp", "auto"])
def test_routers_foresee_of_an_idle_cluster_what_the_replay_then_gives(routing):
    run, core = replayed(near("ab"), [Request(1.0, 200, 100)], end_s=10.0, routing_strategy=routing)
    foreseen = next(one["foreseen"] for one in core.explain("r1")["timeline"] if "foreseen" in one)
    assert foreseen["ttft_s"] == pytest.approx(run.record.ttft_s[0])
    # Routers reckon with the mean context, the replay with that of each step.
    assert foreseen["tpot_s"] == pytest.approx(run.record.tpot_s[0], rel=1e-3)


befallen = st.lists(
    st.builds(
        FaultEvent, st.sampled_from(["kill", "join", "leave", "slow"]), st.sampled_from("abcde"), st.floats(0, 30),
        st.just(3.0),
    ),
    max_size=8,
)  # fmt: skip


@examples(15)
@given(befallen, st.sampled_from(["rr", "dp", "auto"]), st.sampled_from([0.05, math.inf]), st.integers(0, 99))
def test_whatever_befalls_the_nodes_each_request_ends_once_and_the_books_are_empty(what, routing, notice_s, seed):
    asked = requests(2.0, 30.0, seed=seed)
    run, core = replayed(
        near("abcde"), asked, end_s=30.0, fault_events=what, heartbeat_timeout=6.0, heartbeat_interval_s=1.0,
        routing_strategy=routing, absent=["e"], more={"notice_s": notice_s, "patience_s": 60.0},
    )  # fmt: skip
    assert sorted(run.record.at_s) == [request.at_s for request in asked]
    ends = {"served", "cancelled", "rejected"} | (set() if core.serving() else {"unfinished"})
    assert set(outcomes(run)) <= ends
    assert {reason.token for reason in run.refusals} <= {"nobody-serves"}
    assert all(one.running == 0 for one in core.nodes())
    assert not any(machine.heads for machine in run.service.machines.values())


def test_the_same_seed_gives_the_same_report():
    def once():
        run, core = replayed(near("abcd"), requests(4.0, 20.0), fault_events=[FaultEvent("kill", "a", 5.0)])
        return report(run, DEMAND, seed=1), core.metrics.generate_report()

    assert once() == once()


def test_the_report_adds_up():
    demand = replace(DEMAND, tpot_goal_s=0.5)
    asked = requests(5.0, 60.0)
    run, core = replayed(near("abcd"), asked, end_s=60.0, demand=demand)
    found = report(run, demand, seed=0)
    counts = found["requests"]
    assert counts["offered"] == sum(counts[name] for name in OUTCOMES)
    assert found["goodput_per_s"]["estimate"] <= found["served_per_s"]["estimate"]
    for name in ("ttft_s", "tpot_s", "latency_s"):
        p50, p99 = found[name]["p50"], found[name]["p99"]
        assert 0 < p50["low"] <= p50["estimate"] <= p50["high"]
        assert p50["estimate"] <= p99["estimate"]
    # Little's law: requests on pipelines = rate x time there; prefill is not decoding.
    decoding = sum(pipeline["running"] for pipeline in found["pipelines"])
    record = run.record
    mean_s = np.mean(np.array(record.latency_s) - np.array(record.ttft_s))
    assert decoding == pytest.approx(len(asked) / 60.0 * mean_s, rel=0.05)
    assert 0 < found["network"]["share_of_decode"] < 1
    assert core.metrics.generate_report()["throughput"]["served"] == len(asked)


def test_prefixes_that_are_cached_are_not_read_again():
    shared = [Request(0.5 * i, 2000, 10, tuple(range(1, 100))) for i in range(40)]
    own = [request._replace(blocks=()) for request in shared]
    ttft = [np.median(replayed([node("a", gb=30)], asked, end_s=25.0)[0].record.ttft_s) for asked in (shared, own)]
    assert ttft[0] < 0.5 * ttft[1]


def test_the_picture_shows_each_pipeline_and_escapes_names():
    run, _ = replayed([node("a<", gb=24), node("b", gb=24)], requests(3.0, 20.0), end_s=20.0)
    drawn = picture(run.queue_samples, title="a & b")
    assert drawn.count("<polygon") == 2
    assert "a &amp; b" in drawn
    assert "a&lt;" in drawn
    assert "<polyline" in picture([], title="nothing")


def test_an_interrupt_keeps_the_report_so_far(monkeypatch):
    run, _ = replay_job(
        [node("a", gb=24)], ServingJob("test", llama(), Demand(8, 200, 100)), requests(3.0, 60.0),
        config=SchedulerConfig("auto", "auto"), start_s=6.0, end_s=60.0,
    )  # fmt: skip

    def interrupt(now_s):
        if now_s > 20.0:
            raise KeyboardInterrupt

    monkeypatch.setattr("strata.serving.replay.engine.EVERY", 16)
    assert not run.run(interrupt)
    run.close()
    found = report(run, DEMAND, seed=0)
    assert found["window_s"][1] < 30.0
    assert found["requests"]["served"] > 0
    assert found["requests"]["unfinished"] > 0


def test_an_interrupt_before_anything_is_measured_reports_all_there_is():
    run, _ = replay_job(
        [node("a", gb=24)], ServingJob("test", llama(), DEMAND), requests(3.0, 60.0),
        config=SchedulerConfig("auto", "auto"), start_s=30.0, end_s=60.0,
    )  # fmt: skip
    while run.clock.now < 20.0:
        run.clock.step()
    run.close()
    found = report(run, DEMAND, seed=0)
    assert found["window_s"] == [0.0, run.clock.now]
    assert found["requests"]["served"] > 0
