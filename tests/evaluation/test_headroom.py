"""Where there is room for a policy: what rules earn, and what none earns more than."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from strata.evaluation import headroom
from strata.evaluation.headroom import EndlessJobs, Place
from strata.evaluation.headroom_bound import Course, _whole, most
from strata.learning.worlds import observe, others
from strata.training.hi_ppo.policy import HiPpoPolicy
from strata.training.replan import rules
from tests.learning.worlds.worlds import pool

STEPS, PLANS, RESTART, EACH, GAP = 9, 3, 0.3, 1.0, 3


def two_plans(pause, devices=2.0):
    """One environment; plan 0 is to wait."""
    moves = ~np.eye(PLANS, dtype=bool)[None]
    needs = np.array([[[0.0], [1.0], [1.0]]])
    pool = SimpleNamespace(
        moves=moves, moved_s=np.array(pause)[None] - RESTART, pair=np.array([[[1], [0], [1]]]), num_pairs=1,
        needs=needs, devices=np.array([[devices]]),
    )  # fmt: skip
    settings = SimpleNamespace(restart_s=RESTART, interval_s=EACH)
    row, instance = np.zeros((1, 2), dtype=int), np.zeros(1, dtype=int)
    return SimpleNamespace(pool=pool, row=row, settings=settings, num_envs=1, instance=instance)


def course(speeds, ups=None, cells=((1.0, 0.0),)):
    """What comes to it; plan 1 uses the one link. cells: (share of speed, share of the link's time)."""
    speeds = np.asarray(speeds)[:, None]
    ups = np.ones(speeds.shape, dtype=bool) if ups is None else ups
    parts, shares = np.array(cells).T
    return Course(
        speeds[..., None] * parts,
        np.tile(shares[:, None], (*speeds.shape, 1, 1)),
        ups,
        np.ones((len(speeds), 1, 1)),
    )


def in_turn(jobs, steps):
    """One after the other, from the first step on."""
    return np.arange(steps) % jobs


def earned(speeds, plans, pause):
    """What a job earns along plans, one a turn, pauses paid as the world does."""
    total = 0.0
    for turn, plan in enumerate(plans):
        before = plans[turn - 1] if turn else 0
        left = pause[before][plan] if before not in (0, plan) else 0.0
        for step in range(GAP * turn, GAP * (turn + 1)):
            total += speeds[step, plan] * min(1.0, max(0.0, 1 - left)) if plan else 0.0
            left -= 1
    return total / STEPS


@pytest.mark.parametrize("seed", range(20))
def test_no_course_of_plans_earns_more_than_the_bound_and_one_earns_as_much(seed):
    rng = np.random.default_rng(seed)
    speeds = rng.random((STEPS, PLANS)) * [0, 1, 1]
    pause = [[0.3] * 3, [0.3, 0.3, rng.uniform(0.3, 2.5)], [0.3, rng.uniform(0.3, 2.5), 0.3]]
    turns = np.where(np.arange(STEPS) % GAP == 0, 0, -1)
    bound = most(two_plans(pause), course(speeds), turns)
    never_back = (
        plans for plans in product(range(PLANS), repeat=STEPS // GAP) if 0 not in plans[plans.count(0) :]
    )
    best = max(earned(speeds, plans, pause) for plans in never_back)
    assert bound[0] == pytest.approx(best)


def test_who_lost_a_domain_starts_elsewhere_for_a_restart_alone():
    speeds = np.array([[0, 1, 0], *[[0, 0, 0.9]] * 4])
    ups = np.ones((5, 1, PLANS), dtype=bool)
    pause, turns = [[0.3] * 3, [0.3, 0.3, 0.8], [0.3, 0.8, 0.3]], np.zeros(5, dtype=int)
    alike = most(two_plans(pause), course(speeds, ups), turns)
    ups[1:, 0, 1] = False
    lost = most(two_plans(pause), course(speeds, ups), turns)
    assert lost[0] == pytest.approx((1 + 0.9 * (4 - RESTART)) / 5)
    assert alike[0] == pytest.approx((1 + 0.9 * (4 - 0.8)) / 5)


def test_who_lost_a_domain_between_two_turns_earns_nothing_until_the_next():
    speeds, ups = np.tile([0.0, 1.0, 0.0], (6, 1)), np.ones((6, 1, PLANS), dtype=bool)
    ups[1, 0, 1] = False
    bound = most(two_plans([[0.3] * 3] * 3), course(speeds, ups), np.array([0, -1, -1, 0, -1, -1]))
    assert bound[0] == pytest.approx((1 + 3 - RESTART) / 6)


def test_a_job_that_comes_later_earns_from_then_on():
    speeds = np.tile([0.0, 1.0, 0.5], (5, 1))
    bound = most(two_plans([[0.3] * 3] * 3), course(speeds), np.array([0, 0, 0, 1, 0]))
    assert bound[0] == pytest.approx((5 + 2) / 2 / 5)


def test_jobs_that_share_a_domain_earn_no_more_together_than_its_devices_do():
    speeds = np.tile([0.0, 1.0, 0.5], (40, 1))
    bound = most(two_plans([[0.3] * 3] * 3), course(speeds), in_turn(8, 40))
    assert 2 * (1 - 0.5 / 40) / 8 - 1e-9 <= bound[0] <= 1.02 * 2 / 8


def test_jobs_that_share_a_link_earn_no_more_together_than_it_carries():
    speeds = np.tile([0.0, 1.0, 0.2], (40, 1))
    for shared, together in ((0.5, 0.2 + 1.0), (0.9, 0.9 + 0.9)):
        cells = (1.0, 1.0), (shared, 0.5)
        bound = most(two_plans([[0.3] * 3] * 3), course(speeds, cells=cells), in_turn(2, 40))
        assert bound[0] == pytest.approx(together / 2, rel=0.03)


def test_a_job_that_waits_for_devices_does_not_pay_for_them():
    """Else prices of a time in which it waits would bring the bound below what can be reached."""
    speeds = np.concatenate([np.tile([0.0, 0.1, 0.0], (20, 1)), np.tile([0.0, 1.0, 0.0], (20, 1))])
    world = two_plans([[0.3] * 3] * 3, devices=1.0)
    bound = most(world, course(speeds), in_turn(2, 40))
    assert 22 / 2 / 40 - 1e-9 <= bound[0] <= 1.05 * 22 / 2 / 40


@pytest.mark.parametrize("name", ["noise", "outages"])
def test_what_a_job_has_in_the_world_is_in_some_cell_of_its_plan(name):
    """It is no faster than the cell says, and has no less of any link."""
    world, rng = EndlessJobs(pool(), Place(name, 4, 3)), np.random.default_rng(0)
    world.reset(rng)
    shared = 0
    for _ in range(40):
        course, envs, row = Course.now(world), world.envs[:, None], world.row[:, :4]
        plan = rng.integers(pool().num_options, size=row.shape)
        is_lost = ((pool().needs[row, plan] > 0) & ~world.up[:, None]).any(axis=-1)
        world.jobs.plan[:, :4] = plan = np.where(pool().exists[row, plan] & ~is_lost, plan, 0)
        users = world.users()
        real = pool().reference_s[row] / world._step_s(row, plan)  # (N, J)
        pair = pool().pair[row, plan]  # (N, J, l)
        has = np.where(pair < pool().num_pairs, 1 / users[envs[..., None], pair].clip(1), np.inf)
        is_fast = course.speeds[0][envs, plan] >= real[..., None] * (1 - 1e-6)  # (N, J, G)
        is_enough = (course.shares[0][envs, plan] <= has[:, :, None] + 1e-6).all(axis=-1)
        assert ((is_fast & is_enough).any(axis=-1) | (plan == 0)).all()
        shared += int((has < 1).any(axis=-1).sum())
        world.step(plan[:, 0], rng)
    assert shared > 50


class Fixed(HiPpoPolicy):
    """A fixed rule that stands for a policy's network."""

    def __init__(self, rule):
        super().__init__("", session=rule)

    def choose(self, options):
        return self.session(options)


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(headroom, "DECISIONS", 10)
    monkeypatch.setattr(headroom, "EPISODES", {1: 3, 4: 3, 16: 2})


@pytest.mark.long("plays every rule in worlds of many kinds")
@pytest.mark.parametrize("name", ["noise", "regimes", "outages", "missing probes", "arriving jobs"])
@pytest.mark.parametrize("jobs", [1, 4])
def test_no_rule_and_no_search_earns_more_than_the_bound_of_its_world(name, jobs, monkeypatch):
    monkeypatch.setattr(headroom, "fleets", lambda _domains: pool())
    result = headroom.measured(Place(name, jobs, 3), Fixed(rules.mpc(4)))
    for values in (*result.rules.values(), result.foreseen):
        # With one job it is one of the mean.
        assert (values <= (result.bound if jobs > 1 else result.foreseen) + 1e-6).all()
    assert result.foreseen.mean() >= result.rules["hi_ppo"].mean() - 1e-3


def begun(place):
    """Return what begins the same world anew each time."""

    def begin():
        world, rng = EndlessJobs(pool(), place), np.random.default_rng(4)
        world.reset(rng)
        return world, rng

    return begin


@pytest.mark.long("the mean of hundreds of episodes")
@pytest.mark.parametrize("name", ["stale probes", "missing probes"])
def test_what_no_probe_has_shown_is_zero_in_the_mean_and_takes_off_the_bound(name, monkeypatch):
    monkeypatch.setattr(headroom, "fleets", lambda _domains: pool())
    monkeypatch.setattr(headroom, "EPISODES", {1: 400})
    place = Place(name, 1, 3)
    begin = begun(place)
    late = headroom.unforeseen(begin)
    spread = late.mean(axis=0).std(axis=0) / np.sqrt(400)
    assert (np.abs(late.mean(axis=(0, 1))) <= 4.5 * spread + 1e-9).all()
    assert (spread > 0).any()
    assert not late[0].any() or name == "missing probes"  # what links are at the start is seen at once
    monkeypatch.setattr(headroom, "EPISODES", {1: 60})
    result = headroom.measured(place, Fixed(rules.hysteresis(0.5)))
    assert result.rules["hi_ppo"].mean() < result.bound.mean() < result.foreseen.mean()


@pytest.mark.long("the mean of 400 episodes")
@pytest.mark.parametrize("name", ["regimes", "noisy probes", "missing probes"])
def test_what_the_next_step_of_links_adds_is_zero_in_the_mean_and_takes_off_the_bound(name, monkeypatch):
    monkeypatch.setattr(headroom, "fleets", lambda _domains: pool())
    monkeypatch.setattr(headroom, "EPISODES", {1: 400})
    place = Place(name, 1, 3)
    begin = begun(place)
    given = headroom.luck(begin)
    spread = given.mean(axis=0).std(axis=0) / np.sqrt(400)
    assert (np.abs(given.mean(axis=(0, 1))) <= 4.5 * spread + 1e-9).all()
    assert (spread > 0).any()
    assert not given[-1].any()
    assert not given[:, :, 0].any()
    monkeypatch.setattr(headroom, "EPISODES", {1: 60})
    result = headroom.measured(place, Fixed(rules.hysteresis(0.5)))
    assert (result.rules["hi_ppo"] <= result.bound + 1e-6).all()
    assert result.bound.mean() < result.foreseen.mean()


def test_the_plans_of_a_play_are_those_of_each_step(monkeypatch):
    """They were the last step's throughout: what chance gave the policy was reckoned by another's plans."""
    monkeypatch.setattr(headroom, "fleets", lambda _domains: pool())
    place = Place("regimes", 1, 3)

    def begin():
        world, rng = EndlessJobs(pool(), place), np.random.default_rng(4)
        world.reset(rng)
        return world, rng

    steps = iter(range(10))
    _, plans = headroom._played(begin, lambda world: np.full(world.num_envs, 1 + next(steps) % 2))
    assert plans[0].T.tolist() == [[1, 2] * 5] * 3


@pytest.mark.parametrize("seed", range(20))
def test_jobs_that_fit_together_take_no_more_than_a_domain_by_whole_numbers_too(seed):
    rng = np.random.default_rng(seed)
    devices = rng.integers(4, 40)
    needs = np.array([0, *rng.integers(1, devices + 1, size=3)], dtype=float)
    (shares,) = _whole(needs[None, :, None], np.array([[[float(devices)]]]))[..., 0]
    for jobs in product(range(4), repeat=3):
        if needs[list(jobs)].sum() <= devices:
            assert shares[list(jobs)].sum() <= 1 + 1e-9


def test_three_plans_of_32_devices_fill_112():
    shares = _whole(np.array([0.0, 8, 16, 30, 32])[None, :, None], np.array([[[112.0]]]))
    assert shares.ravel().tolist() == pytest.approx([0, 0, 0, 1 / 3, 1 / 3])
    assert not _whole(np.array([0.0, 8.0])[None, :, None], np.array([[[40.0]]])).any()  # five fit


def test_jobs_come_when_they_should_and_never_end():
    place = Place("arriving jobs", 4, 3)
    world, rng = EndlessJobs(pool(), place), np.random.default_rng(0)
    world.reset(rng)
    there = []
    for _ in range(world.settings.episode_steps):
        there.append((world.jobs.left_s[:, :4] > 0).sum(axis=1))
        world.step(np.zeros(world.num_envs, dtype=np.int64), rng)
    there = np.array(there)
    assert (there[0] == 2).all()
    assert (there[-1] == 4).all()
    assert (np.diff(there, axis=0) >= 0).all()
    assert not world.waiting.any()


def test_links_change_as_fast_for_many_jobs_as_for_one():
    one, many = (Place("regimes", jobs, 4).settings for jobs in (1, 16))
    assert many.interval_s == one.interval_s / 16
    for stay, short in zip(one.stay, many.stay, strict=True):
        step = np.full((3, 3), (1 - short) / 2)
        np.fill_diagonal(step, short)
        assert np.linalg.matrix_power(step, 16)[0, 0] == pytest.approx(stay)


def test_what_others_lose_by_an_option_is_what_the_world_takes_from_them():
    world, rng = EndlessJobs(pool(), Place("regimes", 4, 3)), np.random.default_rng(2)
    world.reset(rng)
    taken = 0
    for _ in range(40):
        own, beside = observe.options(world), others.options(world)
        plan = world.jobs.plan[world.envs, world.turn].copy()
        picks = rules.random(rng)(own)
        earned = []
        for pick in (plan, picks):
            world.jobs.plan[world.envs, world.turn] = pick
            row, runs = world.row[:, :4], world.jobs.plan[:, :4] > 0
            runs[world.envs, world.turn] = False
            speeds = pool().reference_s[row] / world._step_s(row, world.jobs.plan[:, :4])
            earned.append(np.where(runs, speeds, 0.0).sum(axis=1))
        world.jobs.plan[world.envs, world.turn] = plan
        weighed = (beside.value - own.value)[world.envs, picks, 0]
        runs = own.current >= 0
        assert weighed[runs] == pytest.approx((earned[1] - earned[0])[runs])
        taken += int((weighed[runs] < -1e-6).sum())
        world.step(picks, rng)
    assert taken


def test_a_policy_that_is_the_fixed_rule_closes_nothing(monkeypatch):
    monkeypatch.setattr(headroom, "FEW", {1: ("regimes",)})
    monkeypatch.setattr(headroom, "FEW_DOMAINS", (3,))
    monkeypatch.setattr(headroom, "fleets", lambda _domains: pool())
    seen = []
    monkeypatch.setattr(headroom.rollouts, "surest", lambda _world, _options, picks: picks)
    data = headroom.measure(Fixed(rules.keep), is_whole=False, advance=seen.append)
    (world,) = data["worlds"]
    assert world["rules"]["hi_ppo"] == world["rules"]["never"]
    assert (world["name"], world["jobs"], world["domains"]) == ("regimes", 1, 3)
    assert world["rules"]["hysteresis_tuned"]["mean"] >= world["rules"]["hysteresis"]["mean"]
    assert data["share_of_headroom_closed"] == {"mean": None, "low": None, "high": None}
    assert data["share_of_foreseen_closed"] == {"mean": None, "low": None, "high": None}
    assert [family["best"] for family in data["families"]] == ["fixed"] * 3
    assert seen == [1.0]


@pytest.mark.long("plays every rule in worlds of many kinds")
def test_a_policy_whose_record_names_the_untrained_rule_is_asked_only_beside_other_jobs(monkeypatch):
    monkeypatch.setattr(headroom, "fleets", lambda _domains: pool())
    monkeypatch.setattr(headroom.rollouts, "surest", lambda _world, _options, picks: picks)
    policy = Fixed(rules.keep)
    policy.record["decides"] = {"one job": "untrained", "several jobs": "network"}
    for jobs, same in ((1, "untrained"), (4, "network")):
        earned = headroom.measured(Place("regimes", jobs, 3), policy).rules
        assert earned["hi_ppo"] == pytest.approx(earned[same])
        assert earned["untrained"].mean() != pytest.approx(earned["network"].mean())
