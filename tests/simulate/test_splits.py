from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import OutOfTime
from strata.simulate.order import zero_bubble
from strata.simulate.ordered import Wires, ordered_s
from strata.simulate.pipeline import StageTimes, recurrence_s
from strata.simulate.split_search import SplitsWithin
from strata.simulate.splits import Splits
from tests.support.laws import examples


def all_splits(layers: int, stages: int) -> list[tuple[int, ...]]:
    return [
        tuple(b - a for a, b in pairwise((0, *cuts, layers)))
        for cuts in combinations(range(1, layers), stages - 1)
    ]


def case(seed: int):
    """Stages whose layers differ, some with little memory, links of any speed, and strictly falling warm-ups."""
    rng = np.random.default_rng(seed)
    layers, stages, count = int(rng.integers(1, 8)), int(rng.integers(1, 5)), int(rng.integers(1, 12))
    stages = min(stages, layers)
    work = rng.uniform(0.1, 3, (stages, layers)) if rng.random() < 0.5 else np.ones((stages, layers))
    if rng.random() < 0.5:
        work[:] = work[0]
    prefix = np.concatenate([np.zeros((stages, 1)), np.cumsum(work, axis=1)], axis=1)
    at = np.arange(layers + 1)
    times = []
    for row in prefix:
        most = int(rng.integers(1, layers + 1))
        fits = (at[None, :] > at[:, None]) & (at[None, :] <= at[:, None] + most)
        times.append(np.where(fits, row[None, :] - row[:, None], np.inf))
    serial, latency = rng.choice([0.0, 0.1, 2.0], (2, 2, max(0, stages - 1)))
    warmup = np.minimum(np.cumsum(rng.integers(1, rng.choice([2, 4]), stages))[::-1] - 1, count - 1)
    hops_s = (serial + latency).sum(axis=0).tolist()
    splits = Splits(times, hops_s, warmup.tolist(), float(serial.max(initial=0.0)), count)
    if rng.random() < 0.7:  # known beside the warm-ups, or alone
        alone = replace(splits, warmup=()) if rng.random() < 0.3 else splits
        least = np.cumsum(np.insert(work.min(axis=0), 0, 0.0))
        splits = replace(alone, in_flight=int(warmup[0]) + 1, depths=warmup.tolist(), work=least)

    def exact_s(counts: tuple[int, ...]) -> float:
        ends = np.cumsum([0, *counts])
        each = np.array([[times[k][a, b] for k, (a, b) in enumerate(pairwise(ends))]])
        row = StageTimes(each / 3, each * 2 / 3, serial[:1], latency[:1], serial[1:], latency[1:])
        return float(recurrence_s(row, count, warmup)[0])

    fitting = [
        counts
        for counts in all_splits(layers, stages)
        if all(np.isfinite(times[k][a, b]) for k, (a, b) in enumerate(pairwise(np.cumsum([0, *counts]))))
    ]
    return splits, fitting, exact_s


@examples(150)
@given(st.integers(0, 10**6))
def test_no_split_that_fits_is_faster_than_the_bound_or_left_out_below_a_limit(seed):
    splits, fitting, exact_s = case(seed)
    times = {counts: exact_s(counts) for counts in fitting}
    assert np.isfinite(splits.bound_s) == bool(fitting)
    assert set(SplitsWithin(splits, np.inf)) == set(fitting)
    assert (splits.best is None) == (not fitting)
    for limit_s in times.values():
        assert splits.bound_s <= limit_s * (1 + 1e-9)
        found = set(SplitsWithin(splits, limit_s * (1 + 1e-9)))
        assert {counts for counts, time_s in times.items() if time_s <= limit_s} <= found


def with_ends(splits: Splits, seed: int) -> Splits:
    """Stages that exchange afterwards, mostly the longer the more layers they have."""
    rng, shape = np.random.default_rng(seed + 1), splits.times[0].shape
    at = np.arange(shape[0])
    longer = np.maximum(0, at[None, :] - at[:, None]) * rng.choice([1e-5, 0.3, 5.0])
    ends = [longer + rng.choice([0.0, 1.0]) * rng.random(shape) for _ in splits.times]
    return replace(splits, ends=ends, end_s=float(rng.choice([0.0, 1.0])))


@examples(150)
@given(st.integers(0, 10**6))
def test_no_step_that_ends_when_its_last_stage_does_beats_the_bound_or_is_left_out_below_a_limit(seed):
    """What follows the pipeline is that of the stage which takes longest: often that of many layers."""
    splits, fitting, exact_s = case(seed)
    splits = with_ends(splits, seed)
    ends, steps = splits.ends, {}
    for counts in fitting:
        runs = list(pairwise(np.cumsum([0, *counts]).tolist()))
        after_s = max(splits.end_s, *(float(ends[stage][run]) for stage, run in enumerate(runs)))
        assert splits.ends_s(np.array([counts]))[0] == after_s
        steps[counts] = exact_s(counts) + after_s
    assert np.isfinite(splits.step_s) == bool(fitting)
    assert set(SplitsWithin(splits, np.inf)) == set(fitting)
    for limit_s in steps.values():
        assert splits.paced_ending_s <= splits.ending_s <= splits.step_s <= limit_s * (1 + 1e-9)
        found = set(SplitsWithin(splits, limit_s * (1 + 1e-9)))
        assert {counts for counts, step_s in steps.items() if step_s <= limit_s} <= found


