from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.decision import Trust
from strata.fleet.accelerator import Accelerator
from strata.fleet.catalogue import accelerator
from strata.serving.layout import FAR
from strata.serving.node import Node
from strata.serving.observe import ASSUMED_BANDWIDTH_BYTES_PER_S, layout_of, nodes_of, pool_of, unusable
from strata.serving.planning.allocate import allocate
from strata.serving.planning.allocation import Stage, faults, score
from strata.serving.planning.pool import why_not_held
from strata.serving.request import RequestSignal
from strata.simulate.analytic import StepModel
from strata.simulate.inference.calibration import Calibration
from strata.simulate.inference.memory import kv_tokens
from strata.simulate.inference.roofline import Rates, decode_s, prefill_s
from strata.simulate.kernel_rates import MEMORY_SHARE, SHARES, UNKNOWN_CARD, InferenceShares
from strata.simulate.memory import FIXED_BYTES
from strata.workload.experts import Experts
from strata.workload.inference import ModelInfo
from strata.workload.precision import MEMORY_HEADROOM
from strata.workload.serving_job import Demand, Derating, ServingJob
from tests.support.builders import GBPS, card, domain, fleet, job, link
from tests.support.inference_models import models, served, small, spec
from tests.support.laws import examples

LLAMA = served("llama-3.1-8b")
DEMAND = Demand(16, 1024, 256)


def node(name: str, *, tflops: float = 300.0, gb: float = 80.0, **more: Any) -> Node:
    return Node(name, tflops * 1e12, gb * 1e9, 2e12, **more)


def ends(first: Node, last: Node, model: ModelInfo = LLAMA) -> list[tuple[Stage, ...]]:
    half = model.num_layers // 2
    return [(Stage(first.node_id, 0, half), Stage(last.node_id, half, model.num_layers))]


def test_devices_of_a_node_work_as_one() -> None:
    nodes = nodes_of(fleet(domain("a", 16, accelerator=card(tflops=100, gib=80)), domain("b", 4, per_node=2)))

    assert [one.node_id for one in nodes] == ["a/0", "a/1", "b/0", "b/1"]
    assert nodes[0].compute_capability == 8 * 100e12
    assert nodes[0].memory_bytes == 8 * 80 * 2**30
    assert nodes[0].memory_bandwidth_bytes_per_s == 8 * 2e12
    assert nodes[0].trust is Trust.ANALYTIC
    assert nodes[2].compute_capability == 2 * 100e12


def test_groups_of_a_cut_node_share_its_network_and_are_near_each_other() -> None:
    nodes = nodes_of(fleet(domain("a", 16), domain("b", 8)), groups={"a": 4})

    assert [one.node_id for one in nodes] == ["a/0.0", "a/0.1", "a/1.0", "a/1.1", "b/0"]
    first, beside, other, _, far = nodes
    assert (first.num_devices, far.num_devices) == (4, 8)
    assert first.memory_bytes == far.memory_bytes / 2
    assert (first.hop_s[beside.node_id], first.bandwidth_bytes_per_s[beside.node_id]) == (5e-6, 300e9)
    assert (first.hop_s[other.node_id], first.bandwidth_bytes_per_s[other.node_id]) == (10e-6, 25e9)
    assert first.bandwidth_bytes_per_s[far.node_id] == 5 * GBPS


def test_serving_leaves_as_much_memory_alone_as_training() -> None:
    """Contexts and buffers of each device, and the headroom."""
    place = domain("a", 8, accelerator=card(gib=80))
    (node,) = nodes_of(fleet(place))

    limit = StepModel(fleet(place), job()).memory_limit_bytes(place)

    assert node.usable_bytes(MEMORY_HEADROOM) == pytest.approx(8 * (limit - FIXED_BYTES))


def test_weights_in_fp8_are_read_and_multiplied_in_fp8_where_a_card_can() -> None:
    whole = ServingJob("chat", LLAMA, DEMAND)
    halved = whole.stored(weights="fp8")
    with_fp8 = replace(card("new", tflops=100), fp8_flops=200e12)

    def prompt_s(asked: ServingJob, accelerator: Accelerator) -> float:
        nodes = nodes_of(fleet(domain("a", 1, accelerator=accelerator)))
        pool = pool_of(nodes, asked.model, asked.demand)
        assert pool.service is not None
        return pool.service.prompt_s[0][-1]

    assert prompt_s(halved, card(tflops=100)) == pytest.approx(prompt_s(whole, card(tflops=100)))
    reached = InferenceShares.of(with_fp8)
    least = reached.matmul / (2 * reached.matmul_fp8)
    assert least < prompt_s(halved, with_fp8) / prompt_s(whole, with_fp8) < least + 0.05


