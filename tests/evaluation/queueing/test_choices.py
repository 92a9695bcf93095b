from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.queueing.choices import PRICE, Choose, batch, choices, scheduler
from strata.evaluation.queueing.grid import STEP_S, Grid
from strata.evaluation.queueing.job import QueuedJob
from strata.evaluation.queueing.placing import FIXED, GREEDY_SPAN, best_fit, greedy_span
from strata.evaluation.queueing.run import simulate, together
from strata.evaluation.queueing.snapshot import QueueSnapshot, RunningJob
from strata.evaluation.queueing.sweep import gain, regular_grid, sweep
from strata.evaluation.queueing.trace import QueueTrace, draw
from strata.fleet.dynamics.regimes import Regimes
from strata.training.replan import rules
from strata.training.replan.options import Options
from tests.support.laws import examples

EPISODES = Regimes((20_000.0, 2000.0, 2000.0), factors=(1.0, 0.5, 0.15))
GRID = Grid.alike(3, 8, gbps=10.0, latency_s=0.01, dynamics=EPISODES)


def job(nodes: int = 4, *, number: int = 0, run_s: float = 10_000.0, gradient_bytes: float = 4e9) -> QueuedJob:
    return QueuedJob(number, 0.0, 0, nodes, nodes * run_s, nodes * run_s, math.inf, gradient_bytes, 10.0)


def runs(nodes: int, domain: int, left_s: float, *, number: int = 9) -> RunningJob:
    return RunningJob(job(nodes, number=number, run_s=left_s), ((domain, nodes),), (), 1.0, 0.0, nodes * left_s)


def asked(free: tuple[int, ...], one: QueuedJob | None = None, **more: object) -> QueueSnapshot:
    fields = {"regimes": (0, 0, 0), "sharing": (0, 0, 0), "running": ()} | more
    return QueueSnapshot(GRID, 0.0, one or job(), free, **fields)


def placements(snapshot: QueueSnapshot) -> list[object]:
    return [choice.placement for choice in choices(snapshot)]


def now(snapshot: QueueSnapshot) -> list[float]:
    found = choices(snapshot)
    return batch([snapshot], [found]).value[0, :, 0].tolist()


def test_a_job_may_wait_or_take_a_domain_the_least_left_over_first_or_span() -> None:
    found = placements(asked((5, 4, 3)))
    assert found[:3] == [None, ((1, 4),), ((0, 4),)]
    assert {((0, 1), (2, 3)), ((1, 1), (2, 3)), ((0, 1), (1, 3))} == {p if len(p) > 1 else None for p in found[3:]}


def test_a_span_slower_than_half_is_not_offered() -> None:
    heavy = job(6, gradient_bytes=1e13)
    assert len(placements(asked((4, 4, 0), job(6)))) == 2
    assert placements(asked((4, 4, 0), heavy)) == [None]


def test_jobs_behind_price_the_nodes_unless_they_may_not_overtake() -> None:
    behind = (job(2, number=1), job(1, number=2))
    alone, wanted = now(asked((4, 0, 0))), now(asked((4, 0, 0), behind=behind))
    assert wanted[1] == pytest.approx(alone[1] - PRICE * 3 / 4)
    assert now(asked((4, 0, 0), behind=behind, is_strict=True)) == alone


def test_waiting_is_worth_a_domain_from_the_step_some_domain_has_room() -> None:
    snapshot = asked((2, 2, 0), running=(runs(6, 0, 1.2 * STEP_S), runs(6, 1, 100 * STEP_S)))
    assert choices(snapshot)[0].own == (0.0, 0.0, 4.0, 4.0, 4.0)


def test_holes_that_jobs_behind_would_fill_are_no_room() -> None:
    soon = (runs(3, 0, 0.5 * STEP_S),)
    assert choices(asked((2, 2, 0), running=soon))[0].own[1] == 4.0
    filled = asked((2, 2, 0), running=soon, behind=(job(8, number=1),))
    assert choices(filled)[0].own == (0.0,) * 5


def test_an_overdue_job_is_not_expected_to_end_at_once() -> None:
    overdue = replace(runs(6, 0, 20 * STEP_S), told_left_node_s=0.0)
    assert choices(asked((2, 2, 0), running=(overdue,)))[0].own == (0.0, 0.0, 0.0, 0.0, 4.0)


def test_a_span_pays_for_what_a_job_on_the_same_link_loses() -> None:
    other = job(4, number=1, gradient_bytes=2e10)
    speed = GRID.speed(other, (0,), bandwidth_bytes_per_s=(1.25e9,) * 3, sharing=(1, 0, 0))
    spanning = RunningJob(other, ((0, 2), (1, 2)), (0,), speed, 0.0, 1e5)
    shared = choices(asked((2, 2, 0), running=(spanning,), sharing=(1, 0, 0)))[1]
    halved = GRID.speed(other, (0,), bandwidth_bytes_per_s=(1.25e9,) * 3, sharing=(2, 0, 0))
    assert shared.harm == pytest.approx(4 * (speed - halved))
    assert shared.harm > 0


