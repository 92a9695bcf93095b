"""Run times and sizes of jobs: the published medians and means come back, and nothing leaves its range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.workload.arrivals import LONGEST_S, MOST_NODES, NODE_DEVICES, TRACES, sample

GRID = (np.arange(200_000) + 0.5) / 200_000


@pytest.mark.parametrize("name", TRACES)
def test_run_times_have_the_published_median_and_mean(name):
    trace = TRACES[name]
    times = trace.run_time_s(GRID)
    assert np.median(times) == pytest.approx(trace.median_s, rel=5e-3)
    assert times.mean() == pytest.approx(trace.mean_s, rel=0.02)


def test_openb_is_within_a_fifth_of_its_outer_quantiles():
    times = TRACES["openb"].run_time_s(np.array([0.1, 0.5, 0.9]))
    np.testing.assert_allclose(times, [74.0, 545.0, 6260.0], rtol=0.21)


@pytest.mark.parametrize("name", [name for name, trace in TRACES.items() if trace.mean_devices > NODE_DEVICES])
def test_sizes_have_the_published_mean_where_jobs_are_larger_than_a_node(name):
    trace = TRACES[name]
    assert trace.nodes(GRID).mean() * NODE_DEVICES == pytest.approx(trace.mean_devices, rel=0.02)


@given(st.sampled_from(sorted(TRACES)), st.floats(0.0, 86400.0), st.integers(0, 2**32 - 1))
def test_samples_stay_within_their_range_and_repeat(name, least_s, seed):
    times, nodes = sample(TRACES[name], np.random.default_rng(seed), 32, least_s=least_s)
    again, _ = sample(TRACES[name], np.random.default_rng(seed), 32, least_s=least_s)
    assert ((times >= least_s) & (times <= LONGEST_S)).all()
    assert ((nodes >= 1) & (nodes <= MOST_NODES) & (nodes == np.floor(nodes))).all()
    np.testing.assert_array_equal(times, again)


def test_a_condition_on_the_least_run_time_leaves_the_tail_as_it_was():
    trace = TRACES["philly"]
    alone = trace.run_time_s(GRID)
    kept = alone[alone >= 3600.0]
    assert trace.run_time_s(GRID, least_s=3600.0).mean() == pytest.approx(kept.mean(), rel=0.02)
