"""The re-planning world: what is conserved, what repeats, and steps computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from strata.errors import UsageError
from strata.learning.worlds.observe import options
from strata.learning.worlds.settings import PRESETS, WorldSettings
from strata.learning.worlds.world import World
from tests.learning.worlds.worlds import CALM, pool, some, world

BUSY = replace(PRESETS["multijob"], slots=3, jobs_per_hour=3.0, least_run_s=600.0, episode_steps=100)


def legal_picks(made, rng):
    """Return any legal option in each environment."""
    legal = options(made).legal
    return (rng.random(legal.shape) * legal).argmax(axis=1)


def arrays(made):
    jobs, links = made.jobs, made.links
    return (made.instance, made.time_s, made.waiting, made.turn, made.background, made.backlog_s, made.preference,
            jobs.plan, jobs.left_s, jobs.due_s, jobs.pause_s, links.factor, links.seen, links.regime)  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_runs_and_all_figures_are_finite(name):
    rng = np.random.default_rng(1)
    made = world(16, settings=replace(PRESETS[name], episode_steps=12))
    for _ in range(30):
        outcome = made.step(legal_picks(made, rng), rng)
        choices = options(made)
        assert choices.legal.any(axis=1).all()
        assert np.isfinite(outcome.reward).all()
        for figures in (choices.value, choices.cost, choices.links):
            assert np.isfinite(figures).all()


def test_devices_are_never_held_twice():
    rng = np.random.default_rng(2)
    made = world(32, settings=replace(BUSY, outages_per_day=20.0))
    total = made.pool.devices[made.instance]
    for _ in range(60):
        made.step(legal_picks(made, rng), rng)
        total = made.pool.devices[made.instance]
        held = made.pool.needs[made.row, made.jobs.plan].sum(axis=1)
        assert (held + made.background <= total + 1e-9).all()
        assert (made.free() >= -1e-9).all()
        assert (made.background <= BUSY.background_cap * total).all()
        assert (held[~made.up] == 0).all()
    assert (made.jobs.plan[:, : made.slots] > 0).sum(axis=1).max() > 1


@pytest.mark.parametrize("name", ["regimes", "stale", "multijob", "outage"])
def test_a_seed_gives_the_same_world_again(name):
    runs = []
    for _ in range(2):
        rng, made = np.random.default_rng(5), World(pool(), 8, settings=PRESETS[name])
        made.reset(rng)
        for _ in range(20):
            made.step(options(made).value[:, :, 0].argmax(axis=1), rng)
        runs.append(arrays(made))
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_links_and_arrivals_do_not_depend_on_what_is_decided():
    settings = replace(PRESETS["multijob"], episode_steps=10)
    courses = []
    for pick in (0, -1):
        rng, made = np.random.default_rng(6), World(pool(), 4, settings=settings)
        made.reset(rng)
        course = []
        for _ in range(25):
            best = options(made).legal.cumsum(axis=1).argmax(axis=1)
            made.step(best if pick else np.zeros(4, dtype=np.int64), rng)
            course.append((made.links.factor, made.instance))
        courses.append(course)
    for one, other in zip(*courses, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


@pytest.mark.parametrize("name", ["regimes", "stale", "multijob"])
def test_one_environment_behaves_as_it_does_among_many(name):
    settings = replace(PRESETS[name], episode_steps=9, preference=None)
    rng = np.random.default_rng(7)
    many, one = World(pool(), 6, settings=settings), World(pool(), 1, settings=settings)
    chance, mine = many.draw(rng, start=True), slice(3, 4)
    many.begin(chance)
    one.begin(some(chance, mine))
    for number in range(24):
        picks = legal_picks(many, rng)
        chance = many.draw(rng, start=number % 10 == 9)
        together, alone = many.advance(picks, chance), one.advance(picks[mine], some(chance, mine))
        np.testing.assert_array_equal(together.reward[mine], alone.reward)
        np.testing.assert_array_equal(together.started[mine], alone.started)
        for a, b in zip(arrays(many), arrays(one), strict=True):
            np.testing.assert_array_equal(a[mine], b)
        np.testing.assert_array_equal(options(many).value[mine], options(one).value)


def test_who_keeps_the_plan_never_pays_for_a_switch():
    made, rng = world(8, settings=PRESETS["regimes"]), np.random.default_rng(0)
    first = options(made).value[:, :, 0].argmax(axis=1)
    assert made.step(first, rng).switched.all()
    for _ in range(20):
        now = options(made)
        np.testing.assert_array_equal(now.cost[np.arange(8), now.current], 0.0)
        outcome = made.step(now.current, rng)
        assert not outcome.switched.any()
        assert (made.jobs.pause_s == 0).all()
        earned = now.value[np.arange(8), now.current, 0]
        np.testing.assert_allclose(outcome.reward[:, 0], earned, rtol=1e-5)


def test_a_calm_step_earns_what_the_cost_model_says():
    made = world()
    row = int(made.row[0, -1])
    kind = made.pool.instances[int(made.instance[0])].kinds[row % 2]
    outcome = made.step(np.array([3]), np.random.default_rng(0))
    dearest = kind.egress_usd.max()
    expected = [kind.reference_s / kind.nominal_s[2], kind.utilization[2], -kind.egress_usd[2] / dearest]
    np.testing.assert_allclose(outcome.reward[0], expected, rtol=1e-9)
    assert outcome.scalar[0] == outcome.reward[0, 0]


def test_a_switch_burns_its_time_and_what_is_left_of_it_burns_the_next_step():
    made, rng = world(restart_s=400.0), np.random.default_rng(0)
    row = int(made.row[0, -1])
    moves = np.argwhere(made.pool.moves[row])
    old, new = moves[0]
    made.step(np.array([old]), rng)
    pause_s = made.pool.moved_s[row, old, new] + 400.0
    assert 300.0 < pause_s < 600.0
    calm = made.pool.reference_s[row] / made._step_s(made.row[:, :1], np.array([[new]]))[0, 0]
    earned = [made.step(np.array([pick]), rng).reward[0, 0] for pick in (new, new, new)]
    np.testing.assert_allclose(earned, [0.0, (600.0 - pause_s) / 300.0 * calm, calm], rtol=1e-9)


def test_no_plan_is_worth_less_than_the_dearest():
    made = world()
    np.testing.assert_array_equal(made.step(np.array([0]), np.random.default_rng(0)).reward[0], [0.0, 0.0, -1.0])


def test_jobs_that_share_a_link_get_half_of_it_each():
    made = world(slots=2, jobs_per_hour=60.0, least_run_s=1e6)
    rng = np.random.default_rng(1)
    made.step(np.array([0]), rng)
    row = int(made.row[0, -1])
    wide = int((made.pool.pair[row] < made.pool.num_pairs).any(axis=1).argmax())
    made.jobs.kind[0, :] = row % 2
    made.jobs.plan[0, :2], made.jobs.left_s[0, :2] = wide, 1e6
    made.links.factor = np.full_like(made.links.factor, 2.0)
    shared = made._step_s(made.row[:, :2], made.jobs.plan[:, :2])[0]
    made.jobs.plan[0, 1] = 0
    made.links.factor = np.ones_like(made.links.factor)
    assert shared[0] == shared[1] == made._step_s(made.row[:, :2], made.jobs.plan[:, :2])[0, 0]


def test_a_finished_job_frees_its_devices_and_the_next_one_comes_forward():
    made, rng = world(jobs_per_hour=1e-9, trace="pai", deadline_share=0.0), np.random.default_rng(3)
    made.waiting[:] = 2
    made.jobs.left_s[0, -1] = 10.0
    outcome = made.step(np.array([1]), rng)
    assert outcome.finished[0] == 1
    assert outcome.reward[0, 0] == pytest.approx(10.0 / 300.0)
    np.testing.assert_array_equal(made.free()[0], made.pool.devices[made.instance[0]])
    assert made.waiting[0] == 1
    assert made.turn[0] == made.slots
    assert made.jobs.left_s[0, -1] >= 3600.0


def test_a_missed_deadline_is_paid_once():
    made, rng = world(jobs_per_hour=1e-9, deadline_share=1.0, deadline_penalty=50.0), np.random.default_rng(3)
    made.jobs.due_s[0, -1] = 500.0
    made.jobs.left_s[0, -1] = 1e9
    missed = []
    for _ in range(4):
        outcome = made.step(np.array([1]), rng)
        missed.append((int(outcome.missed[0]), bool(outcome.reward[0, 0] < -40)))
    assert missed == [(0, False), (1, True), (0, False), (0, False)]


def test_a_pick_that_does_not_fit_is_refused_and_changes_nothing():
    made = world(background_share=1.0, background_cap=1.0)
    assert (made.free() == 0).all()
    outcome = made.step(np.array([1]), np.random.default_rng(0))
    assert outcome.refused[0]
    assert not outcome.switched[0]
    assert (made.jobs.plan == 0).all()


def test_a_domain_that_vanishes_stops_its_jobs_and_a_restart_is_paid():
    made, rng = world(outages_per_day=1e-9, outage_s=1e9), np.random.default_rng(0)
    made.step(np.array([1]), rng)
    chance = made.draw(rng)
    chance.outage[:] = 0.0  # all domains fail, none comes back
    made.advance(np.array([1]), chance)
    choices = options(made)
    assert choices.current[0] == -1
    np.testing.assert_array_equal(np.flatnonzero(choices.legal[0]), [0])
    made.up[:] = True
    assert options(made).legal[0, 1]
    calm = options(made).value[0, 1, 0]
    earned = made.step(np.array([1]), rng).reward[0, 0]
    assert earned == pytest.approx(calm * (1 - 60.0 / 300.0), rel=1e-6)


def test_an_episode_ends_by_time_and_the_next_begins_at_the_step_after():
    made, rng = world(3, episode_steps=2), np.random.default_rng(0)
    seen = []
    for _ in range(4):
        outcome = made.step(np.ones(3, dtype=np.int64), rng)
        seen.append(
            (bool(outcome.ended.all()), bool(outcome.started.all()), float(np.abs(outcome.reward).sum()) > 0)
        )
    assert seen == [(False, False, True), (True, False, True), (False, True, False), (False, False, True)]


def test_all_running_jobs_get_a_turn():
    made, rng = world(32, settings=replace(BUSY, background_share=0.0, least_run_s=1e6)), np.random.default_rng(4)
    for _ in range(30):
        made.step(legal_picks(made, rng), rng)
    full = (made.jobs.plan[:, : made.slots] > 0).all(axis=1)
    turns = []
    for _ in range(made.slots):
        turns.append(made.turn[full])
        made.step(np.zeros(32, dtype=np.int64), rng)
    assert full.any()
    np.testing.assert_array_equal(
        np.sort(turns, axis=0), np.arange(made.slots)[:, None].repeat(full.sum(), axis=1)
    )


@pytest.mark.parametrize("wrong", [{"trace": "none"}, {"slots": 0}, {"slots": 2}, {"interval_s": 0.0}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UsageError):
        WorldSettings(**wrong)


def test_calm_worlds_are_nominal():
    made = world(4, settings=CALM)
    np.testing.assert_array_equal(made.links.factor, 1.0)
