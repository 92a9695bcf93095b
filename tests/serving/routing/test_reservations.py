"""Slots and KV tokens of nodes: what is booked is what is held, to the last token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.routing.reservations import Reservations
from tests.serving.routing.layouts import server


@pytest.fixture
def reservations() -> Reservations:
    reservations = Reservations()
    reservations.arrange([server("a", slots=2, kv_tokens=100), server("b", slots=2, kv_tokens=60)])
    return reservations


def test_what_is_held_on_a_node_adds_up(reservations):
    reservations.reserve("r", ("a",), (0,), 40, 0.0)
    reservations.reserve("s", ("a",), (0,), 60, 0.0)
    assert reservations.load("a") == (2, 100)


def test_only_what_was_booked_before_the_beat_before_is_missed(reservations):
    reservations.reserve("old", ("a",), (0,), 1, 1.0)
    assert reservations.reconcile("a", frozenset(), 2.0) == ()  # the first beat accuses nobody
    reservations.reserve("as-it-beat", ("a",), (0,), 1, 2.0)
    assert reservations.reconcile("a", frozenset(), 3.0) == ("old",)
    assert reservations.reconcile("a", frozenset({"old"}), 4.0) == ("as-it-beat",)


@given(st.lists(st.tuples(st.sampled_from(["keep", "release", "arrange"]), st.integers(0, 9)), max_size=30))
def test_counts_are_those_of_what_is_held(changes):
    reservations, held = Reservations(), dict[str, tuple[tuple[str, ...], int]]()
    names = ["a", "b", "c"]
    reservations.arrange([server(name) for name in names])
    for number, (what, at) in enumerate(changes):
        if what == "keep":
            on = tuple(name for i, name in enumerate(names) if at >> i & 1)
            reservations.reserve(f"r{number}", on, tuple(reservations.index[name] for name in on), at, 0.0)
            held[f"r{number}"] = on, at
        elif what == "release":
            reservations.release(f"r{at}")
            held.pop(f"r{at}", None)
        else:
            names = names[1:] + names[:1]
            reservations.arrange([server(name) for name in names])
        for name in names:
            mine = [tokens for on, tokens in held.values() if name in on]
            assert reservations.load(name) == (len(mine), sum(mine))
