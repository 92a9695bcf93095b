"""The recurrence against a scalar event simulation, and the laws of pipelines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.simulate import pipeline
from strata.simulate.pipeline import StageTimes, classic_warmup, latency_aware_warmup, recurrence_s
from tests.support.laws import examples

SEEDS = st.integers(0, 2**32 - 1)


def random_times(seed, *, plans=4, stages=None):
    rng = np.random.default_rng(seed)
    stages = stages or int(rng.integers(1, 6))
    compute = (rng.uniform(0.1, 2, (plans, stages)) for _ in range(2))
    links = (rng.uniform(0, 3, (plans, stages - 1)) * (rng.random((plans, stages - 1)) < 0.7) for _ in range(4))
    return rng, StageTimes(*compute, *links)


def equal_times(*, stages, forward=1.0, backward=2.0, cut=None, link=0.0, latency=0.0):
    links, latencies = np.zeros((1, stages - 1)), np.zeros((1, stages - 1))
    if cut is not None:
        links[0, cut], latencies[0, cut] = link, latency
    return StageTimes(np.full((1, stages), forward), np.full((1, stages), backward), links, latencies)


def random_warmup(rng, times):
    falls = rng.integers(1, 5, times.forward_s.shape)
    return np.cumsum(falls, axis=1)[:, ::-1] - 1


def step_by_events(times, plan, microbatches, warmup):
    """Run one plan operation by operation: each starts when its stage is free and its message has come."""
    stages = times.forward_s.shape[1]
    todo = []
    for depth in np.minimum(warmup, microbatches):
        forwards = [("F", m) if m < microbatches else None for m in range(microbatches + depth)]
        backwards = [("B", m - depth) if m >= depth else None for m in range(microbatches + depth)]
        todo.append([op for pair in zip(forwards, backwards, strict=True) for op in pair if op])
    free, link_free, arrived = [0.0] * stages, {}, {}
    while any(todo):
        for i in range(stages):
            if not todo[i]:
                continue
            kind, m = todo[i][0]
            to = i + 1 if kind == "F" else i - 1
            if (i > 0 if kind == "F" else i < stages - 1) and (kind, i, m) not in arrived:
                continue
            todo[i].pop(0)
            busy = (times.forward_s if kind == "F" else times.backward_s)[plan, i]
            free[i] = max(free[i], arrived.get((kind, i, m), 0.0)) + busy
            if 0 <= to < stages:
                link = (times.link_s if kind == "F" else times.link_back_s)[plan, min(i, to)]
                latency = (times.latency_s if kind == "F" else times.latency_back_s)[plan, min(i, to)]
                link_free[i, to] = max(link_free.get((i, to), 0.0), free[i]) + link
                arrived[kind, to, m] = link_free[i, to] + latency
    return free[0]


@given(seed=SEEDS)
@examples(60)
def test_the_recurrence_is_the_event_simulation(seed):
    rng, times = random_times(seed)
    microbatches, warmup = rng.integers(1, 10, 4), random_warmup(rng, times)
    expected = [step_by_events(times, p, int(microbatches[p]), warmup[p]) for p in range(4)]
    np.testing.assert_allclose(recurrence_s(times, microbatches, warmup), expected, rtol=1e-12)


@given(seed=SEEDS)
@examples(30)
def test_all_depths_from_the_last_microbatch_on_are_gpipe(seed):
    rng, times = random_times(seed)
    stages = times.forward_s.shape[1]
    microbatches = int(rng.integers(1, 9))
    deep = microbatches + stages - 1 - np.arange(stages)
    np.testing.assert_array_equal(
        recurrence_s(times, microbatches, deep), recurrence_s(times, microbatches, microbatches - 1)
    )


@given(
    stages=st.integers(1, 8),
    microbatches=st.integers(1, 20),
    forward=st.integers(1, 9),
    backward=st.integers(1, 9),
)
@examples(40)
def test_equal_stages_without_links_take_s_plus_m_minus_1_slots(stages, microbatches, forward, backward):
    times = equal_times(stages=stages, forward=forward, backward=backward)
    expected = (stages + microbatches - 1) * (forward + backward)
    for warmup in (classic_warmup(stages), latency_aware_warmup(times, microbatches), microbatches):
        assert recurrence_s(times, microbatches, warmup) == [expected]


@given(stages=st.integers(2, 6), data=st.data(), link=st.floats(0, 3), latency=st.floats(0.01, 9))
@examples(40)
def test_classic_1f1b_pays_a_slow_link_in_every_microbatch(stages, data, link, latency):
    cut = data.draw(st.integers(0, stages - 2))
    times = equal_times(stages=stages, cut=cut, link=link, latency=latency)
    warmup = classic_warmup(stages)
    more = recurrence_s(times, 66, warmup) - recurrence_s(times, 64, warmup)
    assert more / 2 == pytest.approx(3.0 + link + latency)


@given(stages=st.integers(2, 6), data=st.data(), link=st.floats(0, 3), latency=st.floats(0.01, 9))
@examples(40)
def test_latency_aware_1f1b_pays_it_once_there_and_back(stages, data, link, latency):
    cut = data.draw(st.integers(0, stages - 2))
    times = equal_times(stages=stages, cut=cut, link=link, latency=latency)
    step_s = recurrence_s(times, 64, latency_aware_warmup(times, 64))
    assert step_s == pytest.approx((stages + 63) * 3.0 + 2 * (link + latency))


@pytest.mark.parametrize(("there_s", "back_s"), [(0.5, 6.5), (6.5, 0.5)], ids=["slow-back", "slow-there"])
def test_latency_aware_1f1b_hides_ways_that_differ_as_well(there_s, back_s):
    there, back = np.array([[there_s]]), np.array([[back_s]])
    times = StageTimes(np.ones((1, 2)), np.full((1, 2), 2.0), there / 5, there, back / 5, back)
    warmup = latency_aware_warmup(times, 64)
    assert recurrence_s(times, 64, warmup) == pytest.approx(65 * 3.0 + 1.2 * (there_s + back_s))
    # No deeper than it must be: every microbatch in flight takes memory.
    assert recurrence_s(times, 64, warmup - [1, 0]) > recurrence_s(times, 64, warmup) + 10


@given(seed=SEEDS)
@examples(40)
def test_no_pipeline_gets_faster_by_a_slower_part(seed):
    rng, times = random_times(seed)
    warmup = random_warmup(rng, times)
    parts = [getattr(times, name) for name in StageTimes.__slots__]
    slower = StageTimes(*(part * rng.uniform(1, 1.5, part.shape) for part in parts))
    assert (recurrence_s(slower, 8, warmup) >= recurrence_s(times, 8, warmup) - 1e-9).all()


@given(seed=SEEDS)
@examples(40)
def test_latency_aware_is_never_slower_than_classic(seed):
    _, times = random_times(seed)
    classic = recurrence_s(times, 12, classic_warmup(times.forward_s.shape[1]))
    assert (recurrence_s(times, 12, latency_aware_warmup(times, 12)) <= classic * (1 + 1e-12)).all()


def test_plans_in_one_batch_do_not_touch_each_other(monkeypatch):
    rng, times = random_times(7, plans=40, stages=3)
    microbatches, warmup = rng.integers(1, 12, 40), random_warmup(rng, times)
    together = recurrence_s(times, microbatches, warmup)
    monkeypatch.setattr("strata.simulate.pipeline._CACHE_CELLS", 3)
    np.testing.assert_array_equal(recurrence_s(times, microbatches, warmup), together)


def test_the_longer_round_trip_asks_for_the_deeper_warmup():
    times = equal_times(stages=3, cut=0, link=0.5, latency=4.0)
    assert latency_aware_warmup(times, 64).tolist() == [[1 + 3 + 1, 1, 0]]
    assert latency_aware_warmup(times, 4).tolist() == [[4, 1, 0]]


@pytest.mark.parametrize("warmup", [(1, 1), (0, 1), (0, -1)])
def test_a_warmup_that_does_not_fall_is_refused(warmup):
    with pytest.raises(UsageError, match="fall by at least 1"):
        recurrence_s(equal_times(stages=2), 8, np.array(warmup))


@pytest.mark.real("torch")
def test_torch_gives_what_numpy_gives():
    import torch

    rng, times = random_times(3, plans=20, stages=4)
    warmup = random_warmup(rng, times)
    as_torch = StageTimes(*(torch.tensor(getattr(times, name)) for name in StageTimes.__slots__))
    for depth in (warmup, latency_aware_warmup(times, 9), np.array(classic_warmup(4))):
        found = recurrence_s(as_torch, 9, torch.tensor(depth))
        assert isinstance(found, torch.Tensor)
        np.testing.assert_allclose(found.numpy(), recurrence_s(times, 9, depth), rtol=1e-12)
    np.testing.assert_array_equal(latency_aware_warmup(as_torch, 9).numpy(), latency_aware_warmup(times, 9))


@examples(8)
@given(SEEDS)
def test_very_many_microbatches_go_on_at_the_pace_of_the_first_thousands(seed):
    rng, times = random_times(seed)
    warmup = random_warmup(rng, times)
    counts = rng.integers(600, 1500, len(times.forward_s))
    exact = recurrence_s(times, counts, warmup)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "MOST_MICROBATCHES", 500)
        patch.setattr(pipeline, "STEADY", 500)
        extended = recurrence_s(times, counts, warmup)
    assert extended == pytest.approx(exact, rel=5e-3)


def test_a_hundred_million_microbatches_are_timed_at_once():
    times = equal_times(stages=4)
    assert recurrence_s(times, 10**8, classic_warmup(4))[0] == pytest.approx(3.0 * (10**8 + 3))
