from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.allocation_heads.split import split
from strata.simulate.layer_shares import least_shares, most_shares
from tests.support.laws import examples

layer_s = st.integers(0, 9).map(float)


@st.composite
def stage_prefixes(draw, like: bool):
    """Prefix sums per stage; unlike stages differ by another factor on every layer."""
    layers, stages = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    rows = [draw(st.lists(layer_s, min_size=layers, max_size=layers)) for _ in range(1 if like else stages)]
    prefixes = [np.concatenate([[0.0], np.cumsum(row)]) for row in rows]
    return prefixes * stages if like else prefixes


def brute_force(prefixes, room=None) -> float | None:
    """The slowest stage of the best contiguous split, None where none fits."""
    layers, found = len(prefixes[0]) - 1, []
    for cuts in combinations(range(1, layers), len(prefixes) - 1):
        ends = list(pairwise((0, *cuts, layers)))
        if room is None or all(z - a <= room(stage, a) for stage, (a, z) in enumerate(ends)):
            found.append(max(p[z] - p[a] for p, (a, z) in zip(prefixes, ends, strict=True)))
    return min(found, default=None)


def slowest(prefixes, counts) -> float:
    ends = np.concatenate([[0], np.cumsum(counts)])
    return max(p[z] - p[a] for p, (a, z) in zip(prefixes, pairwise(ends), strict=True))


@examples(200)
@given(st.booleans().flatmap(stage_prefixes))
def test_no_contiguous_split_has_a_faster_slowest_stage(prefixes):
    counts, best = split(prefixes), brute_force(prefixes)
    assert (counts is None) == (best is None)
    if counts is not None:
        assert sum(counts) == len(prefixes[0]) - 1
        assert min(counts) >= 1
        assert np.isclose(slowest(prefixes, counts), best, rtol=1e-8)


@examples(200)
@given(st.booleans().flatmap(stage_prefixes), st.data())
def test_the_best_split_within_memory_is_found_where_there_is_one(prefixes, data):
    layers = len(prefixes[0]) - 1
    weights = np.array(data.draw(st.lists(st.integers(1, 5), min_size=layers, max_size=layers)))
    limits = data.draw(st.lists(st.integers(0, 12), min_size=len(prefixes), max_size=len(prefixes)))

    def room(stage: int, first: int) -> int:
        return int((np.cumsum(weights[first:]) <= limits[stage]).sum())

    counts, best = split(prefixes, room), brute_force(prefixes, room)
    assert (counts is None) == (best is None)
    if counts is not None:
        assert all(
            n <= room(i, first) for i, (n, first) in enumerate(zip(counts, np.cumsum([0, *counts]), strict=False))
        )
        assert np.isclose(slowest(prefixes, counts), best, rtol=1e-8)


def test_a_weak_stage_gets_a_layer_it_can_hold_by_leaving_the_heavy_one_to_the_next():
    like = np.arange(5.0)
    heavy = {2}  # the second stage cannot hold layer 2

    def room(stage: int, first: int) -> int:
        reach = range(first, 4)
        return next((k for k, layer in enumerate(reach) if stage == 1 and layer in heavy), len(reach))

    assert split([like] * 3, room) in [(1, 1, 2)]


def test_more_stages_than_layers_have_no_split():
    assert split([np.arange(3.0)] * 3) is None


@given(st.lists(st.lists(st.integers(1, 9).map(float), min_size=4, max_size=4), min_size=1, max_size=3), st.data())
def test_however_layers_are_handed_out_their_shares_add_up_to_one(rows, data):
    work = np.array(rows)
    owner = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=4, max_size=4)))
    spent = np.array([work[i, owner == i].sum() for i in range(len(rows))])
    assert (spent / least_shares(work)).sum() >= 1 - 1e-9
    assert (spent / most_shares(work)).sum() <= 1 + 1e-9
