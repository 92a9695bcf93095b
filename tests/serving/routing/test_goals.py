"""Admission by goal, played through the live core on a model of the nodes: what is let in is served in time."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest

from strata.serving.live.config import SchedulerConfig
from strata.serving.replay.record import OUTCOMES
from strata.serving.replay.setup import replay_job
from strata.workload.requests import Request, arrivals
from strata.workload.serving_job import Demand, ServingJob
from tests.serving.live.cluster import llama, node

DEMAND = Demand(16, 1000, 200, ttft_goal_s=1.0, tpot_goal_s=0.05)


def played(strategy: str, rate: float) -> dict[str, np.ndarray]:
    """30 s on a fast, a middling and a slow node, each of which holds the model."""
    rng = np.random.default_rng(1)
    times = takewhile(lambda at: at < 30.0, arrivals(rng, rate))
    asked = [Request(at, int(rng.integers(100, 2000)), int(rng.integers(20, 400))) for at in times]
    run, _ = replay_job(
        [node(name, gb=40.0, speed=speed) for name, speed in (("fast", 4.0), ("middling", 2.0), ("slow", 1.0))],
        ServingJob("test", llama(), DEMAND),
        asked,
        config=SchedulerConfig("auto", strategy),
        start_s=0.0,
        end_s=30.0,
    )
    assert run.run()
    run.close()
    record = run.record
    is_served = np.array(record.outcome) == OUTCOMES.index("served")
    ttft_s, tpot_s = np.array(record.ttft_s)[is_served], np.array(record.tpot_s)[is_served]
    assert not (np.array(record.outcome) == OUTCOMES.index("unfinished")).any()
    good = (ttft_s <= DEMAND.ttft_goal_s) & ~(tpot_s > DEMAND.tpot_goal_s)
    return {"good": good, "ttft_s": ttft_s, "tpot_s": tpot_s, "share": good.sum() / len(asked)}


@pytest.mark.long("serves thousands of requests")
@pytest.mark.parametrize("rate", [30.0, 40.0])
def test_beyond_what_a_pool_can_do_the_goals_of_those_let_in_are_met(rate):
    ours, turns = played("auto", rate), played("rr", rate)
    assert ours["good"].mean() > 0.7
    assert np.quantile(ours["ttft_s"], 0.95) < 1.1 * DEMAND.ttft_goal_s
    assert ours["good"].sum() > 3 * turns["good"].sum()


def test_within_it_nearly_nobody_is_refused_and_the_goals_are_met():
    assert played("auto", 5.0)["share"] > 0.97