def test_a_node_reaches_what_kernels_reach_on_its_card_unless_the_job_says_otherwise() -> None:
    slow, fast = (nodes_of(fleet(domain("a", 1, accelerator=accelerator(name))))[0] for name in ("A100", "H100"))
    assert (slow.shares.matmul, fast.shares.matmul) == (SHARES["A100"].matmul, SHARES["H100"].matmul)
    assert slow.shares.memory == fast.shares.memory == MEMORY_SHARE
    assert slow.shares.attention == SHARES["A100"].flash_attention

    def prompt_s(one: Node, **stated: float) -> float:
        pool = pool_of([one], LLAMA, DEMAND, derating=Derating(**stated))
        assert pool.service is not None
        return pool.service.prompt_s[0][-1]

    by_kernels, stated = prompt_s(slow), prompt_s(slow, flops_efficiency=SHARES["A100"].matmul)
    assert stated < by_kernels < 1.05 * stated  # attention reaches less
    assert prompt_s(slow, bandwidth_efficiency=0.5) == by_kernels


def test_hops_are_the_network_inside_a_domain_and_the_link_across() -> None:
    sites = fleet(domain("a", 16), domain("b", 8), links=link("a", "b", 5.0, 30.0))

    first, second, other = nodes_of(sites)

    assert first.hop_s[second.node_id] == 10e-6
    assert first.bandwidth_bytes_per_s[second.node_id] == 50e9
    assert first.hop_s[other.node_id] == 0.030
    assert first.bandwidth_bytes_per_s[other.node_id] == 5 * GBPS


def test_domains_without_a_link_are_never_joined() -> None:
    sites = fleet(domain("a", 8), domain("b", 8), domain("c", 8), links=link("a", "b", 5.0, 30.0))

    pool = pool_of(nodes_of(sites), served("llama-3.1-405b"), Demand(8, 1024, 256))
    plan = allocate(pool)

    assert pool.hop_s[0, 2] == math.inf
    assert [{stage.node_id for stage in one} for one in plan.pipelines] == [{"a/0", "b/0"}]


def test_what_is_not_known_of_a_card_is_not_made_up() -> None:
    blank = Accelerator("blank", "test", 0.0, fp16_flops=1e14)
    sites = fleet(domain("a", 8), domain("b", 8, accelerator=blank), domain("c", 0))

    reasons = unusable(sites)

    assert {one.node_id for one in nodes_of(sites)} == {"a/0"}
    assert {name: reason.token for name, reason in reasons.items()} == {
        "b": "figure-missing",
        "c": "no-accelerators",
    }
    assert str(reasons["b"]) == "b: the memory bandwidth and memory of blank are not known"


def test_a_pool_has_the_times_of_the_roofline() -> None:
    pool = pool_of([node("a")], LLAMA, DEMAND, derating=Derating(flops_efficiency=0.5, bandwidth_efficiency=0.5))

    step = decode_s(LLAMA, Rates(150e12, 1e12), batch=16, context=1152)
    assert pool.nodes[0].prefix_s[-1] == pytest.approx(step[:-1].sum())
    assert pool.nodes[0].layers_s(3, 7) == pytest.approx(step[3:7].sum())
    assert pool.nodes[0].head_s == pytest.approx(step[-1])
    assert pool.batch == 16
    assert pool.has_equal_layers


def test_layers_that_differ_take_different_times() -> None:
    mixed = ModelInfo.of(spec(6, experts=Experts(16, 2, 4096, dense_layers=frozenset({0, 1}))))

    pool = pool_of([node("a")], mixed, DEMAND)

    assert not pool.has_equal_layers
    assert pool.nodes[0].layers_s(0, 1) < pool.nodes[0].layers_s(5, 6)


