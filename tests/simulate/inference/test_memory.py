from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.inference.memory import UNBOUNDED_TOKENS, kv_tokens, room
from strata.workload.inference import ModelInfo
from tests.support.inference_models import models, served, small


def test_an_80_gb_card_with_llama_caches_what_is_left_of_it() -> None:
    left = 80e9 * 0.92 - 16.06e9

    assert kv_tokens(served("llama-3.1-8b"), 0.92 * 80e9, 0, 32, request_tokens=1024) == pytest.approx(
        left / 131_072, rel=1e-3
    )


def test_nothing_is_cached_where_the_weights_do_not_fit() -> None:
    assert kv_tokens(served("llama-3.1-70b"), 80e9, 0, 80, request_tokens=1024) == 0


def test_fewer_layers_leave_room_for_more_tokens() -> None:
    info = served("llama-3.1-70b")

    assert (
        kv_tokens(info, 80e9, 30, 40, request_tokens=1024)
        > 2 * kv_tokens(info, 80e9, 30, 50, request_tokens=1024)
        > 0
    )


def test_a_stage_that_caches_nothing_is_never_the_tightest() -> None:
    """Of Nemotron-H a stage may be an MLP alone."""
    info = small(4)
    info = replace(info, kv_bytes_per_token=info.kv_bytes_per_token * np.array([1, 0, 0, 1]))
    assert kv_tokens(info, 1e12, 1, 3, request_tokens=100) == UNBOUNDED_TOKENS
    assert kv_tokens(info, 1e3, 1, 3, request_tokens=100) == 0
    assert 0 < kv_tokens(info, 1e9, 2, 4, request_tokens=100) < UNBOUNDED_TOKENS


def test_a_node_alone_keeps_embedding_and_head() -> None:
    info = small(10)
    layer, head = info.weight_bytes[0], info.head_bytes

    found = room(info, np.array([10 * layer + info.embedding_bytes]), batch=1, tokens=0)

    assert (found.first[0], found.middle[0]) == (10, 10)
    assert found.only[0] == 10 - np.ceil(head / layer)


@given(models(), st.floats(0, 3e9), st.integers(1, 32), st.integers(0, 6_000))
def test_room_is_the_most_that_fits_beside_the_kv_memory(
    info: ModelInfo, memory: float, batch: int, tokens: int
) -> None:
    found, L = room(info, np.array([memory]), batch=batch, tokens=tokens), info.num_layers

    def fits(first: int, end: int, ends_bytes: float) -> bool:
        cached = np.minimum(tokens, info.windows) * info.kv_bytes_per_token
        need = info.weight_bytes[first:end].sum() + batch * cached[first:end].sum() + ends_bytes
        return bool(need <= memory * (1 + 1e-9))

    def most(fitting: list[bool]) -> int:
        return fitting.index(False) if False in fitting else L

    counts = range(1, L + 1)
    assert found.first[0] == most([fits(0, k, info.embedding_bytes) for k in counts])
    assert found.last[0] == most([fits(L - k, L, info.head_bytes) for k in counts])
    assert found.middle[0] == most([all(fits(i, i + k, 0.0) for i in range(L - k + 1)) for k in counts])
    assert found.only[0] == most([fits(0, k, info.ends_bytes(0, L)) for k in counts])


@given(models(), st.floats(1e8, 1e10), st.integers(1, 32), st.integers(1, 6_000))
def test_what_room_allows_leaves_the_tokens_it_was_asked_for(
    info: ModelInfo, memory: float, batch: int, tokens: int
) -> None:
    layers = int(room(info, np.array([memory]), batch=batch, tokens=tokens).first[0])

    def left(end: int) -> int:
        return kv_tokens(info, memory, 0, end, request_tokens=tokens)

    if 0 < layers < info.num_layers:
        assert left(layers) >= batch * tokens
        if layers + 1 < info.num_layers:
            assert left(layers + 1) < batch * tokens + 1


def test_a_window_leaves_room_for_more_long_requests() -> None:
    every, sliding = small(8), small(8, windows=(0, 512) * 4)

    def requests(info: ModelInfo, tokens: int) -> float:
        return kv_tokens(info, 8e9, 0, 8, request_tokens=tokens) / tokens

    assert requests(sliding, 512) == requests(every, 512)
    assert requests(sliding, 5120) == pytest.approx(requests(every, 5120) * 10 / 5.5, rel=1e-3)


@given(models(), st.integers(1, 6_000), st.integers(1, 6_000))
def test_slots_of_the_expected_requests_hold_any_that_are_no_longer(
    info: ModelInfo, planned: int, came: int
) -> None:
    """As many sequences as slots, booked with no more tokens than there are, never need more than the memory."""
    memory, L = 4e9, info.num_layers
    tokens = kv_tokens(info, memory, 0, L, request_tokens=planned)
    sequences = min(tokens // planned, tokens // came)
    free = memory - info.weight_bytes.sum() - info.ends_bytes(0, L)

    assert sequences * info.kv_bytes(came).sum() <= max(0.0, free) * (1 + 1e-9)


def test_no_memory_holds_nothing() -> None:
    found = room(small(4), np.array([0.0]), batch=1, tokens=1)

    assert [int(most[0]) for most in found] == [0, 0, 0, 0]
