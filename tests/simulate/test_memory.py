from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.analytic import StepModel
from strata.simulate.memory import (
    FIXED_BYTES,
    LayerRuns,
    StageShape,
    kept_bytes,
    stage_bytes,
    state_bytes,
)
from strata.simulate.order import most_in_flight, orders
from strata.simulate.timeline import SpanKind
from strata.workload.huggingface import model
from strata.workload.job import Recompute, Schedule
from strata.workload.layer_table import layer_table
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.software import Software
from tests.support.builders import domain, fleet, job, layers, tied

shapes = st.builds(
    StageShape,
    tensor_parallel=st.sampled_from([1, 2, 8]),
    shards=st.integers(1, 5),
    microbatch_size=st.integers(1, 4),
    recompute=st.sampled_from(Recompute),
    zero_stage=st.integers(0, 3),
    in_flight=st.integers(1, 9),
    holds_outer=st.booleans(),
)


def uneven(scales):
    table = layers(len(scales) - 2)
    return replace(table, params=table.params * scales, activation_bytes=table.activation_bytes * scales[::-1])


@given(
    shapes, st.lists(st.integers(1, 9), min_size=3, max_size=9), st.integers(0, 8), st.floats(2e9, 60e9),
    st.booleans(),
)  # fmt: skip
def test_a_stage_holds_exactly_the_most_layers_whose_bytes_fit(shape, scales, first, limit_bytes, is_tied):
    table = uneven(np.array(scales, dtype=float))
    asked = job(tied(table, 3e8) if is_tied else table)
    first = min(first, len(scales) - 1)
    fits = [
        count
        for count in range(1, len(scales) - first + 1)
        if stage_bytes(asked, first, count, shape=shape) <= limit_bytes
    ]
    runs = LayerRuns(asked, shape).fit(shape.in_flight, limit_bytes)
    assert fits == list(range(1, int(runs[first, first + 1 :].sum()) + 1))  # bytes grow with every layer


@given(shapes, st.integers(0, 9), st.integers(1, 5))
def test_more_microbatches_in_flight_outer_state_or_layers_never_take_less(shape, first, count):
    asked, first = job(layers(12)), min(first, 8)
    here = stage_bytes(asked, first, count, shape=shape)
    assert stage_bytes(asked, first, count, shape=replace(shape, in_flight=shape.in_flight + 1)) >= here
    assert stage_bytes(asked, first, count, shape=replace(shape, holds_outer=True)) >= here
    assert stage_bytes(asked, first, count + 1, shape=shape) >= here >= FIXED_BYTES


@pytest.mark.parametrize(
    ("zero_stage", "bytes_per_param"),
    [(0, 16.0), (1, 4 + 12 / 4), (2, 2 + 2 / 4 + 12 / 4), (3, 16 / 4)],
)
def test_zero_stages_shard_what_the_paper_says(zero_stage, bytes_per_param):
    """arXiv 1910.02054, figure 1: 16 bytes a parameter of mixed-precision Adam, by 4 copies."""
    assert state_bytes(job(), 1.0, shards=4, zero_stage=zero_stage) == bytes_per_param


def test_recomputation_keeps_inputs_and_one_layer_in_full():
    asked = job(layers(4, mparams=0.0, hidden_mib=1.0))
    plain = StageShape(1, 1, 1, Recompute.NONE, zero_stage=0, in_flight=3)
    mib = 2**20
    assert stage_bytes(asked, 1, 4, shape=plain) - FIXED_BYTES == 3 * 4 * 17 * mib
    again = replace(plain, recompute=Recompute.FULL)
    assert stage_bytes(asked, 1, 4, shape=again) - FIXED_BYTES == (3 * 4 + 17) * mib


def test_checkpointing_of_operations_keeps_less_than_all_and_more_than_inputs():
    asked = job(layer_table(model("llama-3.1-8b"), 4096))
    none, op, full = (
        stage_bytes(asked, 1, 8, shape=StageShape(1, 1, 1, recompute, zero_stage=0, in_flight=4))
        for recompute in (Recompute.NONE, Recompute.SELECTIVE_OP, Recompute.FULL)
    )
    assert full < op < none


