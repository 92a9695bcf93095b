from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.training.plan.exact.routes import efficient
from strata.training.plan.shortlist.preferences import preferences, seeking
from tests.support.laws import examples


@pytest.mark.parametrize("count", [1, 3, 4, 16, 64, 500])
def test_weights_are_shares_that_sum_to_one(count):
    weights = preferences(count)
    assert weights.shape == (count, 3)
    assert (weights >= 0).all()
    assert np.allclose(weights.sum(axis=1), 1.0)


def test_the_corners_come_first_and_fewer_are_the_beginning_of_more():
    assert np.array_equal(preferences(3), np.eye(3))
    assert np.array_equal(preferences(64)[:20], preferences(20))


def test_the_spread_leaves_no_large_hole():
    weights, asked = preferences(64), np.random.default_rng(0).dirichlet(np.ones(3), size=2000)
    nearest = np.abs(asked[:, None] - weights[None]).max(axis=2).min(axis=1)
    assert nearest.max() < 0.2


def answered(points, ideal, nadir, most):
    terms, found = (points - ideal) / (nadir - ideal), []
    asking = seeking(ideal, nadir)
    weights = next(asking)
    for _ in range(most):
        assert weights.sum() == pytest.approx(1.0)
        assert (weights >= 0).all()
        values = terms * weights
        found.append(points[np.argmin(values.max(axis=1) + 1e-6 * values.sum(axis=1))])
        try:
            weights = asking.send(found[-1])
        except StopIteration:
            return found, True
    return found, False


@examples(60)
@given(st.lists(st.tuples(*[st.integers(0, 30)] * 3), min_size=2, max_size=25, unique=True))
def test_asking_into_gaps_ends_with_every_non_dominated_point(rows):
    points = np.array(rows, dtype=float)
    points = points[efficient(points)]
    ideal, nadir = points.min(axis=0), points.max(axis=0) + 1e-9
    found, complete = answered(points, ideal, nadir, 500)
    assert complete
    assert {tuple(p) for p in found} == {tuple(p) for p in points}
