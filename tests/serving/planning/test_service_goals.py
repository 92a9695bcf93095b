"""Goodput: what is served within goals for the first token and for each after it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.layout import Line
from strata.serving.planning.allocate import allocate
from strata.serving.planning.allocation import goodput
from strata.serving.planning.goal import Goal
from strata.serving.planning.pool import NodePool
from strata.serving.planning.service import ServiceGoals
from tests.serving.planning.pools import node, pool, random_pool
from tests.serving.replay.worlds import pipeline, replay
from tests.support.laws import examples


def with_goals(
    one: NodePool, *, ttft_s: float = math.inf, tpot_s: float = math.inf, prompt: float = 20.0
) -> NodePool:
    """A prompt takes as long as so many decode steps, which take as long for any number of sequences."""
    prompts = tuple(tuple(s * prompt for s in each.prefix_s) for each in one.nodes)
    fixed = tuple(each.prefix_s for each in one.nodes)
    return replace(one, service=ServiceGoals(prompts, one.hop_s, fixed, 0.0, ttft_s, tpot_s))


def served(one: NodePool, goal: Goal) -> float:
    answer = goodput(one, allocate(one, goal=goal).pipelines)
    assert answer is not None
    return answer


@given(st.integers(0, 1000), st.floats(0.02, 0.5), st.floats(0.01, 0.3))
@examples(25)
def test_planning_for_goals_serves_at_least_as_much_within_them_as_planning_for_anything_else(
    seed, ttft_s, tpot_s
):
    one = with_goals(random_pool(seed, num_nodes=6, layers=12), ttft_s=ttft_s, tpot_s=tpot_s)
    best = served(one, Goal.GOODPUT)
    assert one.service.has_goals
    for goal in (Goal.BOTH, Goal.THROUGHPUT, Goal.LATENCY):
        assert best >= 0.97 * served(one, goal)


@given(st.integers(0, 1000))
@examples(15)
def test_without_limits_every_token_counts_and_with_them_never_more(seed):
    one = random_pool(seed, num_nodes=6, layers=12)
    free = allocate(with_goals(one), goal=Goal.THROUGHPUT)
    assert goodput(with_goals(one), free.pipelines) == pytest.approx(free.performance.tokens_per_s)
    tight = with_goals(one, ttft_s=0.1, tpot_s=0.05)
    assert goodput(tight, free.pipelines) <= free.performance.tokens_per_s * (1 + 1e-9)


@given(st.floats(0.001, 10.0), st.floats(0.001, 10.0), st.floats(1.0, 3.0))
def test_looser_goals_never_serve_less(ttft_s, tpot_s, looser):
    one = random_pool(3, num_nodes=4, layers=8)
    members, counts = [0, 1], [4, 4]
    tight = with_goals(one, ttft_s=ttft_s, tpot_s=tpot_s).service
    loose = with_goals(one, ttft_s=ttft_s * looser, tpot_s=tpot_s * looser).service
    around = {"batch": 8, "steps_s": [0.01, 0.008], "cycle_s": 0.002, "slots": 12}
    assert loose.rate(members, counts, **around) >= tight.rate(members, counts, **around)


def test_a_far_node_is_left_out_where_the_goal_per_token_does_not_bear_its_hop():
    nodes = [node(name, room=5) for name in "abcd"]
    hops = np.full((4, 4), 0.001)
    hops[3, :], hops[:, 3] = 0.2, 0.2
    np.fill_diagonal(hops, 0.0)
    one = with_goals(NodePool.of(nodes, 8, 8, hops), tpot_s=0.05)
    plan = allocate(one, goal=Goal.GOODPUT)
    assert all(stage.node_id != "d" for stages in plan.pipelines for stage in stages)
    assert goodput(one, plan.pipelines) == pytest.approx(plan.performance.tokens_per_s)


def test_prompts_take_their_share_of_the_slowest_stage():
    one = with_goals(random_pool(3, num_nodes=2, layers=8, room=(0.6, 0.9)))
    busy = replace(one, service=replace(one.service, prompts_per_step=0.05))
    plan = allocate(busy, goal=Goal.GOODPUT).pipelines
    # A prompt is 20 steps, and one comes every 20 steps: half the time is theirs, the head's aside.
    assert 0.5 * goodput(one, plan) <= goodput(busy, plan) <= 0.7 * goodput(one, plan)


def rates(fixed_s, each_s, prompt_s, *, hops_s, slots, batch, output, goal_s=math.inf):
    """What a pipeline of one layer a stage serves: as planned, and the most of all batches that keep the goal."""
    stages = range(len(fixed_s))
    service = ServiceGoals(
        tuple((0.0, *np.cumsum([prompt_s[i]] * len(stages))) for i in stages), np.zeros((len(stages),) * 2),
        tuple((0.0, *np.cumsum([fixed_s[i]] * len(stages))) for i in stages), batch / output,
        tpot_goal_s=goal_s,
    )  # fmt: skip
    steps_s = [a + batch * c for a, c in zip(fixed_s, each_s, strict=True)]
    planned = service.rate(
        list(stages), [1] * len(stages), batch=batch, steps_s=steps_s, cycle_s=hops_s, slots=slots,
        is_strict=True,
    )  # fmt: skip

    def at(b):
        times_s = [a + b * (c + p / output) for a, c, p in zip(fixed_s, each_s, prompt_s, strict=True)]
        if sum(times_s) + hops_s - sum(prompt_s) / output > goal_s:
            return 0.0
        return min(b / max(times_s), slots / (sum(times_s) + hops_s))

    return planned, max(at(b) for b in range(1, batch + 1)), max(at(b) for b in np.linspace(1, batch, 2000))


times = st.floats(1e-4, 0.1)


@given(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=6),
    times,
    st.integers(1, 200),
    st.integers(1, 64),
)
def test_as_many_sequences_a_step_are_taken_as_serve_most(stages, hops_s, slots, batch):
    planned, whole, any_ = rates(*zip(*stages, strict=True), hops_s=hops_s, slots=slots, batch=batch, output=50)
    assert planned >= whole * (1 - 1e-9)
    assert planned <= any_ * 1.02


@given(
    st.lists(st.tuples(times, times, times), min_size=1, max_size=6),
    times,
    st.integers(1, 200),
    st.integers(1, 64),
    st.floats(1.0001, 30.0),
)
def test_no_more_sequences_a_step_than_keep_the_goal_of_a_token(stages, hops_s, slots, batch, tight):
    """Pipelines were judged at the demanded batch, and left out where fewer sequences would have kept the goal."""
    fixed_s, each_s, prompt_s = zip(*stages, strict=True)
    least_s = sum(fixed_s) + sum(each_s) + hops_s
    planned, whole, any_ = rates(
        fixed_s, each_s, prompt_s, hops_s=hops_s, slots=slots, batch=batch, output=50, goal_s=tight * least_s
    )
    assert planned >= whole * (1 - 1e-9)
    assert planned <= max(any_, whole) * 1.1
    none, *_ = rates(
        fixed_s, each_s, prompt_s, hops_s=hops_s, slots=slots, batch=batch, output=50, goal_s=0.99 * least_s
    )
    assert none == 0


@pytest.mark.parametrize(
    ("stages", "slots", "prompt_s", "output"),
    [(4, 16, 0.05, 50), (4, 8, 0.1, 50), (4, 32, 0.1, 50), (8, 16, 0.2, 100), (2, 8, 0.2, 30)],
)
def test_goodput_is_what_a_replay_serves_where_kv_memory_keeps_too_few_in_flight(stages, slots, prompt_s, output):
    """Found by simulation: a fifth to a third less was foreseen, as prompts were added to what waited anyway."""
    count, each_s = 20 * slots, 5e-4
    run = replay(
        [(0.0, 200, output)] * count, pipeline(*"abcdefgh"[:stages]), slots=slots, hop=Line(1e-3),
        decode=Line(0.01, each_s), prefill=Line(0.0, prompt_s / 200),
    )  # fmt: skip
    run.run()
    ends_s = np.sort(run.record.latency_s)[[count // 5, 4 * count // 5]]
    served = (4 * count // 5 - count // 5) * output / (ends_s[1] - ends_s[0])
    planned, *_ = rates(
        [0.01] * stages,
        [each_s] * stages,
        [prompt_s] * stages,
        hops_s=stages * 1e-3,
        slots=slots,
        batch=32,
        output=output,
    )
    assert planned == pytest.approx(served, rel=0.1)


def test_a_pool_without_goals_is_planned_for_both():
    one = random_pool(1, num_nodes=6, layers=12)
    assert allocate(one, goal=Goal.GOODPUT).pipelines == allocate(one).pipelines
    assert goodput(one, ()) is None


def test_of_equal_plans_the_one_that_moves_fewest_layers_is_taken():
    alike = pool(*(node(name, room=4) for name in "abcd"), hop_s=0.0)
    held = {"d": (0, 4), "b": (4, 8), "c": (0, 4), "a": (4, 8)}
    for stages in allocate(replace(alike, held=held)).pipelines:
        pair = [stage.node_id for stage in stages]
        assert all(held[s.node_id] == (s.first, s.end) for s in stages) or {"b", "d"} != set(pair)


def test_a_node_that_adds_nothing_is_left_out():
    """The head of one layer and a half bounds the pipeline however many nodes share the layers."""
    nodes = [node(name, room=8, head_s=0.05) for name in "abc"]
    plan = allocate(pool(*nodes, hop_s=0.0), goal=Goal.THROUGHPUT)
    assert [len(stages) for stages in plan.pipelines] == [1, 1, 1]
