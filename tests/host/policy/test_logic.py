"""What conditions say about each other, held against the threads they take; which expressions Rust takes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strata.host.policy.lint.conditions import fault
from strata.host.policy.logic import HOLDS, contradiction, covers, holds, implies, is_always, leave_none
from strata.host.policy.policy import Match
from tests.host.builders import thread

WORDS = st.text("ab/", max_size=3)
NICES = st.integers(-22, 21)
IDS = st.integers(1, 3)
VALUES = {
    **{kind: WORDS for kind in HOLDS if kind.startswith(("Cgroup", "Comm", "Pcomm"))},
    "CmdJoin": st.text("ab", min_size=1, max_size=3),
    **{kind: NICES for kind in HOLDS if kind.startswith("Nice")},
    **{kind: IDS for kind in HOLDS if kind.endswith("IDEquals")},
    "IsGroupLeader": st.booleans(),
}
MATCHES = st.one_of(*(st.builds(Match, st.just(kind), values) for kind, values in sorted(VALUES.items())))
BLOCKS = st.lists(MATCHES, max_size=3)
THREADS = st.builds(
    lambda name, process, cgroup, nice, tid, pid, ppid: thread(
        tid, name, pid=pid, process=process, cgroup=cgroup, nice=nice, ppid=ppid
    ),
    WORDS | st.text("ab", min_size=1, max_size=3).map("st-".__add__),
    WORDS.filter(bool),
    st.lists(st.text("ab", min_size=1, max_size=2), max_size=3).map("/".join),
    st.integers(-20, 19),
    IDS,
    IDS,
    IDS,
)


def fits(block, one):
    return all(holds(match, one) for match in block)


def test_every_condition_that_proc_can_answer_is_tried():
    assert set(VALUES) == HOLDS.keys()


@given(MATCHES, MATCHES, THREADS)
def test_what_follows_from_a_condition_holds_where_it_does(a, b, one):
    assume(implies(a, b))
    assert not holds(a, one) or holds(b, one)


FAMILIES = (
    ("CommPrefix", "CommPrefixExclude"),
    ("PcommPrefixExclude", "PcommPrefix"),
    ("NiceAbove", "NiceBelow", "NiceEquals"),
    ("IsGroupLeader",),
)
LIKE = st.sampled_from(FAMILIES).flatmap(
    lambda kinds: st.lists(
        st.one_of(*(st.builds(Match, st.just(kind), VALUES[kind]) for kind in kinds)), min_size=2, max_size=4
    )
)


@given(LIKE, THREADS)
def test_conditions_that_leave_no_thread_out_take_every_one(some, one):
    assume(leave_none(some))
    assert any(holds(match, one) for match in some)


@given(MATCHES, THREADS)
def test_what_always_holds_holds_for_every_thread(match, one):
    assert not is_always(match) or holds(match, one)


@given(BLOCKS, THREADS)
def test_no_thread_fits_a_contradiction(block, one):
    assert not contradiction(block) or not fits(block, one)


@given(BLOCKS, BLOCKS, THREADS)
def test_who_fits_the_narrow_block_fits_the_wide_one_that_covers_it(wide, narrow, one):
    assert not covers(wide, narrow) or not fits(narrow, one) or fits(wide, one)


@given(BLOCKS)
def test_every_block_covers_itself_and_the_empty_one_covers_all(block):
    assert covers(block, block)
    assert covers([], block)


TAKEN = [
    "", "^$", r"job-\d+", r"\p{L}+", r"\pL", "(?<n>a)", "(?P<n>a)", "a*+", "a{2}+", "a{1,2}", "a{3,}",
    "[[:alpha:]]+", r"\z", r"\x{41}", "(?i)job", "(?i:job)", "(?-u)a", "a**", r"a\{b", "[{]", r"\d+\.scope/$",
    "^{2}", "kubepods.*/pod[0-9a-f-]{36}/", r"docker-[0-9a-f]{64}\.scope", "a|b", "}", "]",
]  # fmt: skip
REFUSED = [
    "job-[", "a(?=b)", "(?!x)", "(?<=a)b", r"(a)\1", "(?P<n>a)(?P=n)", "a{", "{", "a{1,", "a{,3}", "a{2,1}", "*a",
    "(a", "a)", r"\Z", r"\0", "(?>a)", "[z-a]", r"\N{DASH}", "(?#c)a", r"\q",
]  # fmt: skip


@pytest.mark.parametrize("text", TAKEN)
def test_what_rusts_library_takes_is_no_fault(text):
    assert fault(text) == ""


@pytest.mark.parametrize("text", REFUSED)
def test_what_rusts_library_refuses_is_told(text):
    assert fault(text)