def test_the_loss_has_its_logits_in_both_widths():
    spec = model("llama-3.1-8b")
    asked = job(layer_table(spec, 4096))
    shape, last = StageShape(1, 1, 1, Recompute.NONE, zero_stage=0, in_flight=1), len(asked.layers) - 1
    held = stage_bytes(asked, last, 1, shape=shape) - FIXED_BYTES - 16 * asked.layers.params[last]
    assert held - asked.layers.activation_bytes[last] == 8 * 4096 * spec.vocab_size


def test_checkpointing_of_operations_keeps_the_results_of_every_second_product():
    """torchtitan's products of a block: q, k, v, o, w1, w3, w2; and the block's input and attention's output."""
    spec = model("llama-3.1-8b")
    found = kept_bytes(layer_table(spec, 1), Recompute.SELECTIVE_OP)[1]
    q, v = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    assert found == 2 * (q + v + spec.intermediate_size + spec.hidden_size + spec.hidden_size + q)


def test_transformer_engine_keeps_no_second_copy_of_logits_nor_what_experts_make():
    spec = model("qwen3-30b-a3b")
    table, narrow = layer_table(spec, 8), layer_table(spec, 8, keeps_expert_outputs=False)
    assert table.activation_bytes[1] - narrow.activation_bytes[1] == 8 * 2 * 8 * spec.hidden_size
    shape, last = StageShape(1, 1, 1, Recompute.NONE, zero_stage=0, in_flight=1), len(table) - 1
    wide, engine = (
        stage_bytes(job(table, software=Software(transformer_engine=te)), last, 1, shape=shape) for te in (0, 1)
    )
    assert wide - engine == 4 * 8 * spec.vocab_size


def test_a_loss_of_one_kernel_has_its_gradient_in_the_place_of_the_logits():
    table = layer_table(model("llama-3.1-8b"), 8)
    shape, last = StageShape(1, 1, 1, Recompute.NONE, zero_stage=0, in_flight=1), len(table) - 1
    plain, fused = (
        stage_bytes(job(table, software=Software(fused_loss=one)), last, 1, shape=shape) for one in (False, True)
    )
    assert plain - fused == 8 * 8 * model("llama-3.1-8b").vocab_size


def test_tensor_parallelism_gathers_whole_sequences_for_the_products_of_a_block():
    table = layer_table(model("llama-3.1-8b"), 4096)
    shape = StageShape(8, 1, 2, Recompute.NONE, zero_stage=0, in_flight=1)
    for engine, count in ((False, 4), (True, 2)):
        asked = job(table, software=Software(transformer_engine=engine))
        held = (16 * table.params[1] + 2 * table.activation_bytes[1]) / 8
        whole = stage_bytes(asked, 1, 1, shape=shape) - FIXED_BYTES - held
        assert whole == pytest.approx(count * 2 * table.boundary_bytes[1] * 7 / 8)


def test_wide_gradients_take_two_bytes_more_of_what_is_not_sharded():
    table = layers(4, mparams=100.0, hidden_mib=0.0)
    for zero, more in ((0, 2.0), (1, 2.0), (2, 2.0 / 8)):
        shape = StageShape(1, 8, 1, Recompute.NONE, zero_stage=zero, in_flight=1)
        narrow, wide = (
            stage_bytes(job(table, software=Software(wide_gradients=is_wide)), 1, 4, shape=shape)
            for is_wide in (False, True)
        )
        assert wide - narrow == pytest.approx(4e8 * more)


def test_the_embedding_of_sharded_weights_stays_whole():
    table = layers(4, mparams=100.0, hidden_mib=0.0)
    shape = StageShape(1, 8, 1, Recompute.NONE, zero_stage=3, in_flight=1)
    found = stage_bytes(job(table), 0, 1, shape=shape) - FIXED_BYTES
    assert found == pytest.approx(table.params[0] * (16 / 8 + 3 * 2 + 2 * 7 / 8))


def test_sharded_weights_are_whole_for_the_layer_in_use_and_the_one_fetched_ahead():
    asked = job(layers(4, mparams=100.0, hidden_mib=0.0))
    shape = StageShape(1, 8, 1, Recompute.NONE, zero_stage=3, in_flight=1)
    assert stage_bytes(asked, 1, 4, shape=shape) - FIXED_BYTES == pytest.approx(4e8 * 16 / 8 + 1e8 * 3 * 2)