def test_longer_requests_leave_room_for_fewer_layers() -> None:
    def most(prompt_tokens: int) -> int:
        return pool_of([node("a", gb=24)], LLAMA, Demand(16, prompt_tokens, 0)).nodes[0].capacity.middle

    assert most(100) == 32
    assert 32 > most(20_000) > most(40_000) > 0


def test_every_planned_stage_caches_the_whole_batch() -> None:
    nodes, demand = [node(f"n{i}", gb=12 + 4 * i) for i in range(4)], Demand(32, 4000, 1000)

    plan = allocate(pool_of(nodes, LLAMA, demand))
    layout = layout_of(nodes, plan.pipelines, LLAMA, demand)

    assert layout.servers
    assert all(server.kv_tokens >= 32 * 5000 and server.slots >= 32 for server in layout.servers)


@examples(40)
@given(models(), st.lists(st.floats(0.05, 2.0), min_size=1, max_size=6), st.integers(0, 20_000))
def test_whatever_the_model_plans_are_legal_and_cache_the_whole_batch(
    model: ModelInfo, memory_gb: list[float], prompt_tokens: int
) -> None:
    nodes = [node(f"n{i}", gb=gb, tflops=100.0 + 100 * i) for i, gb in enumerate(memory_gb)]
    demand = Demand(8, prompt_tokens, 100)
    pool = pool_of(nodes, model, demand)

    plan = allocate(pool)
    layout = layout_of(nodes, plan.pipelines, model, demand)

    assert not faults(pool, plan.pipelines)
    assert all(server.kv_tokens >= 8 * (prompt_tokens + 100) for server in layout.servers)


def test_hops_carry_the_activations_of_the_batch_each_way_at_its_own_price() -> None:
    a = node("a", hop_s={"b": 0.01}, bandwidth_bytes_per_s={"b": 1e8})
    b = node("b", hop_s={"a": 0.03}, bandwidth_bytes_per_s={"a": 1e9})

    hops = pool_of([a, b], LLAMA, DEMAND).hop_s

    message = 16 * 4096 * 2
    assert hops[0, 1] == pytest.approx(0.01 + message / 1e8)
    assert hops[1, 0] == pytest.approx(0.03 + message / 1e9)
    assert hops[0, 0] == 0.0


def test_a_hop_measured_one_way_is_taken_for_the_way_back_and_others_are_far() -> None:
    a, b, c = node("a", hop_s={"b": 0.01}), node("b"), node("c")

    hops = pool_of([a, b, c], LLAMA, DEMAND).hop_s
    layout = layout_of([a, b, c], ends(a, b), LLAMA, DEMAND)

    message_s = 16 * LLAMA.hidden_bytes / ASSUMED_BANDWIDTH_BYTES_PER_S
    assert hops[1, 0] == hops[0, 1] == pytest.approx(0.01 + message_s)
    assert hops[0, 2] == pytest.approx(FAR.fixed_s + message_s)
    for (i, source), (j, dest) in ((x, y) for x in enumerate("abc") for y in enumerate("abc")):
        assert layout.hop(source, dest).at(16) == pytest.approx(hops[i, j])
    assert layout.hop("b", "a").fixed_s == 0.01


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([0.01, 0.2, math.inf])), max_size=9)
)
def test_hops_as_an_array_are_the_hops_one_by_one(measured: list[tuple[int, int, float]]) -> None:
    names = list("abcde")
    nodes = [
        node(
            name,
            hop_s={names[j]: s for k, j, s in measured if k == i},
            bandwidth_bytes_per_s={names[j]: 1e9 for k, j, s in measured if k == i and s < 0.1},
        )
        for i, name in enumerate(names)
    ]
    layout = layout_of(nodes, [], LLAMA, DEMAND)
    plain = replace(layout, hops={(a, b): layout.hop(a, b) for a, b in permutations(names, 2)})
    for one in (layout, plain):
        fixed_s, per_unit_s = one.lines(names, names[1:])
        hops = [[one.hop(a, b) for b in names[1:]] for a in names]
        assert fixed_s.tolist() == [[hop.fixed_s for hop in row] for row in hops]
        assert per_unit_s.tolist() == [[hop.per_unit_s for hop in row] for row in hops]
        assert one.lines(names, []).shape == (2, 5, 0)


