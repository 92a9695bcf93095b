"""What a pipeline gets through: the best batch, and what goals and KV memory leave of it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.layout import Layout, Line, StageServer
from strata.serving.planning.estimate import capacity, ttft_s
from strata.workload.serving_job import Demand

ASKED = Demand(batch=8, prompt_tokens=1000, output_tokens=100)
SECONDS = st.floats(1e-4, 0.1)


def servers(*stages, slots=64):
    """Stages of (seconds of a step, more for each sequence, seconds of the prompt)."""
    return [
        StageServer(f"n{i}", i, i + 1, Line(fixed, each), Line(prompt), slots, slots * 1100)
        for i, (fixed, each, prompt) in enumerate(stages)
    ]


def layout(stages, hop_s=0.0):
    names = [server.node_id for server in stages]
    return Layout(len(stages), tuple(stages), (), {(a, b): Line(hop_s) for a in names for b in names if a != b})


def test_one_stage_is_as_good_as_its_largest_batch():
    stages = servers((0.01, 0.0, 0.05))
    step_s = 0.01 + 64 / 100 * 0.05
    found = capacity(layout(stages), stages, ASKED)
    assert found.requests_per_s == pytest.approx(64 / step_s / 100)
    assert found.goodput_per_s == found.requests_per_s


def test_a_goal_per_token_bounds_the_batch():
    stages = servers((0.01, 0.0, 0.05))
    found = capacity(layout(stages), stages, replace(ASKED, tpot_goal_s=0.0251))
    assert found.goodput_per_s == pytest.approx(30 / 0.025 / 100, rel=0.2)
    assert found.requests_per_s > found.goodput_per_s
    assert capacity(layout(stages), stages, replace(ASKED, tpot_goal_s=0.009)).goodput_per_s == 0


def test_a_requests_own_prompt_is_none_of_its_time_per_token():
    """A prompt that takes longer than the goal per token delays its own first token alone."""
    stages = servers((0.01, 0.0, 0.05))
    asked = replace(ASKED, output_tokens=1, tpot_goal_s=0.05)
    assert capacity(layout(stages), stages, asked).goodput_per_s == pytest.approx(1 / 0.06)


def test_first_tokens_that_wait_bound_the_rate():
    stages = servers((0.01, 0.0, 0.05))
    idle_s = ttft_s(layout(stages), stages, ASKED)
    assert idle_s == 0.05
    shares = [
        capacity(layout(stages), stages, replace(ASKED, ttft_goal_s=goal_s)).goodput_per_s
        / capacity(layout(stages), stages, ASKED).requests_per_s
        for goal_s in (idle_s, 2 * idle_s, 10 * idle_s, 1000 * idle_s)
    ]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[1] == pytest.approx(1 / (1 + math.log(20)))
    assert shares[3] == pytest.approx(1, abs=0.01)


def test_long_links_leave_stages_idle_where_memory_is_short():
    stages = servers((0.01, 0.0, 0.001), (0.01, 0.0, 0.001), slots=4)
    far, near = (capacity(layout(stages, hop_s), stages, ASKED).requests_per_s for hop_s in (0.5, 0.0))
    assert far == pytest.approx(4 / 1.02 / 100, rel=1e-3)
    assert near == pytest.approx(4 / 0.02 / 100, rel=1e-2)


@given(
    st.lists(st.tuples(SECONDS, st.floats(0, 0.01), SECONDS), min_size=1, max_size=4),
    st.integers(1, 60),
    st.floats(0, 0.1),
    st.floats(1e-3, 1.0),
)
def test_the_batches_tried_come_near_the_best_of_all(stages, slots, hop_s, tpot_goal_s):
    line = servers(*stages, slots=slots)
    asked = replace(ASKED, tpot_goal_s=tpot_goal_s)
    within = 0.0
    for batch in range(1, slots + 1):
        taken = [fixed + each * batch + batch / 100 * prompt for fixed, each, prompt in stages]
        token_s = sum(taken) + (hop_s * len(stages) if len(stages) > 1 else 0.0)
        if token_s - sum(prompt for _, _, prompt in stages) / 100 <= tpot_goal_s:
            within = max(within, min(batch / max(taken), slots / token_s) / 100)
    found = capacity(layout(line, hop_s), line, asked)
    assert found.goodput_per_s <= within * (1 + 1e-9)
    assert found.goodput_per_s >= within * 0.75
    assert found.goodput_per_s <= found.requests_per_s
