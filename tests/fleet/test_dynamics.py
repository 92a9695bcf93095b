from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import BadFile, UsageError
from strata.fleet.dynamics.noise import Diurnal, OrnsteinUhlenbeck, Uniform
from strata.fleet.dynamics.parse import parse_process
from strata.fleet.dynamics.process import Product
from strata.fleet.dynamics.regimes import WARNING, Regimes, outage, precursor
from strata.fleet.dynamics.replay import Replay, read_replay
from tests.support.laws import examples

MANY = (20_000, 2)

PROCESSES = {
    "uniform": Uniform(0.3),
    "ou": OrnsteinUhlenbeck(sigma=0.4, tau_s=600.0),
    "regimes": Regimes((600.0, 300.0, 100.0)),
    "regimes-per-link": Regimes.with_persistence((0.97, 0.5, 0.8), step_s=300.0),
    "precursor": precursor(),
    "outage": outage(up_s=3600.0, down_s=300.0),
    "diurnal": Diurnal(0.3, phase_rad=(0.0, 1.0, 2.0)),
    "replay": Replay(np.array([0.0, 100.0, 400.0]), np.arange(9.0).reshape(3, 3)),
    "product": Product((Regimes((600.0, 300.0, 100.0)), OrnsteinUhlenbeck(0.2, 60.0), Diurnal(0.1))),
}
each_process = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())


def rng(seed: int = 7) -> np.random.Generator:
    return np.random.default_rng(seed)


def path(process, times_s, generator, shape):
    """Factors [T, *shape] of one run that starts at time 0."""
    state, now_s, factors = process.reset(generator, shape), 0.0, []
    for time_s in times_s:
        if time_s > now_s:
            state, now_s = process.step(state, float(time_s - now_s), generator), time_s
        factors.append(process.factor(state))
    return np.stack(factors)


@each_process
@pytest.mark.parametrize("dt_s", [30.0, np.full((4, 1), 30.0)], ids=["scalar", "one-an-environment"])
def test_a_factor_has_the_shape_of_the_environments_and_is_never_negative(process, dt_s):
    state = process.reset(rng(), (4, 3))
    assert process.factor(state).shape == (4, 3)
    factor = process.factor(process.step(state, dt_s, rng()))
    assert factor.shape == (4, 3)
    assert factor.dtype == np.float64
    assert np.all(factor >= 0)


@each_process
def test_one_seed_gives_one_path_and_links_alone_work_too(process):
    times = np.arange(0.0, 600.0, 60.0)
    first, second = path(process, times, rng(3), (3,)), path(process, times, rng(3), (3,))
    assert first.shape == (10, 3)
    np.testing.assert_array_equal(first, second)


@each_process
def test_a_step_leaves_the_old_state_as_it_was(process):
    state = process.reset(rng(), (4, 3))
    before = process.factor(state).copy()
    process.step(state, 100.0, rng())
    np.testing.assert_array_equal(process.factor(state), before)


@pytest.mark.parametrize("name", ["uniform", "ou", "regimes", "precursor", "product"])
def test_environments_and_links_are_independent(name):
    process = PROCESSES[name]
    state = process.step(process.reset(rng(), MANY), 60.0, rng(8))
    factor = process.factor(state)
    assert abs(np.corrcoef(factor[:, 0], factor[:, 1])[0, 1]) < 0.03
    assert abs(np.corrcoef(factor[1:, 0], factor[:-1, 0])[0, 1]) < 0.03


def test_the_seed_noise_is_the_seed_line_on_the_same_generator():
    base = np.array([5.0, 3.0, 2.0])
    process, generator, reference = Uniform(0.3), rng(), rng()
    state = process.reset(generator, base.shape)
    np.testing.assert_array_equal(
        base * process.factor(state), base * (1 + reference.uniform(-0.3, 0.3, size=base.shape))
    )
    state = process.step(state, 300.0, generator)
    np.testing.assert_array_equal(
        base * process.factor(state), base * (1 + reference.uniform(-0.3, 0.3, size=base.shape))
    )


@given(st.floats(0, 0.99), st.integers(0, 2**32))
def test_the_seed_noise_stays_in_its_bounds(half_width, seed):
    factor = Uniform(half_width).reset(rng(seed), (50,))
    assert np.all(np.abs(factor - 1) <= half_width + 1e-12)


@pytest.mark.parametrize("dt_s", [0.0, 60.0, 600.0, 1e6])
def test_ou_stays_stationary_with_mean_one(dt_s):
    process = OrnsteinUhlenbeck(sigma=0.4, tau_s=600.0)
    generator = rng()
    old = process.reset(generator, MANY)
    new = process.step(old, dt_s, generator)
    assert new.mean() == pytest.approx(0.0, abs=0.01)
    assert new.std() == pytest.approx(0.4, rel=0.02)
    assert process.factor(new).mean() == pytest.approx(1.0, abs=0.01)
    correlation = np.corrcoef(old.ravel(), new.ravel())[0, 1]
    assert correlation == pytest.approx(np.exp(-dt_s / 600.0), abs=0.02)


