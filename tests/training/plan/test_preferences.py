from __future__ import annotations

import numpy as np
import pytest

from strata.training.plan.shortlist.preferences import preferences


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
