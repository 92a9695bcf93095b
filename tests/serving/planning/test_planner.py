"""`plan_serving`: what a plan gives, why nodes are unused, and what would help where nothing fits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from strata.decision import Trust
from strata.fleet.schema import load_fleet
from strata.serving.observe import nodes_of, pool_of
from strata.serving.planning.allocation import score
from strata.serving.planning.goal import Goal, Weighing
from strata.serving.planning.groups import best_groups
from strata.serving.planning.planner import WORTH_SAYING, plan_serving
from strata.simulate.memory import FIXED_BYTES
from strata.workload.huggingface import model
from strata.workload.inference import ModelInfo
from strata.workload.precision import MEMORY_HEADROOM
from strata.workload.serving_job import Demand, ServingJob, ServingRatios
from tests.support.builders import card, domain, fleet

LLAMA = ModelInfo.of(model("llama-3.1-8b"))  # 32 layers, 15 GiB in bf16


def job(*, batch=4, prompt=512, output=128, **more):
    goals = {key: more.pop(key) for key in ("ttft_goal_s", "tpot_goal_s", "rate_per_s") if key in more}
    return ServingJob("chat", LLAMA, Demand(batch, prompt, output, **goals), **more)


def nodes(name, count, *, gib, tflops=100.0):
    """A domain of `count` nodes of one card each, with so much memory beside the fixed part and its headroom."""
    whole = gib + FIXED_BYTES / 2**30 / (1 - MEMORY_HEADROOM)
    return domain(name, count, per_node=1, accelerator=card(f"{name}-card", gib=whole, tflops=tflops))


def plan(hardware, asked=None, **more):
    ticks = itertools.count()
    return plan_serving(hardware, asked or job(), clock=lambda: next(ticks) * 1e-6, **more)


def tokens(answer):
    return [reason.token for reason in answer.decision.reasons]


def names(answer):
    return [[stage.node for stage in one.stages] for one in answer.plan.pipelines]


def test_one_node_that_holds_the_model_is_a_pipeline():
    answer = plan(fleet(nodes("a", 1, gib=24)))
    (one,) = answer.plan.pipelines
    assert answer.decision.choice == answer.plan
    assert names(answer) == [["a/0"]]
    assert (one.stages[0].first, one.stages[0].end) == (0, 32)
    assert one.tokens_per_s == pytest.approx(4 / one.decode_s)
    assert one.decode_s == pytest.approx(one.stages[0].stage_s)
    assert one.ttft_s > 0
    assert tokens(answer) == ["chosen"]
    assert answer.is_good_enough
    assert answer.unused == ()


def test_devices_that_hardly_reach_each_other_are_not_the_faster_node():
    """Eight L40S on PCIe were said to read a prompt sooner than eight A100 on NVLink."""
    llama = ModelInfo.of(model("llama-3.1-70b"))
    asked = replace(job(batch=16, prompt=1024, output=256, tpot_goal_s=0.05), model=llama)
    slow = card("pcie", tflops=362, gib=48)
    on_pcie = replace(domain("a", 8, accelerator=slow), intra_bandwidth_bytes_per_s=32e9)
    on_nvlink = domain("a", 8, accelerator=card("nvlink", tflops=312, gib=80))
    pcie, nvlink = (plan(fleet(one), asked).estimate.ttft_s for one in (on_pcie, on_nvlink))
    reductions_s = 160 * 2 * 7 / 8 * 1024 * 8192 * 2 / 32e9
    assert pcie > nvlink + 0.7 * reductions_s


def pcie(name, devices=8):
    return replace(domain(name, devices, accelerator=card("pcie", gib=48)), intra_bandwidth_bytes_per_s=32e9)


def sizes(answer):
    return {(node.domain, node.num_devices) for node in answer.plan.fleet.nodes}


def test_a_node_runs_several_groups_of_devices_where_more_requests_are_served_so():
    whole, cut = plan(fleet(pcie("a")), goal=Goal.LATENCY), plan(fleet(pcie("a")), goal=Goal.GOODPUT)
    assert sizes(whole) == {("a", 8)}
    ((_, devices),) = sizes(cut)
    assert devices < 8
    assert "nodes-cut" in tokens(cut)
    assert cut.estimate.goodput_per_s > whole.estimate.goodput_per_s
    assert [node.first_device for node in cut.plan.fleet.nodes] == list(range(0, 8, devices))
    assert {stage.node for pipeline in cut.plan.pipelines for stage in pipeline.stages} <= {
        node.id for node in cut.plan.fleet.nodes
    }


def test_each_kind_of_node_is_cut_as_suits_it():
    """With 25 ms a token, eight A100 decode a 70B model in time and four do not; eight L40S on PCIe never do."""
    asked = replace(
        job(batch=16, prompt=1024, output=256, tpot_goal_s=0.025), model=ModelInfo.of(model("llama-3.1-70b"))
    )
    near = domain("near", 8, accelerator=card("nvlink", tflops=300, gib=80))
    small = replace(pcie("small"), accelerator=card("large-pcie", gib=200))
    by_domain = dict(sizes(plan(fleet(near, small, ms=50), asked, goal=Goal.GOODPUT)))
    assert by_domain == {"near": 8, "small": 8}
    unhurried = replace(asked, demand=replace(asked.demand, tpot_goal_s=0.1))
    assert dict(sizes(plan(fleet(near, small, ms=50), unhurried, goal=Goal.GOODPUT)))["small"] < 8


@pytest.mark.parametrize("goal", [Goal.BOTH, Goal.GOODPUT])
def test_nodes_are_never_cut_to_serve_fewer_requests_within_the_goals(goal):
    for hardware in (fleet(pcie("a")), fleet(domain("a", 8)), fleet(pcie("a"), domain("b", 4, per_node=4))):
        for tpot_goal_s in (0.004, 0.01, 0.05):
            asked = job(tpot_goal_s=tpot_goal_s, ttft_goal_s=1.0)
            groups = best_groups(hardware, asked, goal)
            assert groups.estimate.goodput_per_s >= groups.whole.goodput_per_s


@pytest.mark.parametrize("goal", [Goal.BOTH, Goal.LATENCY])
@pytest.mark.parametrize("gib", [5, 12])
def test_the_figures_are_those_the_allocator_decided_on(goal, gib):
    hardware = fleet(nodes("a", 4, gib=gib), nodes("b", 3, gib=gib), ms=2)
    answer = plan(hardware, goal=goal)
    pool = pool_of(nodes_of(hardware), LLAMA, job().demand)
    for one in answer.plan.pipelines:
        performance = score(pool, (one.layout,))
        assert one.decode_s == pytest.approx(performance.decode_s)
        assert one.tokens_per_s <= performance.tokens_per_s * (1 + 1e-9)
    assert answer.allocation.performance.tokens_per_s <= answer.allocation.bound_tokens_per_s * (1 + 1e-9)
    assert answer.estimate.goodput_per_s == answer.estimate.requests_per_s


def test_a_pipeline_never_has_more_tokens_in_flight_than_its_memory():
    answer = plan(fleet(nodes("a", 8, gib=2.6), ms=50), job(batch=8))
    for one in answer.plan.pipelines:
        assert one.slots == min(stage.slots for stage in one.stages)
        assert one.tokens_per_s * one.decode_s <= one.slots * (1 + 1e-9)
    assert "kv-bound" in tokens(answer)


def test_a_million_tokens_cost_their_share_of_the_devices_and_of_the_links():
    near = plan(fleet(domain("a", 16, price=2.0)), job(ttft_goal_s=1.0)).estimate
    assert near.usd_per_hour == 16 * 2.0
    tokens_per_hour = near.requests_per_s * (512 + 128) * 3600
    assert near.cost_usd_per_mtoken == pytest.approx(1e6 * 32.0 / tokens_per_hour)
    ratio = near.requests_per_s / near.goodput_per_s
    assert near.goodput_usd_per_mtoken == pytest.approx(near.cost_usd_per_mtoken * ratio)
    far = plan(fleet(nodes("a", 1, gib=12), nodes("b", 1, gib=12), ms=1)).estimate
    tokens_per_hour = far.requests_per_s * (512 + 128) * 3600
    egress_usd = 4096 * 2 * 0.02 / 1e9
    assert far.cost_usd_per_mtoken == pytest.approx(1e6 * (2 * 2.0 / tokens_per_hour + egress_usd))


def test_money_is_not_known_where_a_price_is_missing():
    estimate = plan(fleet(domain("a", 16, price=None))).estimate
    assert estimate.usd_per_hour is None
    assert estimate.cost_usd_per_mtoken is None
    assert estimate.goodput_usd_per_mtoken is None


def test_links_that_set_the_pace_are_said_to():
    far = plan(fleet(nodes("a", 1, gib=12), nodes("b", 1, gib=12), ms=80))
    near = plan(fleet(nodes("a", 1, gib=12), nodes("b", 1, gib=12), ms=0.01))
    assert "network-bound" in tokens(far)
    assert "network-bound" not in tokens(near)
    assert far.estimate.link_share > 0.9


@pytest.mark.parametrize(
    ("efficiencies", "trust"),
    [({}, Trust.ASSUMED), ({"flops_efficiency": 0.4, "bandwidth_efficiency": 0.6}, Trust.ANALYTIC)],
)
def test_a_plan_is_as_good_as_the_efficiencies_it_assumes(efficiencies, trust):
    answer = plan(fleet(nodes("a", 1, gib=24)), job(**efficiencies))
    assert answer.decision.trust is answer.estimate.trust is trust


def test_a_calibrated_plan_takes_as_much_longer_as_was_measured_and_says_so():
    hardware = fleet(nodes("a", 1, gib=24))
    (card,) = {domain.accelerator.name for domain in hardware.domains}
    twice = ServingRatios(2.0, 0.0, 2.0, 2.0)
    plain, slow = plan(hardware, job()), plan(hardware, job(calibration={card: twice}))
    assert slow.estimate.decode_s == pytest.approx(2 * plain.estimate.decode_s)
    assert slow.estimate.ttft_s == pytest.approx(2 * plain.estimate.ttft_s)
    assert slow.decision.trust is slow.estimate.trust is Trust.CALIBRATED
    assert plan(hardware, job(calibration={"another": twice})).estimate == plain.estimate
    later = plan(hardware, job(calibration={card: ServingRatios(request_s=0.5)})).estimate
    assert later.ttft_s == pytest.approx(plain.estimate.ttft_s + 0.5)
    assert (later.decode_s, later.tokens_per_s) == (plain.estimate.decode_s, plain.estimate.tokens_per_s)


def test_no_more_sequences_than_the_job_says_are_decoded_together():
    (pipeline,) = plan(fleet(nodes("a", 1, gib=80)), job(sequences=7)).plan.pipelines
    assert [stage.slots for stage in pipeline.stages] == [7]


def test_the_answer_does_not_depend_on_the_order_of_domains():
    parts = [nodes("a", 2, gib=9), nodes("b", 1, gib=14), nodes("c", 2, gib=7)]
    plans = {plan(fleet(*order, ms=5)).plan.pipelines for order in itertools.permutations(parts)}
    assert len(plans) == 1


@pytest.mark.parametrize("strategy", ["dp", "greedy"])
def test_a_strategy_that_is_named_is_taken_and_the_others_stand_beside_it(strategy):
    hardware = fleet(nodes("a", 3, gib=9), nodes("b", 3, gib=9), ms=60)
    answer, best = plan(hardware, strategy=strategy), plan(hardware)
    assert answer.plan.strategy == strategy
    others = {item.name: item for item in answer.decision.alternatives}
    assert set(others) == {"auto", "dp", "greedy"} - {strategy}
    assert others["auto"].cost["decode_s"] == pytest.approx(best.allocation.performance.decode_s)
    assert all(item.reasons for item in others.values())


def test_auto_is_never_worth_less_than_another_strategy():
    answer = plan(fleet(nodes("a", 3, gib=9), nodes("b", 3, gib=7), ms=60), goal=Goal.THROUGHPUT)
    for item in answer.decision.alternatives:
        assert item.cost["tokens_per_s"] <= answer.allocation.performance.tokens_per_s * 1.005
        assert {reason.token for reason in item.reasons} <= {"fewer-tokens", "slower-decode", "same-plan"}


def test_missed_goals_and_an_unserved_rate_are_reasons():
    hardware = fleet(nodes("a", 1, gib=24))
    one = plan(hardware).plan.pipelines[0]
    for missed in ({"tpot_goal_s": one.decode_s * 0.9}, {"ttft_goal_s": one.ttft_s * 0.9}):
        answer = plan(hardware, job(**missed))
        assert tokens(answer) == ["chosen", "goal-missed"]
        assert not answer.is_good_enough
        assert answer.plan.pipelines
    busy = plan(hardware, job(rate_per_s=one.requests_per_s * 1.01))
    assert tokens(busy) == ["chosen", "rate-not-served"]
    assert not busy.is_good_enough
    assert plan(hardware, job(rate_per_s=one.requests_per_s * 0.99)).is_good_enough


def test_a_goal_that_fewer_sequences_a_step_keep_is_not_missed():
    """It was said to be missed on every pipeline, beside requests/s that keep it."""
    hardware = fleet(nodes("a", 1, gib=60))
    alone, many = (plan(hardware, job(batch=batch)).plan.pipelines[0].decode_s for batch in (1, 64))
    answer = plan(hardware, job(batch=64, tpot_goal_s=(alone + many) / 2))
    assert tokens(answer) == ["chosen", "batch-above-goal"]
    assert answer.is_good_enough
    reason = answer.decision.reasons[1]
    assert 1 < reason.data["sequences"] < 64
    kept = plan(hardware, job(batch=reason.data["sequences"], tpot_goal_s=(alone + many) / 2))
    assert tokens(kept) == ["chosen"]


def test_goals_that_some_pipelines_keep_are_good_enough():
    hardware = fleet(nodes("a", 1, gib=24), nodes("b", 1, gib=12), nodes("c", 1, gib=12), ms=50)
    fast = min(one.decode_s for one in plan(hardware).plan.pipelines)
    answer = plan(hardware, job(tpot_goal_s=fast * 1.1))
    assert "goal-missed" in tokens(answer)
    assert answer.is_good_enough
    assert 0 < answer.estimate.goodput_per_s < answer.estimate.requests_per_s


def test_a_pipeline_of_two_vendors_is_said_to_be_one():
    parts = nodes("a", 1, gib=12), nodes("b", 1, gib=12)
    other = replace(parts[1], accelerator=replace(parts[1].accelerator, vendor="other"))
    assert "vendor-mix" not in tokens(plan(fleet(*parts)))
    answer = plan(fleet(parts[0], other))
    assert relaxed(answer, "vendor-mix") == [{"count": 1, "total": 1, "vendors": "other and test"}]


def test_devices_that_were_in_use_are_said_to_be_needed():
    hardware = fleet(replace(nodes("a", 2, gib=24), num_free_devices=1))
    assert relaxed(plan(hardware), "devices-in-use") == [{"used": 2, "free": 1}]
    free = fleet(replace(nodes("a", 2, gib=24), num_free_devices=2))
    assert "devices-in-use" not in tokens(plan(free))


def test_requests_that_are_longer_than_the_models_context_are_said_to_be():
    room = fleet(nodes("a", 1, gib=200))
    asked = {"limit": 131_072, "asked": 200_128}
    assert relaxed(plan(room, job(batch=1, prompt=200_000)), "beyond-context") == [asked]
    assert "beyond-context" not in tokens(plan(room, job(batch=1, prompt=131_072 - 128)))


def relaxed(answer, token):
    return [reason.data for reason in answer.decision.reasons if reason.token == token]


def test_where_nothing_fits_every_relaxation_does_alone():
    hardware, asked = fleet(nodes("a", 2, gib=7)), job(batch=8, prompt=4000, output=1000)
    answer = plan(hardware, asked)
    assert (answer.decision.choice, answer.plan.pipelines, answer.estimate) == (None, (), None)
    assert tokens(answer)[0] == "layers-do-not-fit"
    precisions = relaxed(answer, "fits-with-precision")
    assert [data["what"] for data in precisions] == ["weights"]
    assert plan(hardware, asked.stored(weights=precisions[0]["precision"])).plan.pipelines
    (devices,) = relaxed(answer, "needs-devices")
    for more, fits in ((devices["count"], True), (devices["count"] - 1, False)):
        assert bool(plan(fleet(nodes("a", 2 + more, gib=7)), asked).plan.pipelines) == fits


def test_less_kv_memory_is_the_most_that_fits():
    hardware, asked = fleet(nodes("a", 3, gib=7)), job(batch=32, prompt=4000, output=1000)
    answer = plan(hardware, asked)
    shorter, fewer = relaxed(answer, "fits-with-less")
    assert (shorter["what"], shorter["asked"]) == ("tokens a request", 5000)
    assert (fewer["what"], fewer["asked"]) == ("sequences a step", 32)
    for batch, fits in ((fewer["value"], True), (fewer["value"] + 1, False)):
        changed = replace(asked, demand=replace(asked.demand, batch=batch))
        assert bool(plan(hardware, changed).plan.pipelines) == fits
    for total, fits in ((shorter["value"], True), (shorter["value"] + 1, False)):
        changed = replace(asked, demand=replace(asked.demand, prompt_tokens=total - 100, output_tokens=100))
        assert bool(plan(hardware, changed).plan.pipelines) == fits


def test_nodes_that_do_not_reach_each_other_are_no_pipeline():
    answer = plan(fleet(nodes("a", 1, gib=12), nodes("b", 1, gib=12), links=[]))
    assert answer.decision.choice is None
    assert tokens(answer)[0] == "nodes-apart"
    assert {"fits-with-precision", "needs-devices"} <= set(tokens(answer))
    with_own = plan(fleet(nodes("a", 2, gib=12), nodes("b", 1, gib=12), links=[]))
    assert [set(one) for one in names(with_own)] == [{"a/0", "a/1"}]


def unused(answer):
    return {one.domain: (len(one.nodes), one.reason.token) for one in answer.unused}


def test_a_model_whose_layers_stay_together_is_planned_on_nodes_that_hold_all_of_it():
    whole = replace(job(), model=replace(LLAMA, is_whole=True))
    hardware = fleet(nodes("a", 1, gib=24), nodes("half", 2, gib=12))
    assert names(plan(hardware)) == [["a/0"], ["half/0", "half/1"]]
    answer = plan(hardware, whole)
    assert names(answer) == [["a/0"]]
    assert answer.plan.job.is_whole
    assert unused(answer) == {"half": (2, "memory-exceeded")}
    (left,) = answer.unused
    assert left.reason.data["need"].startswith("15")  # all of it, not the smallest layer
    assert tokens(plan(fleet(nodes("half", 2, gib=12)), whole))[0] == "layers-do-not-fit"


def test_every_unused_node_has_its_reason():
    unknown = replace(card("secret"), fp16_flops=None)
    hardware = fleet(
        nodes("a", 1, gib=24),
        nodes("tiny", 2, gib=0.3),
        nodes("rest", 1, gib=8),
        domain("secret", 2, per_node=1, accelerator=unknown),
        ms=90,
    )
    answer = plan(hardware, goal=Goal.LATENCY)
    assert names(answer) == [["a/0"]]
    assert unused(answer) == {
        "tiny": (2, "memory-exceeded"),
        "rest": (1, "layers-do-not-fit"),
        "secret": (0, "figure-missing"),
    }


def test_what_a_pipeline_left_out_would_change_is_said():
    hardware = fleet(nodes("a", 1, gib=24), nodes("far", 1, gib=12), nodes("off", 1, gib=12), ms=900)
    answer = plan(hardware, goal=Goal.LATENCY)
    assert names(answer) == [["a/0"]]
    left, _ = answer.unused
    assert unused(answer) == {"far": (1, "pipeline-not-worth"), "off": (1, "pipeline-not-worth")}
    everything = plan(hardware, goal=Goal.THROUGHPUT).allocation.performance
    before = answer.allocation.performance
    assert left.reason.data["tokens"] == pytest.approx(everything.tokens_per_s / before.tokens_per_s - 1, rel=0.02)
    assert left.reason.data["decode"] > 0


def test_a_fleet_of_nothing_usable_says_so():
    unknown = replace(card("secret"), fp16_flops=None)
    answer = plan(fleet(domain("secret", 2, per_node=1, accelerator=unknown)))
    assert (answer.decision.choice, tokens(answer)) == (None, ["figure-missing"])


def test_a_search_without_time_still_gives_a_plan_and_says_that_it_was_stopped():
    hardware = fleet(nodes("a", 5, gib=7), nodes("b", 5, gib=7), ms=40)
    later = itertools.count()  # an interrupt while the search runs
    for limits in (
        {"time_limit_s": 0.0},
        {"is_stopped": lambda: True},
        {"is_stopped": lambda: next(later) > 20},
    ):
        stopped = plan(hardware, **limits)
        assert stopped.plan.pipelines
        assert "time-limit" in tokens(stopped)
        assert [item.cost for item in stopped.decision.alternatives] == [{}, {}]
        assert all(item.reasons[0].token == "time-limit" for item in stopped.decision.alternatives)
    assert "time-limit" not in tokens(plan(hardware))


def test_like_questions_have_one_digest():
    hardware = fleet(nodes("a", 1, gib=24))
    digests = {plan(hardware).decision.inputs_digest for _ in range(2)}
    assert len(digests) == 1
    assert plan(hardware, job(batch=5)).decision.inputs_digest not in digests


BIG_AND_SMALL = """
apiVersion: strata/v1alpha1
kind: Fleet
name: mixed
domains:
  - {name: big, region: a, accelerator: H100-SXM5-80GB, num_gpus: 2, gpus_per_node: 1, network_bandwidth: 25Gbps}
  - {name: small, region: a, accelerator: RTX3090, num_gpus: 24, gpus_per_node: 1, network_bandwidth: 10Gbps}
