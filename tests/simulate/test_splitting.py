"""Sequences and experts split over devices, and activations that go elsewhere: time, memory, and the events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.analytic import StepModel
from strata.simulate.copies import CONTENTION
from strata.simulate.events.run import simulate
from strata.simulate.events.work import Job
from strata.simulate.memory import FIXED_BYTES
from strata.simulate.splitting import HOST_BYTES_PER_S, neighbours
from strata.workload.huggingface import model
from strata.workload.job import ContextExchange, Recompute
from strata.workload.layer_table import layer_table
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.software import Software
from tests.support.builders import domain, fleet, job
from tests.support.laws import examples

LLAMA, MIXTURE = model("llama-3.1-8b"), model("qwen3-30b-a3b")
SITE = domain("a", 64)


def step_model(spec=LLAMA, *, sequence=8192, site=SITE, **more):
    table = replace(layer_table(spec, sequence), kernels=())
    asked = job(table, batch=8, flops_efficiency=0.5, **more)
    return StepModel(fleet(site), replace(asked, sequence_length=sequence))


def plan(model, *, replicas=1, context=1, tensor=1, microbatches=1, some=None, **more):
    whole = Stage("a", 0, len(model.job.layers), tensor, context_parallel=context, recompute_layers=some)
    return TrainingPlan((Pipeline((whole,), replicas, microbatches),), 1, **more)


def times(model, one):
    return model.times(one, one.pipelines[0])


def test_a_sequence_in_pieces_takes_its_share_of_time_and_activations():
    near = replace(SITE, intra_bandwidth_bytes_per_s=1e30, intra_latency_s=0.0)
    model = step_model(sequence=131_072, site=near)
    whole, pieces = plan(model), plan(model, context=8)
    assert times(model, pieces).forward_s[0] == pytest.approx(times(model, whole).forward_s[0] / 8)
    held = [model.stage_memory_bytes(p, p.pipelines[0], p.pipelines[0].stages[0]) for p in (whole, pieces)]
    state = FIXED_BYTES + 16 * LLAMA.num_params
    assert held[1] - state == pytest.approx((held[0] - state) / 8)
    assert pieces.num_devices == 8


def test_keys_and_values_hide_behind_long_attention_and_not_behind_short():
    """arXiv 2310.01889 §3: a block's attention grows with the square of its length, its keys with the length."""
    slow = replace(SITE, intra_bandwidth_bytes_per_s=20e9, intra_latency_s=0.0)
    for sequence, hides in ((262_144, True), (2048, False)):
        model = step_model(sequence=sequence, site=slow)
        ring = times(model, plan(model, context=8)).forward_s[0]
        alone = times(model, plan(model)).forward_s[0] / 8
        assert (ring == pytest.approx(alone)) is hides


def test_all_to_all_moves_pieces_of_heads():
    """arXiv 2309.14509 §3.2: queries, keys, values and outputs, each (c - 1) / c of a device's piece."""
    model = step_model(site=replace(SITE, intra_latency_s=0.0))
    split = plan(model, context=4, context_exchange=ContextExchange.ALL_TO_ALL)
    elements = 2 * LLAMA.num_heads * LLAMA.head_dim + 2 * LLAMA.num_kv_heads * LLAMA.head_dim
    moved = 8192 / 4 * elements * 2 * 3 / 4 / SITE.intra_bandwidth_bytes_per_s * LLAMA.num_layers
    assert times(model, split).forward_s[0] == pytest.approx(times(model, plan(model)).forward_s[0] / 4 + moved)


def test_pieces_of_a_sequence_sum_the_gradients_of_like_weights():
    model = step_model(sequence=1024)
    found, ring_s = times(model, plan(model, context=8)), 2 * 7 / 8 * 2 * LLAMA.num_params / 300e9
    assert found.sync_s == pytest.approx(ring_s + 14 * 5e-6 - found.backward_s[0])
    assert found.sync_s > 0
    sharded = plan(model, context=8, zero_stage=1)
    assert sharded.state_shards(sharded.pipelines[0]) == 8


