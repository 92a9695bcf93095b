from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.memory import FIXED_BYTES, StageRoom, StageShape, stage_bytes, state_bytes
from strata.simulate.order import most_in_flight, orders
from strata.simulate.timeline import SpanKind
from strata.workload.job import Recompute, Schedule
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import job, layers

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


@given(shapes, st.lists(st.integers(1, 9), min_size=3, max_size=9), st.integers(0, 8), st.floats(2e9, 60e9))
def test_a_stage_holds_exactly_the_most_layers_whose_bytes_fit(shape, scales, first, limit_bytes):
    import numpy as np

    asked = job(uneven(np.array(scales, dtype=float)))
    first = min(first, len(scales) - 1)
    fits = [
        count
        for count in range(1, len(scales) - first + 1)
        if stage_bytes(asked, first, count, shape=shape) <= limit_bytes
    ]
    room = StageRoom(asked, shape, limit_bytes=limit_bytes)
    assert room.layers(first) == max(fits, default=0)
    assert fits == list(range(1, room.layers(first) + 1))  # bytes grow with every layer


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


def test_sharded_weights_are_whole_for_the_layer_in_use_and_the_one_fetched_ahead():
    asked = job(layers(4, mparams=100.0, hidden_mib=0.0))
    shape = StageShape(1, 8, 1, Recompute.NONE, zero_stage=3, in_flight=1)
    assert stage_bytes(asked, 1, 4, shape=shape) - FIXED_BYTES == pytest.approx(4e8 * 16 / 8 + 1e8 * 3 * 2)


def test_diloco_keeps_the_parameters_of_the_last_sum_and_an_outer_momentum():
    """arXiv 2311.08105, algorithm 1: both in fp32, sharded as the optimizer's state is."""
    assert state_bytes(job(), 1.0, shards=4, zero_stage=0, holds_outer=True) == 16 + 8
    assert state_bytes(job(), 1.0, shards=4, zero_stage=1, holds_outer=True) == 4 + (12 + 8) / 4


@given(st.sampled_from(Schedule), st.integers(1, 6), st.integers(1, 8), st.integers(1, 4), st.integers(0, 3))
def test_memory_counts_what_the_order_of_work_holds_at_its_peak(schedule, stages, groups, chunks, deeper):
    """An interleaved stage holds more than 1F1B's warm-up and one: the review's 405B held 47.5 for 32."""
    is_interleaved = schedule is Schedule.INTERLEAVED
    count = stages * groups if is_interleaved else groups
    warmups = [count - 1 if schedule is Schedule.GPIPE else s + deeper for s in reversed(range(stages))]
    pipeline = Pipeline(tuple(Stage("a", s, 1, 1, warmups[s]) for s in range(stages)), 1, count)
    plan = TrainingPlan((pipeline,), 1, schedule, virtual_stages=chunks if is_interleaved else 1)
    # Weight gradients need the activations; where they are apart, a backward frees nothing.
    frees = SpanKind.WEIGHT if schedule is Schedule.ZERO_BUBBLE else SpanKind.BACKWARD
    for s, order in enumerate(orders(plan, pipeline)):
        held, most = 0, 0
        for work in order:
            held += (work.kind is SpanKind.FORWARD) - (work.kind is frees)
            most = max(most, held)
        assert most_in_flight(plan, pipeline, s) == most / plan.virtual_stages


def test_past_the_last_layer_a_stage_holds_nothing():
    shape = StageShape(1, 1, 1, Recompute.NONE, zero_stage=0, in_flight=1)
    assert StageRoom(job(layers(2)), shape, limit_bytes=80e9).layers(4) == 0
