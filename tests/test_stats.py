from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strata import stats
from tests.support.laws import examples

SAMPLES = arrays(np.float64, st.integers(2, 30), elements=st.floats(-1e6, 1e6, width=32))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def coverage(interval_of, truth, *, trials):
    intervals = [interval_of(rng(seed)) for seed in range(trials)]
    return np.mean([interval.low <= truth <= interval.high for interval in intervals])


def test_the_interval_of_a_mean_holds_the_truth_about_as_often_as_it_says():
    # 200 trials at 95 %: a standard deviation of 1.5 %, and 30 skewed values cost a percent or two.
    covered = coverage(
        lambda r: stats.bootstrap(np.mean, r.exponential(3.0, 30), rng=r, resamples=300), 3.0, trials=200
    )
    assert 0.87 <= covered <= 0.98


def test_the_interval_of_a_ratio_holds_the_truth_about_as_often_as_it_says():
    covered = coverage(
        lambda r: stats.bootstrap(
            lambda above, below: float(above.mean() / below.mean()),
            r.normal(6, 1, 25),
            r.normal(3, 0.5, 20),
            rng=r,
            confidence=0.8,
        ),
        2.0,
        trials=40,
    )
    assert 0.65 <= covered <= 0.93


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_the_interval_of_a_quantile_holds_the_truth_at_least_as_often_as_it_says(quantile):
    assert coverage(lambda r: stats.quantile_interval(r.random(40), quantile), quantile, trials=1000) >= 0.95


def test_the_interval_of_a_median_is_the_textbooks():
    # Tables of the sign test: n = 100 at 95 % gives the 40th and the 61st value; n = 6 its ends; n = 5 none.
    assert stats.quantile_interval(np.arange(1, 101), 0.5) == stats.Interval(50.5, 40, 61)
    assert stats.quantile_interval(range(6), 0.5) == stats.Interval(2.5, 0, 5)
    assert stats.quantile_interval(range(5), 0.5) == stats.Interval(2, -math.inf, math.inf)


@given(SAMPLES, st.integers(0, 2**32))
@examples(30)
def test_the_order_of_a_sample_does_not_matter(sample, seed):
    shuffled = rng(seed).permutation(sample)
    assert stats.bootstrap(np.median, sample, rng=rng(1), resamples=50) == stats.bootstrap(
        np.median, shuffled, rng=rng(1), resamples=50
    )
    assert stats.quantile_interval(sample, 0.5) == stats.quantile_interval(shuffled, 0.5)
    assert stats.mad(sample) == stats.mad(shuffled)


@given(SAMPLES)
@examples(30)
def test_an_interval_lies_within_the_sample_and_the_same_seed_gives_the_same(sample):
    interval = stats.bootstrap(np.median, sample, rng=rng(), resamples=50)
    assert sample.min() <= interval.low <= interval.high <= sample.max()
    assert interval == stats.bootstrap(np.median, sample, rng=rng(), resamples=50)


def test_an_interval_shrinks_as_one_over_the_root_of_the_sample():
    width = []
    for size in (50, 5000):
        interval = stats.mean_interval(rng(3).normal(0, 1, size), rng=rng())
        width.append(interval.high - interval.low)
    assert width[0] / width[1] == pytest.approx(10, rel=0.3)


def test_a_wider_confidence_is_a_wider_interval():
    sample = rng().normal(0, 1, 40)
    narrow = stats.mean_interval(sample, rng=rng(), confidence=0.8)
    wide = stats.mean_interval(sample, rng=rng(), confidence=0.99)
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


@given(SAMPLES)
def test_one_wild_value_hardly_moves_a_robust_spread(sample):
    spoilt = np.append(np.sort(np.tile(sample, 10)), 1e12)
    assert stats.mad(spoilt) <= 1.4826 * (sample.max() - sample.min()) + 1e-6  # rounding


def test_mad_is_the_standard_deviation_of_a_normal_sample():
    assert stats.mad(rng().normal(5, 3, 20_000)) == pytest.approx(3, rel=0.03)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: stats.mean_interval([], rng=rng()), "at least 2 values"),
        (lambda: stats.mean_interval([1.0], rng=rng()), "at least 2 values"),
        (lambda: stats.mean_interval([[1.0, 2.0]], rng=rng()), "not shape"),
        (lambda: stats.mean_interval([1.0, math.nan], rng=rng()), "finite"),
        (lambda: stats.quantile_interval([1, 2], 1.0), "not between"),
    ],
)
def test_a_sample_that_says_nothing_is_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()
