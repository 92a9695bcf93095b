"""Roll-outs: who runs what, which attempts compare, when it stops, and how often it errs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.host.rollout.judge import RolloutStatus, judge, next_policy
from strata.host.rollout.pairs import pairs_of
from strata.host.rollout.report import report_of
from strata.host.rollout.rollout import Arm, Rollout, RolloutPlan, Rules, Unit, coin, turn
from strata.host.rollout.sequence import interval, log_evidence, log_failure_evidence, rho_of
from tests.host.rollout.rollouts import attempt, simulated
from tests.support.laws import examples

PLAN = RolloutPlan("trial", aa_pairs=8, ab_pairs=40)
words = st.text("abcdefgh-0123", min_size=1, max_size=8)


def noisy(num_pairs: int, *, plan: RolloutPlan = PLAN) -> Rollout:
    """A roll-out of A/A pairs alone, equal to a few per cent."""
    values = [100 + (7 * i) % 5 for i in range(2 * num_pairs)]
    return Rollout(plan, attempts=tuple(attempt("noise", i, value) for i, value in enumerate(values)))


def tried(rollout: Rollout, *ratios: float | None, job: str = "job") -> Rollout:
    """The roll-out with A/B pairs of a job whose candidate is this many times better; None: it failed."""
    start = 2 * sum(one.job == job for one in rollout.attempts) // 2
    more = []
    for i, ratio in enumerate(ratios):
        more.append(attempt(job, start + 2 * i, 100.0))
        value = None if ratio is None else 100 * ratio
        more.append(attempt(job, start + 2 * i + 1, value, "candidate"))
    return replace(rollout, attempts=(*rollout.attempts, *more))


# Who runs what.


def test_who_is_opted_out_stays_out_even_if_opted_in():
    rules = Rules(opt_in=(("team", "ads"),), opt_out=(("model", "debug-*"),))
    said = [
        rules.why_not({"job": "a", "team": team, "model": model}, salt="s")
        for team, model in (("ads", "cvr"), ("ads", "debug-1"), ("feed", "cvr"))
    ]
    assert [one and one.token for one in said] == [None, "rollout-opted-out", "rollout-not-opted-in"]


@given(words, st.floats(0, 1), st.floats(0, 1))
def test_a_job_that_takes_part_at_one_share_does_so_at_every_larger_one(job, a, b):
    small, large = sorted((a, b))
    if Rules(share=small).why_not({"job": job}, salt="s") is None:
        assert Rules(share=large).why_not({"job": job}, salt="s") is None


@given(words, words, words, st.integers(0, 1000))
def test_the_two_attempts_of_a_pair_get_one_policy_each(salt, job, config, pair):
    assert {turn(salt, job, config, 2 * pair), turn(salt, job, config, 2 * pair + 1)} == set(Arm)


def test_lots_are_even_and_the_same_on_every_machine():
    assert coin("a", 1) == pytest.approx(0.0221, abs=1e-4)
    first = [turn("s", f"job-{i}", "", 0) is Arm.CANDIDATE for i in range(2000)]
    assert 0.46 < np.mean(first) < 0.54


def test_all_attempts_run_the_baseline_until_the_noise_is_known():
    rollout = noisy(7)
    policy, reason = next_policy(rollout, judge(rollout), {"job": "x"}, number=0, config="")
    assert (policy, reason.token) == (Arm.BASELINE, "rollout-noise-first")
    assert "7 of 8" in str(reason)


def test_a_pair_that_began_in_a_a_ends_so():
    job = next(f"j{i}" for i in range(99) if turn("trial", f"j{i}", "", 0) is Arm.CANDIDATE)
    began = replace(noisy(8), attempts=(*noisy(8).attempts, attempt(job, 0, 100.0)))
    assert next_policy(began, judge(began), {"job": job}, number=1, config="")[0] is Arm.BASELINE
    assert {next_policy(began, judge(began), {"job": job}, number=n, config="")[0] for n in (2, 3)} == set(Arm)


def test_after_the_end_everyone_gets_what_was_found_and_the_opted_out_do_not():
    better = tried(noisy(8), *[1.3] * 12)
    assert judge(better).status is RolloutStatus.ROLL_OUT
    assert next_policy(better, judge(better), {"job": "new"}, number=0, config="")[0] is Arm.CANDIDATE
    out = replace(better, rules=Rules(opt_out=(("job", "new"),)))
    assert next_policy(out, judge(out), {"job": "new"}, number=0, config="")[0] is Arm.BASELINE
    worse = tried(noisy(8), *[0.95] * 40)
    assert judge(worse).status is RolloutStatus.ROLL_BACK
    assert {next_policy(worse, judge(worse), {"job": "job"}, number=n, config="")[0] for n in (98, 99)} == {
        Arm.BASELINE
    }


# Which attempts compare.


def test_attempts_pair_by_job_configuration_and_turn_only():
    rollout = Rollout(
        PLAN,
        attempts=(
            attempt("a", 0, 100.0),
            attempt("b", 1, 50.0, "candidate"),
            attempt("a", 1, 110.0, "candidate"),
            attempt("b", 2, 70.0),
            attempt("c", 0, 10.0, config="8 hosts"),
            attempt("c", 1, 20.0, "candidate", config="16 hosts"),
        ),
    )
    (pair,) = pairs_of(rollout)
    assert (pair.job, pair.is_ab, pair.change) == ("a", True, pytest.approx(math.log(1.1)))


def test_a_shorter_step_is_a_better_one():
    attempts = (attempt("a", 0, 2.0), attempt("a", 1, 1.0, "candidate"))
    for unit, change in ((Unit.STEP_TIME, math.log(2)), (Unit.QPS, -math.log(2))):
        (pair,) = pairs_of(Rollout(replace(PLAN, unit=unit), attempts=attempts))
        assert pair.change == pytest.approx(change)


def test_an_attempt_that_ran_under_another_policy_than_told_is_left_out():
    rollout = replace(tried(noisy(8), 1.2), assigned={("job", 1): Arm.BASELINE})
    assert (rollout.strayed, len(judge(rollout).ab)) == (1, 0)


values = st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=1, max_size=30)


@given(values, st.data())
def test_the_order_in_which_the_attempts_of_a_pair_are_recorded_does_not_matter(pairs, data):
    one, other = list(noisy(8).attempts), list(noisy(8).attempts)
    for i, (first, second) in enumerate(pairs):
        both = [attempt("x", 2 * i, first), attempt("x", 2 * i + 1, second, "candidate")]
        one += both
        other += both[::-1] if data.draw(st.booleans()) else both
    assert judge(Rollout(PLAN, attempts=tuple(one))) == judge(Rollout(PLAN, attempts=tuple(other)))


# When it stops.


def test_a_b_pairs_from_before_the_noise_was_known_count_for_nothing():
    early = tried(Rollout(PLAN), *[3.0] * 10, job="early")
    rollout = replace(early, attempts=(*early.attempts, *noisy(8).attempts))
    assert judge(rollout).ab == ()
    assert judge(rollout).noise == judge(noisy(8)).noise


def test_what_stopped_stays_stopped_whatever_comes_after():
    worse = judge(tried(noisy(8), *[0.95] * 40))
    assert worse.status is RolloutStatus.ROLL_BACK
    assert judge(tried(noisy(8), *[0.95] * len(worse.ab), *[2.0] * 30)) == worse


def test_pairs_beyond_those_that_were_planned_are_not_looked_at():
    full = tried(noisy(8), *[1.06, 0.95] * 20)
    assert judge(full).reason.token == "rollout-undecided"
    more = tried(full, *[0.2] * 50, job="later")
    assert judge(more) == judge(full)


def test_a_job_that_loses_much_twice_in_a_row_goes_back_and_others_go_on():
    rollout = tried(noisy(8), 0.5, 1.0, 0.5, job="unlucky")
    assert judge(rollout).jobs_back == ()
    rollout = tried(noisy(8), 1.0, 0.5, 0.5, job="hurt")
    verdict = judge(rollout)
    assert (verdict.jobs_back, verdict.status) == (("hurt",), RolloutStatus.RUNNING)
    assert next_policy(rollout, verdict, {"job": "hurt"}, number=7, config="")[1].token == "rollout-job-back"
    assert next_policy(rollout, verdict, {"job": "other"}, number=7, config="")[1].token == "rollout-turn"


def test_three_jobs_that_go_back_take_the_roll_out_with_them():
    rollout = noisy(8)
    for job in "abc":
        assert judge(rollout).status is RolloutStatus.RUNNING
        rollout = tried(rollout, 0.4, 0.4, job=job)
    # A mean of good jobs does not hide them.
    verdict = judge(tried(rollout, 3.0, 3.0, job="fine"))
    assert (verdict.status, verdict.reason.token) == (RolloutStatus.ROLL_BACK, "rollout-jobs-worse")


def test_a_candidate_that_crashes_attempts_goes_back():
    rollout = noisy(8)
    for i in range(12):
        rollout = tried(rollout, None, 1.0, job=f"job-{i}")
    verdict = judge(rollout)
    assert (verdict.status, verdict.reason.token) == (RolloutStatus.ROLL_BACK, "rollout-crashes")
    assert verdict.failed_candidate < 12


def test_equal_policies_are_told_to_be_equal():
    rollout = tried(noisy(8, plan=replace(PLAN, ab_pairs=400)), *[1.0005, 0.9995] * 200)
    verdict = judge(rollout)
    assert (verdict.status, verdict.reason.token) == (RolloutStatus.NO_DIFFERENCE, "rollout-no-difference")


def test_a_stop_by_hand_wins_unless_it_went_back_before():
    assert judge(replace(noisy(2), is_stopped=True)).status is RolloutStatus.STOPPED
    assert judge(replace(tried(noisy(8), *[0.95] * 40), is_stopped=True)).status is RolloutStatus.ROLL_BACK


# How often it errs.


def test_noise_that_grows_after_a_a_takes_no_job_back():
    # The guard goes by what is seen meanwhile: three standard deviations of this A/A are less than one of A/B.
    rng = np.random.default_rng(5)
    for _ in range(8):
        rollout = noisy(8, plan=replace(PLAN, ab_pairs=200))
        for _ in range(15):
            for j in range(10):
                rollout = tried(rollout, float(np.exp(0.12 * rng.normal())), job=f"job-{j}")
        assert judge(rollout).status is not RolloutStatus.ROLL_BACK


def test_equal_policies_are_rejected_no_more_often_than_alpha_however_often_one_looks():
    # Heavy tails, a scale that changes, and a rho that is ten times off: the test may not care.
    rng = np.random.default_rng(20)
    runs, pairs, alpha = 2000, 300, 0.05
    scale = np.exp(rng.normal(size=(runs, pairs)))
    x = 0.04 * scale * rng.standard_t(2, size=(runs, pairs))
    for factor in (0.1, 1.0, 10.0):
        rho = factor * rho_of(0.04, pairs, alpha=alpha)
        wrong = [log_evidence(row, rho=rho).max() >= math.log(1 / alpha) for row in x]
        assert np.mean(wrong) <= alpha


@pytest.mark.long("forty simulated roll-outs")
def test_under_a_a_the_whole_procedure_errs_no_more_often_than_alpha():
    ends = [simulated(seed, 0.0)[1].status for seed in range(40)]
    assert sum(end in (RolloutStatus.ROLL_OUT, RolloutStatus.ROLL_BACK) for end in ends) <= 2


@pytest.mark.long("36 simulated roll-outs")
def test_a_larger_effect_is_found_more_often_and_sooner():
    found = {}
    for effect in (0.01, 0.02, 0.04):
        ends = [simulated(seed, effect)[1] for seed in range(12)]
        found[effect] = (
            sum(end.status is RolloutStatus.ROLL_OUT for end in ends),
            -np.mean([len(end.ab) for end in ends]),
        )
    assert found[0.01] < found[0.02] < found[0.04]
    assert found[0.04][0] == 12


def test_harm_to_some_jobs_or_crashes_are_found_though_the_rest_gains():
    verdict = simulated(1, 0.02, hurt=("job-1", "job-2", "job-3"))[1]
    assert verdict.status is RolloutStatus.ROLL_BACK
    verdict = simulated(2, 0.0, crashes=0.3)[1]
    assert (verdict.status, verdict.reason.token) == (RolloutStatus.ROLL_BACK, "rollout-crashes")


@pytest.mark.long("twenty simulated roll-outs")
def test_drift_from_attempt_to_attempt_moves_no_verdict():
    # 5 % an attempt, more than the effect: the lot that orders a pair takes it out.
    ends = [simulated(seed, 0.0, drift=0.05)[1] for seed in range(20)]
    assert sum(end.status in (RolloutStatus.ROLL_OUT, RolloutStatus.ROLL_BACK) for end in ends) <= 1
    report = report_of(simulated(0, 0.0, drift=0.05)[0])
    assert report.drift == pytest.approx(1.05, abs=0.03)


changes = st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=60)


@examples(50)
@given(changes, st.floats(-0.3, 0.3))
def test_the_interval_moves_with_the_changes_and_holds_what_is_not_rejected(x, shift):
    rho = rho_of(0.1, 100, alpha=0.05)
    low, high = interval(x, rho=rho, alpha=0.05)
    assert low <= np.mean(x) <= high
    if low > 0 or high < 0:
        assert log_evidence(x, rho=rho)[-1] >= math.log(20) - 1e-6
    moved = interval(np.array(x) + shift, rho=rho, alpha=0.05)
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-6)


def test_the_interval_always_held_the_truth_in_all_but_alpha_of_the_runs():
    rng = np.random.default_rng(3)
    rho = rho_of(0.1, 60, alpha=0.05)
    misses = 0
    for _ in range(60):
        x = 0.03 + 0.1 * rng.standard_t(3, size=60)
        ends = [interval(x[:n], rho=rho, alpha=0.05) for n in range(5, 61, 5)]
        misses += any(not low <= 0.03 <= high for low, high in ends)
    assert misses <= 0.05 * 60


def test_one_pair_says_nothing_and_many_say_more():
    rho = rho_of(0.1, 100, alpha=0.05)
    assert interval([], rho=rho, alpha=0.05) == (-math.inf, math.inf)
    assert interval([0.1], rho=rho, alpha=0.05) == (-math.inf, math.inf)
    low, high = interval([0.1, -0.1] * 50, rho=rho, alpha=0.05)
    assert -0.06 < low < 0 < high < 0.06


@given(st.integers(0, 200), st.integers(0, 200))
def test_failures_speak_the_same_of_both_sides_and_even_ones_of_none(a, b):
    assert log_failure_evidence(a, b) == pytest.approx(log_failure_evidence(b, a))
    assert log_failure_evidence(a, a) <= 1e-9


def test_capacity_saved_weighs_jobs_by_their_devices():
    rollout = noisy(8)
    for job, ratio, devices in (("big", 1.25, 300), ("small", 1.0, 100)):
        pair = (
            attempt(job, 0, 100.0, devices=devices),
            attempt(job, 1, 100 * ratio, "candidate", devices=devices),
        )
        rollout = replace(rollout, attempts=(*rollout.attempts, *pair))
    saved = report_of(rollout).saved
    assert saved is not None
    assert saved.estimate == pytest.approx(0.75 * (1 - 1 / 1.25))  # 300 of 400 devices do 1.25 times the work
    assert saved.low == 0.0
