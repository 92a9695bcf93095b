"""What is remembered of an isolation, as text on the node."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.controller.isolation_state import (
    STANDING,
    UNHEALTHY,
    IsolationState,
    decode,
    encode,
    states_of,
)
from strata.fleet.isolation import FORGIVEN_S, MemberState
from tests.cluster.controller.healed_cluster import OTHER, T0, World


@given(
    is_isolated=st.booleans(),
    ago_s=st.floats(0, 2 * FORGIVEN_S),
    well_ago_s=st.none() | st.floats(0, 1e6),
    times=st.integers(1, 1000),
    causes=st.dictionaries(st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60), max_size=8),
)
def test_a_standing_survives_as_text(
    is_isolated: bool, ago_s: float, well_ago_s: float | None, times: int, causes: dict[str, str]
) -> None:
    well_s = None if well_ago_s is None or not is_isolated else T0 - well_ago_s
    standing = MemberState(is_isolated, T0 - ago_s, well_s, times)
    state = IsolationState(standing, causes if is_isolated else {})
    text = encode(state, T0)
    if text:
        assert decode(text, T0) == state
    else:
        assert not is_isolated
        assert ago_s >= FORGIVEN_S * 0.999


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"v":2}',
        '{"v":1,"out":1,"since":0,"times":1}',
        '{"v":1,"out":true,"since":NaN,"times":1}',
        '{"v":1,"out":true,"since":"0","times":1}',
        '{"v":1,"out":true,"since":1e999,"times":1}',
        '{"v":1,"out":true,"since":0,"times":true}',
        '{"v":1,"out":true,"since":0,"times":1e9}',
        '{"v":1,"out":true,"since":0,"times":100000}',
        '{"v":1,"out":true,"since":0,"times":1,"causes":["a"]}',
        '{"v":1,"out":true,"since":0,"times":1,"causes":{"a":3}}',
        '{"v":1,"out":true,"since":0,"times":1,"causes":{"a":"' + "x" * 999 + '"}}',
        "[" * 100_000,
        "1" * 10_000,
    ],
)
def test_garbage_is_told_and_the_taint_alone_counts(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(text, T0)
    world = World(2)
    for name in world.nodes:
        world.nodes[name]["metadata"]["annotations"] = {STANDING: text}
    hard = {"key": UNHEALTHY, "value": "hot", "effect": "NoSchedule"}
    world.nodes["n1"]["spec"]["taints"] = [OTHER, hard]
    states, said = states_of(world.nodes, T0)
    assert states == {"n1": IsolationState(MemberState(is_isolated=True, since_s=T0, times=1))}
    assert [event.reason for event in said] == ["StandingUnreadable", "StandingUnreadable"]


@given(st.text(max_size=200) | st.binary(max_size=50).map(repr))
def test_any_text_is_a_mark_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert decode(text, T0).standing.times >= 1


def test_times_ahead_of_the_readers_clock_count_as_now() -> None:
    ahead = IsolationState(MemberState(is_isolated=True, since_s=T0 + 1e6, well_since_s=T0 + 1e6, times=1))
    read = decode(encode(ahead, T0), T0).standing
    assert (read.since_s, read.well_since_s) == (T0, T0)