@examples(150)
@given(st.integers(0, 10**6))
def test_no_zero_bubble_split_over_slow_links_beats_the_bound_or_is_left_out_below_a_limit(seed):
    plain, fitting, _ = case(seed)
    rng, stages, count = np.random.default_rng(seed + 2), len(plain.times), plain.microbatches * 3
    share = float(rng.uniform(0, 0.4))
    own, forward = (rng.uniform(0, each, stages) for each in (share, 1 - share))
    serial, latency = rng.choice([0.0, 0.1, 2.0], (2, 1, 2 * stages))
    cuts = [(2 * at, 2 * at + 3) for at in range(stages - 1)]
    splits = Splits(
        plain.times,
        [float((serial + latency)[0, list(cut)].sum()) for cut in cuts],
        [],
        max((float(serial[0, list(cut)].max()) for cut in cuts), default=0.0),
        count,
        1 - share,
        1 - share,
        [count - share * (min(at + 1, count) if at else 0) for at in range(stages)],
        [max(0, count - (stages - at)) // 2 for at in range(1, stages)],
        in_flight=stages if seed % 2 else 0,
    )
    orders = tuple(tuple(zero_bubble(at, stages, count)) for at in range(stages))

    def exact_s(counts: tuple[int, ...]) -> float:
        runs = pairwise(np.cumsum([0, *counts]).tolist())
        work = np.array([plain.times[at][run] for at, run in enumerate(runs)])
        busy = np.stack([work * forward, work * (1 - forward - own), work * own])[None]
        return float(ordered_s(busy, Wires(serial, latency), orders)[0])

    steps, ending = {counts: exact_s(counts) for counts in fitting}, with_ends(splits, seed)
    for counts, limit_s in steps.items():
        assert ending.ending_s <= (limit_s + ending.ends_s(np.array([counts]))[0]) * (1 + 1e-9)
    for limit_s in steps.values():
        assert splits.bound_s <= limit_s * (1 + 1e-9)
        within = set(SplitsWithin(splits, limit_s * (1 + 1e-9)))
        assert {counts for counts, step_s in steps.items() if step_s <= limit_s} <= within


@examples(150)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40))
def test_fewer_microbatches_take_their_share_of_the_bound_by_as_many_as_are_in_flight(seed, count, fewer):
    """What is known of so many bounds fewer (`exact.candidates`)."""
    plain, fitting, _ = case(seed)
    if not fitting:
        return
    depths = plain.depths if count > 1 + max(plain.depths, default=0) else ()
    splits = replace(plain, warmup=(), microbatches=count + fewer, depths=depths)
    less = replace(splits, microbatches=count)
    assert less.paced_s >= splits.paced_s * count / (count + fewer) * (1 - 1e-9)
    whole, part = with_ends(splits, seed), with_ends(less, seed)
    assert part.paced_ending_s >= whole.paced_ending_s * count / (count + fewer) * (1 - 1e-9)
    if splits.in_flight and fewer % splits.in_flight == 0:
        assert less.bound_s >= splits.bound_s * count / (count + fewer) * (1 - 1e-9)
        assert part.ending_s >= whole.ending_s * count / (count + fewer) * (1 - 1e-9)


def test_the_stage_that_works_longest_has_the_longest_end():
    """Eight layers on two stages: one has four, which it exchanges for 20 s after 40 s of work behind 4 s."""
    layers = np.triu(np.arange(9) - np.arange(9)[:, None], 1).astype(float)
    splits = Splits([np.where(layers > 0, layers, np.inf)] * 2, [0.0], [], 0.0, 10, ends=[5 * layers] * 2)
    assert splits.ending_s == 64
    assert splits.bound_s + splits.least_end_s == 49


def test_all_that_is_in_flight_makes_its_round_trip_before_more_is():
    """Four microbatches in flight over links that take 10 s there and back: forty make ten trips."""
    work = np.triu(np.arange(9) - np.arange(9)[:, None], 1).astype(float)
    times = [np.where(work > 0, work, np.inf)] * 4
    splits = Splits(times, [10.0] * 3, [3, 2, 1, 0], 0.0, 40, in_flight=4)
    assert splits.bound_s >= 10 * (8 + 30)
    assert replace(splits, in_flight=0).bound_s < 300
    assert list(SplitsWithin(splits, 379.0)) == []