@given(st.permutations(range(5)))
def test_the_order_in_which_nodes_came_does_not_matter(order: list[int]) -> None:
    names = [f"n{i}" for i in range(5)]
    nodes = [
        node(name, gb=10 + 5 * i, hop_s={other: 0.001 * (i + 2 * j) for j, other in enumerate(names)})
        for i, name in enumerate(names)
    ]

    pool, other = pool_of(nodes, LLAMA, DEMAND), pool_of([nodes[i] for i in order], LLAMA, DEMAND)

    assert pool.nodes == other.nodes
    assert np.array_equal(pool.hop_s, other.hop_s)


def test_a_node_of_unknown_rates_or_memory_gets_no_layers() -> None:
    odd = [Node("a", 1e14), replace(node("b"), memory_bandwidth_bytes_per_s=0.0)]

    pool = pool_of(odd, LLAMA, DEMAND)

    assert [max(one.capacity) for one in pool.nodes] == [0, 0]
    assert not allocate(pool).pipelines


def test_an_empty_pool_is_a_pool() -> None:
    assert not allocate(pool_of([], LLAMA, DEMAND)).pipelines
    assert layout_of([], [], LLAMA, DEMAND).servers == ()


def test_measurements_move_pool_and_layout_alike() -> None:
    nodes, calibration = [node("a"), node("b")], Calibration()
    slow_s = 4 * pool_of(nodes, LLAMA, DEMAND).nodes[0].layers_s(0, 16)
    for _ in range(16):
        calibration.observe("a", "decode", first=0, end=16, units=16, context=DEMAND.context, seconds=slow_s)

    pool = pool_of(nodes, LLAMA, DEMAND, calibration=calibration)
    layout = layout_of(nodes, ends(*nodes), LLAMA, DEMAND, calibration=calibration)

    assert pool.nodes[0].layers_s(0, 16) == pytest.approx(slow_s, rel=0.02)
    assert layout.servers[0].decode.at(16) == pytest.approx(pool.nodes[0].layers_s(0, 16))
    assert pool.nodes[1] == pool_of(nodes, LLAMA, DEMAND).nodes[1]


def test_stages_of_a_layout_are_those_that_the_pool_was_planned_on() -> None:
    a, b = node("a", hop_s={"b": 0.002}), node("b", tflops=100.0, hop_s={"a": 0.003})
    pipelines = ends(a, b)

    layout = layout_of([a, b], pipelines, LLAMA, DEMAND)
    decode_s = sum(server.decode.at(16) for server in layout.servers) + layout.ring(["a", "b"]).at(16)

    assert decode_s == pytest.approx(score(pool_of([a, b], LLAMA, DEMAND), pipelines).decode_s)
    assert layout.pipelines == tuple(pipelines)


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_batch_that_takes_several_steps_is_planned_so(*, is_measured: bool) -> None:
    """Plans had a worker decode any batch in one step, where routers knew that it takes eight rows at once."""
    whole, rows = node("n0"), node("n0", step_sequences=5)
    calibration = Calibration()
    if is_measured:
        for sequences in (1, 4, 16):
            seconds = 0.02 + 1e-3 * sequences
            calibration.observe(
                "n0", "decode", first=0, end=32, units=sequences, context=DEMAND.context, seconds=seconds
            )
    (alone,), (in_steps,) = (
        pool_of([each], LLAMA, DEMAND, calibration=calibration).nodes for each in (whole, rows)
    )
    (server,) = layout_of([rows], [(Stage("n0", 0, 32),)], LLAMA, DEMAND, calibration=calibration).servers

    assert in_steps.prefix_s[-1] + in_steps.head_s == pytest.approx(server.token_s(DEMAND.batch))
    more = in_steps.prefix_s[-1] + in_steps.head_s - alone.prefix_s[-1] - alone.head_s
    assert more == pytest.approx(3 * server.decode.fixed_s)  # 16 sequences: 5, 5, 5 and 1