links:
  - {source: big, dest: small, bandwidth: 10Gbps, rtt: 1ms}
  - {source: small, dest: big, bandwidth: 10Gbps, rtt: 1ms}
"""


@pytest.fixture
def mixed(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(BIG_AND_SMALL)
    llama_70b = ModelInfo.of(model("llama-3.1-70b"))
    return load_fleet(file), ServingJob("chat", llama_70b, Demand(8, 512, 256))


@pytest.mark.long("searches allocations for seconds")
def test_the_search_knows_how_many_sequences_memory_keeps_in_flight(mixed):
    """Found in a review: `both` gave 952 tokens/s and `dp` 1300, since only the report knew of KV memory."""
    auto, dp = (plan(*mixed, strategy=strategy) for strategy in ("auto", "dp"))
    weighing = Weighing.of(Goal.BOTH)
    values = [
        weighing.value(one.estimate.tokens_per_s, one.estimate.tokens_per_s * one.estimate.decode_s)
        for one in (auto, dp)
    ]
    assert values[0] >= values[1] - WORTH_SAYING
    assert auto.estimate.tokens_per_s > 1200
    assert auto.estimate.requests_per_s > 9


@pytest.mark.long("searches allocations for seconds")
def test_what_an_alternative_lacks_is_told_with_kv_memory_counted(mixed):
    answer = plan(*mixed)
    greedy = next(item for item in answer.decision.alternatives if item.name == "greedy")
    (fewer,) = [reason for reason in greedy.reasons if reason.token == "fewer-tokens"]
    assert fewer.data["ratio"] == pytest.approx(greedy.cost["tokens_per_s"] / answer.estimate.tokens_per_s)
    assert fewer.data["ratio"] < 0.65


def test_latency_takes_the_few_fast_nodes_that_others_would_only_hold_up(mixed):
    """Found in a review: 157 ms where the two large cards alone give 53."""
    answer = plan(*mixed, goal=Goal.LATENCY)
    assert [sorted(stages) for stages in names(answer)] == [["big/0", "big/1"]]
    assert answer.estimate.decode_s < 0.06


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_sequences_that_the_search_counts_are_those_of_the_report(is_tied):
    asked = replace(job(), model=replace(LLAMA, tied_bytes=LLAMA.embedding_bytes * is_tied))
    for hardware in (fleet(nodes("a", 1, gib=24)), fleet(nodes("a", 3, gib=9))):
        there = nodes_of(hardware)
        pool = pool_of(there, asked.model, asked.demand, derating=asked.derating)
        for pipeline in plan(hardware, asked).plan.pipelines:
            members = [pool.index[stage.node] for stage in pipeline.stages]
            counts = [stage.end - stage.first for stage in pipeline.stages]
            assert pool.slots(members, counts) == min(stage.slots for stage in pipeline.stages)
