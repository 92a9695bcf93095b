from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.queueing.grid import STEP_S, Grid
from strata.evaluation.queueing.job import QueuedJob
from strata.evaluation.queueing.outcome import QueueOutcome
from strata.evaluation.queueing.placing import FIXED, GREEDY_SPAN, HOME, MAST_LIKE, WORST_FIT, each
from strata.evaluation.queueing.run import simulate, together
from strata.evaluation.queueing.snapshot import QueueScheduler, QueueSnapshot
from strata.evaluation.queueing.trace import QueueTrace, draw
from strata.fleet.dynamics.regimes import Regimes
from tests.support.laws import examples

CALM = Regimes((1e9, 1.0), factors=(1.0, 0.5))


def grid(domains: int = 2, nodes: int = 4, **more: object) -> Grid:
    return Grid.alike(domains, nodes, gbps=10.0, latency_s=0.01, dynamics=CALM, **more)


def job(number: int, arrival_s: float, nodes: int, run_s: float, *, home: int = 0, **more: float) -> QueuedJob:
    work_s = nodes * run_s
    deadline_s, gradient_bytes = more.get("deadline_s", math.inf), more.get("gradient_bytes", 1e9)
    return QueuedJob(number, arrival_s, home, nodes, work_s, work_s, deadline_s, gradient_bytes, 10.0)


def trace(*jobs: QueuedJob, end_s: float = 10_000.0, links: int = 1) -> QueueTrace:
    return QueueTrace(jobs, ((0,) * links,), 0.0, end_s)


def run(here: Grid, jobs: QueueTrace, scheduler: QueueScheduler, *, drain: bool = True) -> QueueOutcome:
    return together([simulate(here, jobs, scheduler, drain=drain)], scheduler)[0]