def test_an_interleaved_stage_of_a_mixed_model_holds_the_layers_of_its_chunks():
    """DeepSeek-V3's three dense layers lie in first chunks; the mixtures beside them are of other chunks."""
    spec = model("deepseek-v3")
    asked = job(layer_table(spec, 512))
    cuts = [17, 15, 15, 16]
    stages = tuple(Stage("a", sum(cuts[:i]), n, 8) for i, n in enumerate(cuts))
    one = TrainingPlan((Pipeline(stages, 1, 8),), 1, schedule=Schedule.INTERLEAVED, virtual_stages=5)
    step = StepModel(fleet(domain("a", 32)), asked)
    for position, chunks in enumerate(one.held_layers(one.pipelines[0])):
        held = [layer for chunk in chunks for layer in chunk]
        shape = StageShape.of(one, one.pipelines[0], position)
        found = step.stage_memory_bytes(one, one.pipelines[0], stages[position]) - FIXED_BYTES
        kept = asked.layers.activation_bytes[held].sum() * shape.in_flight / 8
        logits = 2 * 4 * 512 * spec.vocab_size / 8 if position == 3 else 0.0
        whole = 4 * 7 / 8 * asked.layers.boundary_bytes[1]
        assert found == pytest.approx(2 * asked.layers.params[held].sum() + kept + logits + whole)


def test_a_folded_stage_holds_one_copy_of_its_two_chunks_the_first_one_embedding_and_head():
    table = layer_table(model("llama-3.1-8b"), 512)
    step = StepModel(fleet(domain("a", 4)), job(table, batch=8))
    stages = tuple(Stage("a", 9 * s - (s > 2), 9 - (s > 1), 1, 3 - s) for s in range(4))
    folded = TrainingPlan((Pipeline(stages, 1, 8),), 1, Schedule.DUAL_PIPE_V, virtual_stages=2)
    held = [[*first, *later] for first, later in folded.held_layers(folded.pipelines[0])]
    assert sorted(layer for layers in held for layer in layers) == list(range(34))
    assert {0, 33} < set(held[0])
    for stage, own in zip(stages, held, strict=True):
        found = step.stage_memory_bytes(folded, folded.pipelines[0], stage) - FIXED_BYTES
        kept = table.activation_bytes[own].sum() * 4.5
        logits = 2 * 4 * 512 * 128256 if 33 in own else 0.0
        assert found == pytest.approx(16 * table.params[own].sum() + kept + logits)


def test_diloco_keeps_the_parameters_of_the_last_sum_and_an_outer_momentum():
    """arXiv 2311.08105, algorithm 1: both in fp32, sharded as the optimizer's state is."""
    assert state_bytes(job(), 1.0, shards=4, zero_stage=0, holds_outer=True) == 16 + 8
    assert state_bytes(job(), 1.0, shards=4, zero_stage=1, holds_outer=True) == 4 + (12 + 8) / 4


@given(st.sampled_from(Schedule), st.integers(1, 6), st.integers(1, 8), st.integers(1, 4), st.integers(0, 3))
def test_memory_counts_what_the_order_of_work_holds_at_its_peak(schedule, stages, groups, chunks, deeper):
    """An interleaved stage holds more than 1F1B's warm-up and one: the review's 405B held 47.5 for 32."""
    is_interleaved, is_folded = schedule is Schedule.INTERLEAVED, schedule is Schedule.DUAL_PIPE_V
    count = 2 * stages + groups if is_folded else stages * groups if is_interleaved else groups
    chunks = 2 if is_folded else chunks if is_interleaved else 1
    warmups = [count - 1 if schedule is Schedule.GPIPE else s + deeper for s in reversed(range(stages))]
    pipeline = Pipeline(tuple(Stage("a", s, 1, 1, warmups[s]) for s in range(stages)), 1, count)
    plan = TrainingPlan((pipeline,), 1, schedule, virtual_stages=chunks)
    # Weight gradients need the activations; where they are apart, a backward frees nothing.
    frees = SpanKind.WEIGHT if schedule is Schedule.ZERO_BUBBLE or is_folded else SpanKind.BACKWARD
    for s, order in enumerate(orders(plan, pipeline)):
        held, most = 0, 0
        for work in order:
            held += (work.kind is SpanKind.FORWARD) - (work.kind is frees or work.is_whole)
            most = max(most, held)
        assert most_in_flight(plan, pipeline, s) == most / plan.virtual_stages