def test_a_running_job_keeps_or_moves_at_the_price_of_a_restart() -> None:
    current = RunningJob(job(), ((0, 2), (1, 2)), (0,), 0.5, 0.0, 4e4)
    found = choices(asked((4, 2, 0), current=current))
    assert [choice.placement for choice in found] == [None, ((0, 4),)]
    # Into a domain that holds a copy nothing is moved.
    assert found[1].cost == pytest.approx(4 * GRID.restart_s / STEP_S)
    assert found[0].cost == 0.0


def test_a_move_that_cannot_pay_back_is_not_offered() -> None:
    nearly_done = RunningJob(job(), ((0, 2), (1, 2)), (0,), 0.5, 0.0, 4 * 100.0)
    assert placements(asked((4, 2, 0), current=nearly_done)) == [None]


def test_a_stopped_span_may_move_only_where_its_checkpoint_can_go() -> None:
    cut = replace(GRID, dynamics=Regimes((1e6, 1e6), factors=(1.0, 0.0)))
    stopped = RunningJob(job(), ((0, 2), (1, 2)), (0,), 0.0, 0.0, 4e4)
    dead = replace(asked((2, 2, 4), current=stopped), grid=cut, regimes=(1, 1, 1))
    assert placements(dead) == [None]
    assert ((2, 4),) in placements(replace(dead, regimes=(1, 0, 0)))


def test_a_pick_that_is_no_option_is_answered_by_greedy_span() -> None:
    snapshot = asked((3, 2, 3))
    lost = scheduler(lambda options: np.full(len(options), 10**6))
    assert lost.place([snapshot]) == [greedy_span(snapshot)]


def test_no_policy_is_asked_where_there_is_one_answer() -> None:
    def never(options: Options) -> np.ndarray:
        raise AssertionError("nothing to choose")

    fits = asked((5, 4, 3))
    assert scheduler(never).place([asked((1, 1, 1)), fits]) == [None, best_fit(fits)]


def anything(seed: int) -> Choose:
    return rules.random(np.random.default_rng(seed))


@examples(15)
@given(seed=st.integers(0, 10**6), load=st.sampled_from((0.6, 1.2)))
def test_whatever_the_policy_picks_all_work_is_done_once(seed: int, load: float) -> None:
    def sizes(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.integers(1, 9, count), rng.uniform(600.0, 9000.0, count)

    rng = np.random.default_rng(seed)
    trace = draw(GRID, load=load, jobs=30, skew=1.0, sizes=sizes, rng=rng, links_of=rng, largest=1.0)
    whole = replace(trace, start_s=0.0, end_s=1e12)
    here = scheduler(anything(seed))
    answer = together([simulate(GRID, whole, here, drain=True)], here)[0]
    assert answer.useful_node_s == pytest.approx(sum(one.work_node_s for one in trace.jobs), rel=1e-9)
    assert max(answer.ended) < 1e12


def test_a_sweep_pairs_schedulers_by_trace_and_only_home_queues_see_the_skew() -> None:
    grid = regular_grid()
    both = [*FIXED, scheduler(rules.mpc(8))]
    even = sweep(both, grid=grid, skew=1.0, seeds=range(3), loads=(0.9,), jobs=60)
    uneven = sweep(both, grid=grid, skew=2.63, seeds=range(3), loads=(0.9,), jobs=60)
    for name in ("worst_fit", "mast_like", "greedy_span", "hi_ppo"):
        assert np.array_equal(even.of(name), uneven.of(name))
    assert not np.array_equal(even.of("home_domain"), uneven.of("home_domain"))
    assert even.of("mast_like", "goodput").shape == (1, 3)


def test_a_gain_is_of_means_and_its_interval_of_pairs() -> None:
    old, new = np.array([[0.2, 0.4]]), np.array([[0.3, 0.6]])
    found = gain(new, old, rng=np.random.default_rng(0))
    assert found.relative.estimate == pytest.approx(0.5)
    assert (found.relative.low, found.relative.high) == pytest.approx((0.5, 0.5))
    assert found.absolute.estimate == pytest.approx(0.15)


def test_a_span_is_merged_when_a_domain_has_room() -> None:
    grid = replace(GRID, dynamics=Regimes((1e9, 1.0), factors=(1.0, 0.5)), local_steps=(1,))
    short = [replace(job(5, number=i, run_s=2000.0), home=i) for i in range(3)]
    long = replace(job(6, number=3, gradient_bytes=8e9), arrival_s=10.0)
    trace = QueueTrace((*short, long), ((0, 0, 0),), 0.0, 1e6)
    left_alone, merged = (
        together([simulate(grid, trace, one, drain=True)], one)[0]
        for one in (GREEDY_SPAN, scheduler(rules.hysteresis()))
    )
    assert (left_alone.spans, left_alone.moves, merged.spans, merged.moves) == (1, 0, 1, 1)
    # It starts at 10 s at speed .61; at the next look after 2000 s, at 2400 s, it stops for the restart.
    slow = 10.0 / (10.0 + 8e9 / 1.25e9 + 2 * 0.01)
    assert merged.ended[3] == pytest.approx(2400.0 + 120.0 + 10_000.0 - 2390.0 * slow)
    assert merged.ended[3] < left_alone.ended[3]
