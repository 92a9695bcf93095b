from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.memory import FIXED_BYTES, StageRoom, stage_bytes, state_bytes
from strata.workload.job import Recompute
from tests.support.builders import job, layers

shapes = st.fixed_dictionaries({
    "tensor_parallel": st.sampled_from([1, 2, 8]),
    "replicas": st.integers(1, 5),
    "microbatch_size": st.integers(1, 4),
    "recompute": st.sampled_from(Recompute),
    "zero_stage": st.integers(0, 3),
    "in_flight": st.integers(1, 9),
})  # fmt: skip


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
        if stage_bytes(asked, first, count, **shape) <= limit_bytes
    ]
    room = StageRoom(asked, limit_bytes=limit_bytes, **shape)
    assert room.layers(first) == max(fits, default=0)
    assert fits == list(range(1, room.layers(first) + 1))  # bytes grow with every layer


@given(shapes, st.integers(0, 9), st.integers(1, 5))
def test_fewer_copies_or_more_microbatches_in_flight_never_take_less(shape, first, count):
    asked, first = job(layers(12)), min(first, 8)
    here = stage_bytes(asked, first, count, **shape)
    assert stage_bytes(asked, first, count, **(shape | {"in_flight": shape["in_flight"] + 1})) >= here
    assert stage_bytes(asked, first, count, **(shape | {"replicas": 1})) >= here
    assert stage_bytes(asked, first, count + 1, **shape) >= here >= FIXED_BYTES


@pytest.mark.parametrize(
    ("zero_stage", "bytes_per_param"),
    [(0, 16.0), (1, 4 + 12 / 4), (2, 2 + 2 / 4 + 12 / 4), (3, 16 / 4)],
)
def test_zero_stages_shard_what_the_paper_says(zero_stage, bytes_per_param):
    """arXiv 1910.02054, figure 1: 16 bytes a parameter of mixed-precision Adam, by 4 copies."""
    assert state_bytes(job(), 1.0, replicas=4, zero_stage=zero_stage) == bytes_per_param


def test_recomputation_keeps_inputs_and_one_layer_in_full():
    asked = job(layers(4, mparams=0.0, hidden_mib=1.0))
    shape = {"tensor_parallel": 1, "replicas": 1, "microbatch_size": 1, "zero_stage": 0, "in_flight": 3}
    mib = 2**20
    plain = stage_bytes(asked, 1, 4, recompute=Recompute.NONE, **shape)
    again = stage_bytes(asked, 1, 4, recompute=Recompute.FULL, **shape)
    assert plain - FIXED_BYTES == 3 * 4 * 17 * mib
    assert again - FIXED_BYTES == (3 * 4 + 17) * mib


def test_past_the_last_layer_a_stage_holds_nothing():
    shape = {"tensor_parallel": 1, "replicas": 1, "microbatch_size": 1, "zero_stage": 0, "in_flight": 1}
    room = StageRoom(job(layers(2)), limit_bytes=80e9, recompute=Recompute.NONE, **shape)
    assert room.layers(4) == 0
