"""Slots and KV tokens of nodes: what is booked is what is held, to the last token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.routing.reservations import Book
from tests.serving.routing.layouts import server


@pytest.fixture
def book() -> Book:
    book = Book()
    book.arrange([server("a", slots=2, kv_tokens=100), server("b", slots=2, kv_tokens=60)])
    return book


def test_a_request_may_take_all_that_is_left_and_no_more(book):
    book.reserve("r", ("a",), (0,), 40, 0.0)
    assert book.has_room(0, 60)
    assert not book.has_room(0, 61)
    book.reserve("s", ("a",), (0,), 60, 0.0)
    assert book.load("a") == (2, 100)
    assert not book.has_room(0, 0)


def test_only_what_was_booked_before_the_beat_before_is_missed(book):
    book.reserve("old", ("a",), (0,), 1, 1.0)
    assert book.reconcile("a", frozenset(), 2.0) == ()  # the first beat accuses nobody
    book.reserve("as-it-beat", ("a",), (0,), 1, 2.0)
    assert book.reconcile("a", frozenset(), 3.0) == ("old",)
    assert book.reconcile("a", frozenset({"old"}), 4.0) == ("as-it-beat",)


@given(st.lists(st.tuples(st.sampled_from(["keep", "release", "arrange"]), st.integers(0, 9)), max_size=30))
def test_counts_are_those_of_what_is_held(changes):
    book, held = Book(), dict[str, tuple[tuple[str, ...], int]]()
    names = ["a", "b", "c"]
    book.arrange([server(name) for name in names])
    for number, (what, at) in enumerate(changes):
        if what == "keep":
            on = tuple(name for i, name in enumerate(names) if at >> i & 1)
            book.reserve(f"r{number}", on, tuple(book.index[name] for name in on), at, 0.0)
            held[f"r{number}"] = on, at
        elif what == "release":
            book.release(f"r{at}")
            held.pop(f"r{at}", None)
        else:
            names = names[1:] + names[:1]
            book.arrange([server(name) for name in names])
        for name in names:
            mine = [tokens for on, tokens in held.values() if name in on]
            assert book.load(name) == (len(mine), sum(mine))
