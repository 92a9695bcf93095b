"""Blocks of linear attention: what they cost and keep, at any length."""

from dataclasses import replace

import numpy as np
import pytest

from strata.workload.huggingface import model
from strata.workload.inference import ModelInfo
from strata.workload.layer_table import layer_table

HYBRID = model("qwen3-next-80b-a3b")
LINEAR = np.array([kind == "linear-moe" for kind in HYBRID.kinds])


def test_three_of_four_blocks_are_linear():
    assert HYBRID.kinds[1:9] == ("linear-moe", "linear-moe", "linear-moe", "moe") * 2
    assert LINEAR.sum() == 36


def test_work_and_what_is_kept_for_the_backward_grow_with_the_sequence_alone():
    short, long = layer_table(HYBRID, 8192), layer_table(HYBRID, 16384)
    assert long.forward_flops[LINEAR] == pytest.approx(2 * short.forward_flops[LINEAR])
    assert long.activation_bytes[LINEAR] == pytest.approx(2 * short.activation_bytes[LINEAR])
    attending = ~LINEAR & (np.array(HYBRID.kinds) == "moe")
    assert (long.forward_flops[attending] > 2.3 * short.forward_flops[attending]).all()


def test_a_sequence_caches_a_state_and_the_keys_and_values_of_blocks_that_attend():
    info = ModelInfo.of(HYBRID)
    cached = info.kv_bytes(100_000).sum()
    assert cached == pytest.approx(100_000 * HYBRID.kv_bytes_per_token() + HYBRID.state_bytes())
    assert HYBRID.state_bytes() == 36 * 2 * (32 * 128 * 128 + 3 * 8192)
    step = info.kv_bytes(100_001) - info.kv_bytes(100_000)
    assert step[LINEAR[1:-1]] == pytest.approx(0, abs=1e-6)


def test_what_a_token_passes_on_between_parts_of_a_sequence_is_the_state():
    exchanged = layer_table(HYBRID, 65536).exchanges
    assert exchanged.kv_bytes[LINEAR] == pytest.approx(HYBRID.state_bytes() / 36)


def test_a_wider_state_costs_more():
    wide = replace(HYBRID.linear, value_head_dim=256)
    assert wide.window * wide.pair_flops > HYBRID.linear.window * HYBRID.linear.pair_flops
    assert wide.state_elements > HYBRID.linear.state_elements