def test_experts_that_lie_elsewhere_take_their_weights_along_and_cost_four_all_to_alls():
    near = replace(SITE, intra_latency_s=0.0)
    model = step_model(MIXTURE, sequence=4096, site=near)
    together, apart = (plan(model, replicas=8, expert_parallel=e, zero_stage=1) for e in (1, 8))
    extra = times(model, apart).forward_s[0] - times(model, together).forward_s[0]
    sent = 4096 * MIXTURE.experts.experts_per_token * MIXTURE.hidden_size * 2 * MIXTURE.num_layers
    assert extra == pytest.approx(2 * sent * 7 / 8 / near.intra_bandwidth_bytes_per_s)
    held = [model.stage_memory_bytes(p, p.pipelines[0], p.pipelines[0].stages[0]) for p in (together, apart)]
    experts = MIXTURE.num_layers * 128 * 3 * MIXTURE.hidden_size * MIXTURE.experts.intermediate_size
    # Weights and gradients of seven eighths of the experts; the optimizer's state was shared before.
    assert held[0] - held[1] == pytest.approx(4 * experts * 7 / 8)


def test_tokens_go_once_to_each_node_and_share_its_cards():
    """Of 8 experts on 2 nodes, at random, one in 256 tokens has none on the other (arXiv 2412.19437 §3.2.2)."""
    quick = replace(SITE, intra_latency_s=0.0, network_latency_s=0.0)
    model = step_model(MIXTURE, sequence=4096, site=quick, software=Software(sorts_apart=False))
    inside, across = (plan(model, replicas=16, expert_parallel=e) for e in (8, 16))
    alone = times(model, plan(model, replicas=16)).forward_s[0]
    once = 4096 * MIXTURE.hidden_size * 2 * MIXTURE.num_layers
    found = times(model, across).forward_s[0] - alone
    assert found == pytest.approx(2 * once * 255 / 256 / (50e9 / 8), rel=1e-6)
    assert times(model, inside).forward_s[0] - alone == pytest.approx(2 * 8 * once * 7 / 8 / 300e9)


@pytest.mark.parametrize("software", [Software(), Software(drops_tokens=True, sorts_apart=False)])
def test_copies_that_are_sorted_before_or_have_fixed_places_go_to_other_nodes_one_by_one(software):
    quick = replace(SITE, intra_latency_s=0.0, network_latency_s=0.0)
    once_each, apart = (
        step_model(MIXTURE, sequence=4096, site=quick, software=each)
        for each in (Software(sorts_apart=False), software)
    )
    across = plan(once_each, replicas=16, expert_parallel=16)
    once = 4096 * MIXTURE.hidden_size * 2 * MIXTURE.num_layers / (50e9 / 8)
    found = times(apart, across).forward_s[0] - times(once_each, across).forward_s[0]
    assert found == pytest.approx(2 * once * (8 / 2 - 255 / 256), rel=1e-6)


def test_an_exchange_beside_other_work_costs_what_it_slows_it_and_what_outlasts_it():
    for intra_gbps, is_short in ((300, True), (0.1, False)):
        site = replace(SITE, intra_latency_s=0.0, intra_bandwidth_bytes_per_s=intra_gbps * 1e9)
        shown, hidden = (
            step_model(MIXTURE, sequence=4096, site=site, software=Software(hides_exchanges=hides))
            for hides in (False, True)
        )
        one = plan(shown, replicas=8, expert_parallel=8)
        alone = times(shown, plan(shown, replicas=8)).forward_s[0]
        exchange = times(shown, one).forward_s[0] - alone
        found = times(hidden, one).forward_s[0] - alone
        if is_short:
            assert found == pytest.approx(CONTENTION * exchange)
        else:
            assert exchange - alone < found < exchange


def test_a_router_that_takes_few_groups_reaches_few_nodes():
    """DeepSeek-V3 has 4 of 8 groups a token: of 8 nodes it reaches 4 (arXiv 2412.19437 §2.1.2)."""
    spec = model("deepseek-v3")
    assert spec.experts.groups == (8, 4)
    anywhere = replace(spec, experts=replace(spec.experts, groups=(1, 1)))
    few, many = (
        step_model(
            one, sequence=1024, site=replace(SITE, network_latency_s=0.0), software=Software(sorts_apart=False)
        )
        for one in (spec, anywhere)
    )
    spread = plan(few, replicas=64, expert_parallel=64)
    saved = times(many, spread).forward_s[0] - times(few, spread).forward_s[0]
    nodes = 7 / 8 * (8 * (1 - (7 / 8) ** 8) - 4 * (1 - (3 / 4) ** 8))
    assert saved == pytest.approx(2 * 58 * 1024 * spec.hidden_size * 2 * nodes / (50e9 / 8))