def test_two_half_steps_of_ou_are_distributed_as_one():
    process, start = OrnsteinUhlenbeck(sigma=0.4, tau_s=600.0), np.full(MANY, 1.0)
    once = process.step(start, 300.0, rng(1))
    twice = process.step(process.step(start, 150.0, rng(2)), 150.0, rng(3))
    assert twice.mean() == pytest.approx(once.mean(), abs=0.01)
    assert twice.std() == pytest.approx(once.std(), rel=0.02)


dwells = st.lists(st.floats(1.0, 1e4), min_size=3, max_size=3)


@given(dwells, st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_regimes_satisfy_chapman_kolmogorov(dwell_s, first_s, second_s):
    process = Regimes(tuple(dwell_s))
    both = process.transition(first_s) @ process.transition(second_s)
    np.testing.assert_allclose(process.transition(first_s + second_s), both, atol=1e-7)


@given(dwells, st.floats(0.0, 1e6))
def test_regimes_have_rows_of_probabilities_that_keep_the_stationary_distribution(dwell_s, dt_s):
    process = Regimes(tuple(dwell_s), next=((0, 0.9, 0.1), (0.5, 0, 0.5), (0.2, 0.8, 0)))
    transition = process.transition(dt_s)
    assert np.all(transition > -1e-9)
    np.testing.assert_allclose(transition.sum(axis=-1), 1.0, atol=1e-7)
    np.testing.assert_allclose(process._stationary @ transition, process._stationary, atol=1e-7)


@given(st.floats(0.34, 0.99), st.floats(1.0, 3600.0))
def test_persistence_is_the_probability_to_be_in_the_same_regime(stay, step_s):
    transition = Regimes.with_persistence(stay, step_s=step_s).transition(step_s)
    np.testing.assert_allclose(np.diag(transition), stay, atol=1e-7)
    np.testing.assert_allclose(transition[0, 1:], (1 - stay) / 2, atol=1e-7)


def test_links_persist_as_often_as_they_were_told_each_its_own():
    process = Regimes.with_persistence((0.97, 0.5), step_s=300.0)
    generator = rng()
    old = process.reset(generator, MANY)
    new = process.step(old, 300.0, generator)
    np.testing.assert_allclose((old == new).mean(axis=0), (0.97, 0.5), atol=0.015)
    for regime in range(3):
        np.testing.assert_allclose((new == regime).mean(axis=0), 1 / 3, atol=0.015)
    assert set(np.unique(process.factor(new))) == {1.0, 0.5, 0.15}


def test_a_steps_length_may_differ_between_environments():
    process = Regimes((600.0, 300.0, 100.0))
    old = process.reset(rng(), MANY)
    dt_s = np.where(np.arange(MANY[0]) % 2, 0.0, 1e7)[:, None]
    new = process.step(old, dt_s, rng(8))
    assert np.array_equal(new[1::2], old[1::2])
    fresh = [(new[0::2] == regime).mean() for regime in range(3)]
    assert fresh == pytest.approx([0.6, 0.3, 0.1], abs=0.015)


def test_a_precursor_warns_at_full_bandwidth_and_an_episode_follows():
    process = precursor()
    state = process.reset(rng(), MANY)
    assert np.all(process.factor(state)[state == WARNING] == 1.0)
    assert [(state == regime).mean() for regime in range(3)] == pytest.approx(
        [3750 / 5850, 600 / 5850, 1500 / 5850], abs=0.015
    )
    soon = process.step(state, 300.0, rng(8))
    bad = process.factor(soon) < 1
    assert bad[state == WARNING].mean() > 5 * bad[state == 0].mean()


def test_an_outage_takes_its_share_of_the_time():
    process = outage(up_s=900.0, down_s=100.0)
    factors = path(process, np.arange(0.0, 3e6, 300.0), rng(), (4,))
    assert set(np.unique(factors)) == {0.0, 1.0}
    assert factors.mean() == pytest.approx(0.9, abs=0.01)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1e6), st.floats(-7.0, 7.0))
def test_the_time_of_day_stays_in_its_bounds_and_comes_back(amplitude, time_s, phase_rad):
    process = Diurnal(amplitude, period_s=86400.0, phase_rad=phase_rad)
    now = process.factor(np.array([time_s]))
    assert abs(now[0] - 1) <= amplitude + 1e-9
    np.testing.assert_allclose(process.factor(np.array([time_s + 86400.0])), now, atol=1e-6)