def test_a_stage_takes_turns_between_its_first_backward_and_its_last_forward_alone():
    """Nine layers of 1 s on four stages: 48 s at the pace of three of them, but that stage begins its turns when
    the first microbatch is through the other six, and when they end the last one still has to."""
    work = np.triu(np.arange(10) - np.arange(10)[:, None], 1).astype(float)
    times, depths = [np.where(work > 0, work, np.inf)] * 4, [3, 2, 1, 0]
    splits = Splits(times, [0.0] * 3, depths, 0.0, 16, depths=depths)
    each, none = np.array([[3.0, 2.0, 2.0, 2.0]]), np.zeros((1, 3))
    row = StageTimes(each / 3, each * 2 / 3, none, none, none, none)
    assert splits.best == (3, 2, 2, 2)
    assert splits.bound_s == recurrence_s(row, 16, np.array(depths))[0] == 51
    assert replace(splits, depths=()).bound_s == 48


def test_two_stages_in_a_row_pass_two_microbatches_in_a_round_trip():
    """Eight layers of 1 s on two stages that are 2 s apart, there and back: four microbatches come through in 20 s
    and not in 18."""
    work = np.arange(9.0)
    times = [np.where(work > work[:, None], work - work[:, None], np.inf)] * 2
    splits = Splits(times, [2.0], [], 0.0, 16, depths=[1, 0], work=work)
    each, link = np.array([[4.0, 4.0]]), np.ones((1, 1))
    row = StageTimes(each / 3, each * 2 / 3, 0 * link, link, 0 * link, link)
    assert splits.bound_s == recurrence_s(row, 16, np.array([1, 0]))[0]
    assert replace(splits, work=None).bound_s < 0.9 * splits.bound_s


def test_zero_bubble_stages_wait_for_a_slow_link_once_for_two_microbatches():
    """By the bound a step over 10 s of link took 512 times the work of its slowest stage."""
    work = np.triu(np.arange(4) - np.arange(4)[:, None], 1).astype(float)
    times = [np.where(work > 0, work, np.inf)] * 2
    splits = Splits(times, [10.0], [], 0.0, 512, 0.7, 0.7, [512, 512 - 0.6], [255])
    assert splits.bound_s >= 255 * (10 + 0.7 * 2)
    assert list(SplitsWithin(splits, 3000.0)) == []


@examples(60)
@given(st.integers(0, 10**6))
def test_of_stages_alone_the_best_split_reaches_the_bound(seed):
    splits, fitting, _ = case(seed)
    free = Splits(splits.times, [0.0] * len(splits.hops_s), [], 0.0, splits.microbatches)
    if fitting:
        assert splits.best in fitting
        assert np.isclose(free.bound_s, min(bound_s(free, counts) for counts in fitting))
        assert np.isclose(bound_s(free, free.best), free.bound_s)


def bound_s(splits: Splits, counts: tuple[int, ...]) -> float:
    """The slowest stage's work, and what is upstream of it."""
    upstream, slowest = 0.0, 0.0
    for stage, (first, last) in enumerate(pairwise(np.cumsum([0, *counts]).tolist())):
        time_s = float(splits.times[stage][first, last])
        slowest = max(slowest, upstream + splits.microbatches * time_s)
        upstream += time_s
    return slowest


def test_ties_of_the_slowest_stage_go_to_the_split_that_fills_the_pipeline_sooner():
    """80 layers on 6 stages: two stages of 14 come first, not five of them and one of 10."""
    at = np.arange(81.0)
    times = np.where(at[None, :] > at[:, None], at[None, :] - at[:, None], np.inf)
    splits = Splits([times] * 6, [0.0] * 5, [], 0.0, 64)
    assert splits.bound_s == 14 + 64 * 14
    counts = splits.best
    assert counts is not None
    assert max(counts[1:]) <= 14
    assert bound_s(splits, counts) == 14 + 64 * 14


def test_looking_for_splits_ends_when_time_is_out():
    """Sixteen stages may have none within a limit for minutes."""

    def out_of_time() -> None:
        raise OutOfTime("the search")

    splits, _, _ = case(1)
    with pytest.raises(OutOfTime):
        list(SplitsWithin(splits, np.inf, check=out_of_time))


@examples(60)
@given(st.integers(0, 10**6))
def test_below_what_others_take_at_least_there_are_no_others(seed):
    splits = with_ends(case(seed)[0], seed)
    limit_s = splits.step_s if np.isfinite(splits.step_s) else 1.0
    for _ in range(4):
        narrow = SplitsWithin(splits, limit_s)
        found = list(narrow)
        assert narrow.beyond_s > limit_s
        if narrow.beyond_s == np.inf:
            assert set(found) == set(SplitsWithin(splits, np.inf))
            break
        assert list(SplitsWithin(splits, float(np.nextafter(narrow.beyond_s, 0.0)))) == found
        limit_s = narrow.beyond_s