def test_lines_are_exact_for_one_and_for_what_is_demanded() -> None:
    server = layout_of([node("a")], [(Stage("a", 0, 32),)], LLAMA, DEMAND).servers[0]
    reached = UNKNOWN_CARD
    rates = Rates(
        300e12 * reached.matmul, 2e12 * reached.memory, attention_speedup=reached.attention / reached.matmul
    )

    for batch in (1, 16):
        step = decode_s(LLAMA, rates, batch=batch, context=1152)
        assert server.decode.at(batch) == pytest.approx(step.sum())
    assert server.prefill.at(1024) == pytest.approx(prefill_s(LLAMA, rates, tokens=1024).sum())
    assert server.prefill.at(1) == pytest.approx(prefill_s(LLAMA, rates, tokens=1).sum(), rel=0.01)


def test_slots_are_what_kv_memory_holds_of_whole_requests() -> None:
    a, b = node("a", gb=20), node("b", gb=12)
    servers = layout_of([a, b], ends(a, b), LLAMA, DEMAND).servers

    for server, one in zip(servers, (a, b), strict=True):
        tokens = kv_tokens(
            LLAMA, one.usable_bytes(0.08), server.first, server.end, request_tokens=DEMAND.kv_tokens
        )
        assert (server.kv_tokens, server.slots) == (tokens, tokens // 1280)


def test_a_node_in_two_pipelines_is_one_server() -> None:
    a, b, c = node("a"), node("b"), node("c")

    layout = layout_of([a, b, c], [*ends(a, b), *ends(a, c)], LLAMA, DEMAND)

    assert [server.node_id for server in layout.servers] == ["a", "b", "c"]


def test_a_whole_backend_is_a_pipeline_of_its_own_and_is_never_cut() -> None:
    backend, a, b = node("z", model="llama"), node("a"), node("b")

    pool = pool_of([backend], LLAMA, DEMAND)
    layout = layout_of([backend, a, b], ends(a, b), LLAMA, DEMAND)

    assert pool.nodes[0].capacity == (0, 0, 0, 32)
    assert layout.pipelines == (*ends(a, b), (Stage("z", 0, 32),))
    assert (layout.servers[-1].first, layout.servers[-1].end) == (0, 32)


def test_a_model_whose_layers_stay_together_is_on_one_node_or_on_none() -> None:
    """Gemma 3n: later layers take keys and values of earlier ones."""
    whole = replace(LLAMA, is_whole=True)
    nodes = [node("large", gb=80), node("small", gb=12), node("tiny", gb=12)]
    fitting, cut = pool_of(nodes, whole, DEMAND), pool_of(nodes, LLAMA, DEMAND)
    assert {each.id: tuple(each.capacity) for each in fitting.nodes} == {
        "large": (0, 0, 0, 32), "small": (0, 0, 0, 0), "tiny": (0, 0, 0, 0),
    }  # fmt: skip
    assert allocate(fitting, "auto").pipelines == ((("large", 0, 32),),)
    halves = fitting.only([1, 2])
    assert allocate(cut.only([1, 2]), "auto").pipelines
    assert not allocate(halves, "auto").pipelines
    assert [reason.token for reason in why_not_held(halves)] == ["layers-do-not-fit"]


def test_what_a_backend_says_of_its_slots_is_believed() -> None:
    silent = Node("y", 1e14, model="llama")
    telling = Node("z", 1e14, model="llama", slots=64, kv_tokens=50_000)

    first, second = layout_of([silent, telling], [], LLAMA, DEMAND).servers

    assert (first.slots, first.kv_tokens) == (16, 16 * 1280)
    assert (second.slots, second.kv_tokens) == (64, 50_000)


def test_a_laid_out_node_says_whether_it_has_room() -> None:
    server = layout_of([node("a", gb=20)], [(Stage("a", 0, 32),)], LLAMA, DEMAND).servers[0]
    seen = replace(node("a"), slots=server.slots, kv_tokens=server.kv_tokens)

    assert seen.can_handle_request(RequestSignal("r", server.kv_tokens - 1, 1))
    assert not seen.can_handle_request(RequestSignal("r", server.kv_tokens, 1))


def test_a_tied_head_counts_once_on_a_node_alone() -> None:
    tied, memory_gb = small(8, tied=True), 0.4

    def room(model: ModelInfo) -> tuple[int, int]:
        capacity = pool_of([node("a", gb=memory_gb)], model, Demand(1, 100, 10)).nodes[0].capacity
        return capacity.last, capacity.only

    assert room(tied)[0] == room(small(8))[0]
    assert room(tied)[1] > room(small(8))[1]