@pytest.mark.parametrize(("tensor", "found"), [(1, 8), (2, 4), (8, 1)])
def test_experts_lie_next_to_each_other_whatever_the_pipeline(tensor, found):
    assert neighbours(SITE, Stage("a", 0, 4, tensor)) == found


def test_the_fullest_expert_is_waited_for():
    even, skewed = step_model(MIXTURE), step_model(MIXTURE, expert_imbalance=1.5)
    for experts, is_slower in ((1, False), (8, True)):
        one = plan(even, replicas=8, expert_parallel=experts)
        assert (times(skewed, one).forward_s[0] > times(even, one).forward_s[0]) is is_slower


def test_selective_recomputation_lies_between_none_and_full():
    model = step_model()
    none, some, full = (plan(model, recompute=r) for r in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL))
    backward = [times(model, one).backward_s[0] for one in (none, some, full)]
    held = [model.stage_memory_bytes(p, p.pipelines[0], p.pipelines[0].stages[0]) for p in (none, some, full)]
    assert backward == sorted(backward)
    assert backward[0] < backward[1] < backward[0] * 1.15
    assert held == sorted(held, reverse=True)
    assert held[0] > held[1] > held[2]


@pytest.mark.long("a law over many shapes")
@given(st.integers(0, 34))
@examples(12)
def test_recomputing_some_layers_is_between_none_and_all(count):
    model = step_model()
    some = plan(model, recompute=Recompute.FULL, some=count)
    none, full = plan(model), plan(model, recompute=Recompute.FULL)
    assert times(model, none).backward_s[0] <= times(model, some).backward_s[0] * (1 + 1e-12)
    assert times(model, some).backward_s[0] <= times(model, full).backward_s[0] * (1 + 1e-12)
    if count == 34:
        assert times(model, some).backward_s[0] == pytest.approx(times(model, full).backward_s[0])


def test_activations_in_the_hosts_memory_leave_two_layers_and_cost_their_way():
    model = step_model(sequence=131_072)
    here, away = plan(model), plan(model, activation_offload=1.0)
    kept = float(model.job.layers.activation_bytes.sum())
    assert times(model, away).forward_s[0] == pytest.approx(
        max(times(model, here).forward_s[0], kept / HOST_BYTES_PER_S)
    )
    need = [model.stage_memory_bytes(p, p.pipelines[0], p.pipelines[0].stages[0]) for p in (here, away)]
    assert need[0] - need[1] == pytest.approx(kept - 2 * model.job.layers.activation_bytes.max())


@given(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]), st.sampled_from(ContextExchange),
    st.sampled_from(Recompute), st.sampled_from([None, 3]), st.sampled_from([0.0, 0.5]), st.integers(0, 3),
)  # fmt: skip
@examples(30)
def test_the_events_of_every_such_plan_are_the_analytic_step(context, experts, way, recompute, some, away, zero):
    model = step_model(MIXTURE, sequence=4096, expert_imbalance=1.2)
    half = len(model.job.layers) // 2
    stages = (
        Stage("a", 0, half, 2, 1, context, some),
        Stage("a", half, len(model.job.layers) - half, 2, 0, context),
    )
    one = TrainingPlan(
        (Pipeline(stages, 4, 2),), 1, recompute=recompute, zero_stage=zero, context_exchange=way,
        expert_parallel=experts, activation_offload=away,
    )  # fmt: skip
    assert TrainingPlan.from_dict(one.to_dict()) == one
    found = simulate([Job("job", model, one)], rng=np.random.default_rng(0)).reports[0]
    expected = model.reports([one])[0]
    assert found.step_time_s == pytest.approx(expected.step_time_s, rel=1e-9)
    assert 0 < expected.utilization <= 1


def test_a_plan_written_before_these_fields_is_read():
    old = plan(step_model()).to_dict()
    for key in ("context_exchange", "expert_parallel", "activation_offload", "shard_group"):
        del old[key]
    del old["pipelines"][0]["stages"][0]["context_parallel"]
    assert TrainingPlan.from_dict(old) == plan(step_model())
    assert TrainingPlan.from_dict({**old, "recompute_layers": 3}) == plan(step_model(), some=3)
