import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from strata.evaluation.kpi.fronts import coverage, hypervolume, hypervolume_ratio, igd_plus, measures, scaled
from strata.evaluation.kpi.pareto_coverage import linear_oracle

CORNERS = np.array([[0.0, 10.0, 4.0], [5.0, 5.0, 4.0], [10.0, 0.0, 4.0]])

clouds = arrays(np.float64, st.tuples(st.integers(1, 8), st.just(3)), elements=st.floats(0, 1, width=16))


def test_coverage_counts_front_points_with_a_found_plan_near_them():
    found = np.array([[0.0, 10.0, 4.0], [5.4, 5.0, 4.0]])
    assert coverage(found, CORNERS, eps=0.0) == pytest.approx(1 / 3)
    assert coverage(found, CORNERS, eps=0.05) == pytest.approx(2 / 3)


def test_a_plan_that_is_near_in_two_objectives_only_covers_nothing():
    assert coverage(np.array([[0.0, 10.0, 5.0]]), CORNERS, eps=0.05) == 0.0


def test_no_plans_cover_nothing():
    none = np.empty((0, 3))
    assert coverage(none, CORNERS, eps=1.0) == 0.0
    assert hypervolume_ratio(none, CORNERS) == 0.0
    assert igd_plus(none, CORNERS) == float("inf")


def test_igd_plus_counts_only_what_is_worse():
    # 1 of 10 worse in the first objective, better in the second: 0.1 from two points, the last is 0.1 away too.
    found = CORNERS + np.array([1.0, -1.0, 0.0])
    assert igd_plus(found, CORNERS) == pytest.approx(0.1)
    assert igd_plus(CORNERS - np.array([1.0, 0.0, 0.0]), CORNERS) == 0.0


def test_the_volume_of_boxes_that_overlap_counts_once():
    points = np.array([[0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    # Each box is 1 x 0.5 x 0.5; they share 0.5 x 0.5 x 0.5.
    assert hypervolume(points, np.ones(3)) == pytest.approx(0.25 + 0.25 - 0.125)


def test_a_point_beyond_the_reference_adds_no_volume():
    assert hypervolume(np.array([[2.0, 0.0, 0.0]]), np.ones(3)) == 0.0


@given(clouds)
def test_volume_is_what_counting_cells_finds(points):
    points = np.floor(points * 4) / 4
    corner = np.stack(np.meshgrid(*[np.arange(4) / 4] * 3, indexing="ij"), axis=-1).reshape(-1, 1, 3)
    cells = np.all(points[None] <= corner, axis=-1).any(axis=1)
    assert hypervolume(points, np.ones(3)) == pytest.approx(cells.mean())


@given(clouds)
def test_a_front_covers_itself_whole(points):
    figures = measures(points, points)
    assert figures["coverage_eps_0"] == 1.0
    assert figures["igd_plus"] == 0.0
    assert figures["hypervolume_ratio"] == pytest.approx(1.0)


@given(clouds, clouds)
def test_more_plans_never_measure_worse(found, more):
    front = np.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.0], [0.5, 0.5, 1.0]])
    few, many = measures(found, front), measures(np.concatenate([found, more]), front)
    assert all(many[name] >= few[name] - 1e-12 for name in few if name != "igd_plus")
    assert many["igd_plus"] <= few["igd_plus"]


def test_linear_weights_never_find_a_point_behind_the_hull():
    bulge = np.array([[0.0, 1.0, 0.0], [0.6, 0.6, 0.0], [1.0, 0.0, 0.0]])
    assert linear_oracle(bulge, queries=64).tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_an_objective_without_range_has_no_tolerance():
    assert scaled(CORNERS, CORNERS)[:, 2].tolist() == [0.0, 0.0, 0.0]
    assert coverage(CORNERS + np.array([0.0, 0.0, 0.01]), CORNERS, eps=0.05) == 0.0