def small_sizes(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(1, 7, count), rng.uniform(100.0, 5000.0, count)


def drawn(seed: int, *, load: float = 0.9, jobs: int = 40, domains: int = 3) -> tuple[Grid, QueueTrace]:
    changing = Regimes((3000.0, 1500.0, 1000.0), factors=(1.0, 0.5, 0.15))
    here = Grid.alike(domains, 6, gbps=10.0, latency_s=0.01, dynamics=changing)
    rng = np.random.default_rng(seed)
    return here, draw(
        here, load=load, jobs=jobs, skew=1.5, sizes=small_sizes, rng=rng, links_of=np.random.default_rng(seed)
    )


def test_a_job_waits_at_home_while_another_domain_is_empty() -> None:
    jobs = trace(job(0, 0.0, 4, 1000.0), job(1, 10.0, 4, 1000.0))
    assert run(grid(), jobs, HOME).started == (0.0, 1000.0)
    assert run(grid(), jobs, MAST_LIKE).started == (0.0, 10.0)


def test_worst_fit_breaks_the_hole_that_best_fit_keeps() -> None:
    jobs = trace(job(0, 0.0, 1, 1000.0), job(1, 1.0, 1, 1000.0), job(2, 2.0, 4, 1000.0))
    assert run(grid(), jobs, MAST_LIKE).started[2] == 2.0
    assert run(grid(), jobs, WORST_FIT).started[2] > 2.0


def test_greedy_span_takes_two_domains_only_where_one_does_not_hold_the_job() -> None:
    jobs = trace(job(0, 0.0, 2, 1000.0), job(1, 1.0, 2, 1000.0), job(2, 2.0, 2, 1000.0), job(3, 3.0, 2, 5000.0))
    assert run(grid(), jobs, GREEDY_SPAN).spans == 0
    split = trace(job(0, 0.0, 3, 1000.0), job(1, 1.0, 3, 1000.0), job(2, 2.0, 2, 1000.0))
    answer = run(grid(), split, GREEDY_SPAN)
    assert answer.spans == 1
    assert answer.started[2] == 2.0


def test_a_spanning_job_takes_as_long_as_the_step_model_says() -> None:
    here = grid(local_steps=(1,))
    big = job(0, 0.0, 6, 1000.0, gradient_bytes=2e9)
    # Two members: a ring of g bytes takes g / B + 2 L.
    sum_s = 2e9 / 1.25e9 + 2 * 0.01
    assert run(here, trace(big), GREEDY_SPAN).ended[0] == pytest.approx(1000.0 * (10.0 + sum_s) / 10.0)


def test_two_jobs_on_one_link_get_half_of_it_each() -> None:
    here = grid(nodes=4, local_steps=(1,))
    alone = here.speed(job(0, 0.0, 2, 1.0), (0,), bandwidth_bytes_per_s=(1e9,), sharing=(1,))
    both = here.speed(job(0, 0.0, 2, 1.0), (0,), bandwidth_bytes_per_s=(2e9,), sharing=(2,))
    assert alone == both < 1.0


def test_a_dead_link_stops_a_synchronous_job_until_it_works_again() -> None:
    here = replace(grid(local_steps=(1,)), dynamics=Regimes((1e6, 1e6), factors=(1.0, 0.0)))
    regimes = ((0,), (1,), (0,), *((0,) for _ in range(20)))
    big = replace(job(0, 0.0, 6, 1000.0), gradient_bytes=0.0)
    answer = run(here, QueueTrace((big,), regimes, 0.0, 1e4), GREEDY_SPAN)
    no_bytes_s = 1000.0 * (10.0 + 2 * 0.01) / 10.0
    assert answer.ended[0] == pytest.approx(no_bytes_s + STEP_S)


def test_jobs_that_fit_overtake_until_the_head_has_lost_patience() -> None:
    blocked = job(1, 1.0, 4, 100.0)
    jobs = trace(job(0, 0.0, 3, 2000.0), blocked, job(2, 2.0, 1, 1000.0), job(3, 1500.0, 1, 1000.0))
    alone = grid(domains=2, nodes=4)
    home = replace(HOME, patience_s=1000.0)
    answer = run(alone, jobs, home)
    assert answer.started == (0.0, 2000.0, 2.0, 2100.0)
    assert run(alone, jobs, replace(HOME, backfill=False)).order == (0, 1, 2, 3)


def test_a_moved_job_pays_the_restart_and_the_bytes_it_moves() -> None:
    def there_then_away(snapshot: QueueSnapshot) -> tuple[tuple[int, int], ...]:
        return ((0, 2), (1, 2)) if snapshot.current is None else ((2, 4),)

    here = grid(domains=3, local_steps=(1,))
    one = job(0, 0.0, 4, 1000.0, gradient_bytes=0.0)
    answer = run(here, trace(one, links=3), QueueScheduler("away", each(there_then_away), has_moves=True))
    slow = 10.0 / (10.0 + 2 * 0.01)
    assert answer.moves == 1
    assert answer.ended[0] == pytest.approx(STEP_S + 120.0 + (1000.0 - STEP_S * slow))


def test_what_is_outside_the_window_does_not_count() -> None:
    jobs = QueueTrace((job(0, 0.0, 4, 1000.0),), ((0,),), 500.0, 2500.0)
    answer = run(grid(), jobs, MAST_LIKE, drain=False)
    assert answer.utilization == pytest.approx(4 * 500.0 / (8 * 2000.0))
    assert answer.goodput == pytest.approx(4 * 1000.0 / (8 * 2000.0))


def test_a_missed_deadline_is_no_goodput() -> None:
    late = job(0, 0.0, 4, 1000.0, deadline_s=900.0)
    answer = run(grid(), trace(late), MAST_LIKE, drain=False)
    assert (answer.goodput, answer.deadline_misses) == (0.0, 1.0)


def test_the_most_demanded_home_is_asked_for_the_skew_times_its_share() -> None:
    (here, _), rng = drawn(0, domains=4), np.random.default_rng(1)
    jobs = draw(here, load=1.0, jobs=20_000, skew=2.63, sizes=small_sizes, rng=rng, links_of=rng)
    homes = np.bincount([one.home for one in jobs.jobs], minlength=4)
    assert homes[0] / homes.mean() == pytest.approx(2.63, rel=0.02)
    with pytest.raises(ValueError, match="skew"):
        draw(here, load=1.0, jobs=2, skew=4.0, sizes=small_sizes, rng=rng, links_of=rng)


@examples(15)
@given(seed=st.integers(0, 10**6), which=st.sampled_from(FIXED), load=st.sampled_from((0.5, 1.2)))
def test_all_work_is_done_once_and_nothing_starts_before_it_arrives(
    seed: int, which: QueueScheduler, load: float
) -> None:
    here, jobs = drawn(seed, load=load)
    # Nodes given twice and work left at the end of a job are asserted inside.
    whole = replace(jobs, start_s=0.0, end_s=1e12)
    answer = run(here, whole, which)
    work = sum(one.work_node_s for one in jobs.jobs)
    assert answer.useful_node_s == pytest.approx(work, rel=1e-9)
    assert answer.held * 1e12 * sum(here.nodes) >= work * (1 - 1e-9)
    for one, start_s, end_s in zip(jobs.jobs, answer.started, answer.ended, strict=True):
        assert one.arrival_s <= start_s
        assert end_s - start_s >= one.work_node_s / one.nodes * (1 - 1e-9)


@examples(15)
@given(seed=st.integers(0, 10**6), which=st.sampled_from((WORST_FIT, MAST_LIKE, GREEDY_SPAN)))
def test_without_backfill_jobs_start_in_order_of_arrival(seed: int, which: QueueScheduler) -> None:
    here, jobs = drawn(seed, load=1.2)
    answer = run(here, jobs, replace(which, backfill=False))
    assert answer.order == tuple(range(40))
    assert all(a <= b for a, b in pairwise(answer.started))


def test_runs_in_lock_step_give_what_each_gives_alone() -> None:
    pairs = [drawn(seed) for seed in range(4)]
    at_once = together([simulate(here, jobs, GREEDY_SPAN) for here, jobs in pairs], GREEDY_SPAN)
    assert at_once == [run(here, jobs, GREEDY_SPAN, drain=False) for here, jobs in pairs]