def test_a_product_multiplies_its_parts():
    diurnal, replay = Diurnal(0.5, period_s=400.0), Replay(np.array([0.0]), np.array([[0.5]]))
    process = Product((diurnal, replay))
    factors = path(process, np.array([0.0, 100.0, 300.0]), rng(), (1,))
    np.testing.assert_allclose(factors[:, 0], [0.5, 0.75, 0.25])


@examples(30)
@given(st.integers(1, 30), st.integers(1, 4), st.integers(0, 1000))
def test_a_replay_gives_back_its_rows_exactly(rows, links, seed):
    factors = rng(seed).random((rows, links))
    times = np.arange(rows) * 0.1
    state, replay = None, Replay(times, factors)
    for row in range(rows):
        state = replay.reset(rng(), (2, links)) if state is None else replay.step(state, 0.1, rng())
        np.testing.assert_array_equal(replay.factor(state), np.tile(factors[row], (2, 1)))


def test_a_replay_holds_a_row_until_the_next_and_the_last_one_for_ever():
    replay = Replay(np.array([0.0, 10.0, 20.0]), np.array([[1.0], [0.5], [0.1]]))
    factors = path(replay, np.array([5.0, 15.0, 20.0, 25.0]), rng(), (1,))
    np.testing.assert_array_equal(factors[:, 0], [1.0, 0.5, 0.1, 0.1])


def test_a_trace_is_read_in_the_order_of_the_links_and_those_it_lacks_stay_as_they_are(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("time_s,b>a,a>b\n0,0.5,1\n\n60,0.25,0.9\n")
    replay = read_replay(file, links=["a>b", "a>c", "b>a"])
    np.testing.assert_array_equal(replay.times_s, [0.0, 60.0])
    np.testing.assert_array_equal(replay.factors, [[1.0, 1.0, 0.5], [0.9, 1.0, 0.25]])


def test_all_faults_of_a_replay_file_come_with_their_lines(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("time_s,a\n0,1\n0,1\n1,x\n2,-1\n3\n4,nan\n5,1\n")
    with pytest.raises(BadFile) as caught:
        read_replay(file, links=["a"])
    places = [(fault.line, fault.column) for fault in caught.value.faults]
    assert places == [(3, 1), (4, 3), (5, 3), (6, 1), (7, 3)]


def test_faults_of_the_header_and_of_rows_come_together_and_a_trace_may_end_with_a_link_down(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("time_s,a,bb\n0,1,1\n5,x,0\n")
    with pytest.raises(BadFile) as caught:
        read_replay(file, links=["a", "b"])
    assert [(fault.line, fault.column) for fault in caught.value.faults] == [(1, 10), (3, 3)]
    file.write_text("time_s,a\n0,1\n5,0\n")
    assert read_replay(file, links=["a"], may_end_down=True).factors[-1] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "no column 'time_s'", id="empty"),
        pytest.param("time_s,a\n", "has no rows", id="no-rows"),
        pytest.param("time_s,a,c\n0,1,1\n", "no link is named 'c'", id="unknown-link"),
        pytest.param("time_s,a,a\n0,1,1\n", "given twice", id="column-twice"),
        pytest.param("time_s,a\n0,1\n9,0\n", "the last factor of a is 0", id="dead-for-ever"),
    ],
)
def test_a_trace_that_cannot_be_played_is_refused(tmp_path, text, message):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(BadFile, match=message):
        read_replay(file, links=["a"])


@pytest.mark.parametrize(
    ("text", "process"),
    [
        ("uniform:30%", Uniform(0.3)),
        ("ou:20%/10min", OrnsteinUhlenbeck(0.2, 600.0)),
        ("diurnal:0.4", Diurnal(0.4)),
    ],
)
def test_dynamics_are_read_as_people_write_them(text, process):
    assert parse_process(text, links=()) == process


def test_regimes_and_outages_are_read_as_people_write_them():
    regimes = parse_process("regimes:90%/5min", links=())
    assert np.diag(regimes.transition(300.0)) == pytest.approx([0.9] * 3)
    assert parse_process("outage:6h/10min", links=()).dwell_s == (21600.0, 600.0)
    assert parse_process("precursor", links=()).factors == precursor().factors


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rain", "cannot read 'rain'"),
        ("ou:20%", "cannot read 'ou:20%'"),
        ("uniform:110%", "not between 0% and 100%"),
        ("uniform:nan", "not between 0% and 100%"),
        ("regimes:30%/5min", "not between 33% and 100%"),
        ("outage:0s/1s", "not a positive time"),
        ("gone.csv", "gone.csv: no such file"),
    ],
)
def test_what_is_not_a_process_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_process(text, links=())
