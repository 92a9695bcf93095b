from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.simulate.collective import best_all_reduce
from strata.simulate.gradient_sums import least_of_any_s, least_of_groups_s
from tests.support.laws import examples


def links(seed: int, units: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds a byte and latency of every pair; some have no link, some cost next to nothing."""
    rng = np.random.default_rng(seed)
    slow = rng.choice([1e-12, 1.0, 3.0, 10.0, np.inf], (units, units), p=[0.1, 0.3, 0.3, 0.25, 0.05])
    return slow * rng.uniform(1, 1.2, (units, units)), rng.choice([0.0, 0.1, 5.0], (units, units))


@examples(60)
@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([1e-3, 1.0, 100.0]))
def test_no_sum_between_any_units_beats_its_bounds(seed, units, size):
    slow, late = links(seed, units)
    groups = [group for count in range(2, units + 1) for group in combinations(range(units), count)]
    member = np.array([[unit in group for unit in range(units)] for group in groups])
    given_groups, any_group = least_of_groups_s(size, member, slow, late), least_of_any_s(size, slow, late)
    for group, bound in zip(groups, given_groups, strict=True):
        inside = np.ix_(group, group)
        time_s = best_all_reduce(size, 1 / slow[inside], late[inside]).time_s
        assert bound <= time_s
        assert any_group[len(group) - 2] <= time_s


def test_direct_and_star_sums_of_a_group_are_bounded_by_what_they_take():
    even, late = np.full((8, 8), 0.5), np.full((8, 8), 0.01)
    for size in (1e-3, 1.0, 1e3):
        direct = best_all_reduce(size, 1 / even, late)
        assert direct.algorithm == "direct"
        bounds = least_of_groups_s(size, np.ones((1, 8), dtype=bool), even, late)
        assert np.isclose(bounds[0], direct.time_s, rtol=1e-9)
        assert np.isclose(least_of_any_s(size, even, late)[-1], direct.time_s, rtol=1e-9)
    hub = np.full((8, 8), 50.0)
    hub[0, :], hub[:, 0] = 0.5, 0.1
    star = best_all_reduce(1.0, 1 / hub, late)
    assert star.algorithm == "star"
    assert np.isclose(least_of_any_s(1.0, hub, late)[-1], star.time_s, rtol=1e-9)
