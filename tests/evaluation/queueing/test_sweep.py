"""Many jobs through the control loop: every job done, and what the rules differ in."""

from __future__ import annotations

import numpy as np
import pytest

from strata.control.policies import exact
from strata.evaluation.queueing.plans import regular_fleet
from strata.evaluation.queueing.rules import RULES, ours
from strata.evaluation.queueing.sweep import played, sweep
from strata.evaluation.queueing.trace import QueuedJob, QueueTrace, draw, popularity

FLEET = regular_fleet(2, 4)
WAYS = {**RULES, "ours": lambda: ours(exact)}


def figures(rule: str, *jobs: tuple[float, int, int, float]) -> dict[str, float]:
    """Play jobs of (arrival, home, nodes, run time) on two domains of four nodes."""
    return played(FLEET, QueueTrace(tuple(QueuedJob(*job) for job in jobs), 4000.0), WAYS[rule]())


@pytest.mark.parametrize("rule", WAYS)
def test_a_job_alone_takes_its_run_time_under_every_rule(rule):
    found = figures(rule, (0.0, 0, 2, 1000.0))
    assert found["mean_completion_s"] == pytest.approx(1000.0, rel=0.02)
    assert found["utilization"] == pytest.approx(2 * 1000 / (8 * 4000), rel=0.02)


def test_two_jobs_of_one_home_wait_for_each_other_there_and_nowhere_else():
    waits = {rule: figures(rule, (0.0, 0, 4, 1000.0), (1.0, 0, 4, 1000.0))["mean_wait_share"] for rule in WAYS}
    assert waits["home_domain"] == waits["alone"] > 0.2
    assert max(waits[rule] for rule in ("fcfs", "mast_like", "backfill", "ours")) < 0.01


def test_a_short_job_passes_one_that_waits_only_with_backfill():
    jobs = ((0.0, 0, 4, 1000.0), (1.0, 0, 3, 1000.0), (2.0, 0, 4, 1000.0), (3.0, 0, 1, 50.0))
    fcfs, passing = (figures(rule, *jobs)["mean_completion_s"] for rule in ("fcfs", "mast_like"))
    assert fcfs - passing == pytest.approx(1000 / 4, rel=0.1)


def test_another_homes_jobs_are_not_held_up_by_a_home_queue():
    found = figures("home_domain", (0.0, 0, 4, 1000.0), (1.0, 0, 4, 1000.0), (2.0, 1, 1, 100.0))
    assert found["mean_completion_s"] == pytest.approx((1000 + 1999 + 100) / 3, rel=0.02)


def test_what_no_domain_holds_alone_is_shared_by_two_where_that_is_allowed():
    jobs = ((0.0, 0, 3, 1000.0), (1.0, 0, 3, 1000.0), (2.0, 0, 2, 500.0))
    assert figures("backfill", *jobs)["mean_completion_s"] < figures("mast_like", *jobs)["mean_completion_s"]


def test_of_like_domains_the_fullest_that_has_room_is_taken():
    jobs = ((0.0, 0, 3, 1000.0), (1.0, 0, 1, 1000.0), (2.0, 0, 4, 1000.0))
    assert figures("mast_like", *jobs)["mean_wait_share"] < 0.01  # the second one fills up the first's domain


def test_rules_see_the_same_jobs_and_a_seed_repeats():
    first, again = (
        sweep({"fcfs": RULES["fcfs"]}, fleet=FLEET, skew=1.5, seeds=(1,), loads=(0.9,), jobs=12) for _ in range(2)
    )
    assert np.array_equal(first.of("fcfs"), again.of("fcfs"))


def test_a_load_moves_arrivals_together_and_changes_no_job():
    light, heavy = (
        draw((4, 4), load=load, jobs=20, skew=1.5, rng=np.random.default_rng(0)) for load in (0.5, 1.0)
    )
    assert light.end_s == pytest.approx(2 * heavy.end_s)
    assert [job.nodes for job in light.jobs] == [job.nodes for job in heavy.jobs]


def test_the_skew_is_the_share_of_the_first_home_over_the_mean():
    assert popularity(4, skew=2.63)[0] * 4 == pytest.approx(2.63, rel=1e-6)
    with pytest.raises(ValueError, match="skew"):
        popularity(4, skew=4.0)
