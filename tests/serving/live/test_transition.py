"""What a move costs before it is made: the rollout ahead of time, and plans that are not worth their gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.live.config import SchedulerConfig
from strata.serving.live.instructions import Replan
from strata.serving.live.replan import answer
from strata.serving.live.transition import DRAIN_S, fits_both, load_s, transition
from strata.serving.planning.allocation import Pipeline, Stage
from strata.workload.serving_job import Demand
from tests.serving.live.cluster import DEMAND, llama, node

LAYERS = 32
RATE = 2e9


def pipeline(*names: str, cuts: tuple[int, ...] = (16,)) -> Pipeline:
    ends = (*cuts, LAYERS) if len(names) > 1 else (LAYERS,)
    return tuple(Stage(n, first, end) for n, first, end in zip(names, (0, *ends[:-1]), ends, strict=True))


def spans(current, plan, *, gb: float, horizon_s: float = 600.0):
    """Which pipelines serve for how long, by the names of their nodes and where they are cut."""
    stages = [stage for stages in (*current, *plan) for stage in stages]
    nodes = {stage.node_id: node(stage.node_id, gb=gb) for stage in stages}
    return transition(current, plan, nodes=nodes, model=llama(), reload_bytes_per_s=RATE, horizon_s=horizon_s)


OLD, NEW = pipeline("a", "b"), pipeline("a", "b", cuts=(20,))


def test_a_plan_that_is_there_already_serves_all_the_time():
    assert spans({OLD: 50.0}, [OLD], gb=12.0) == [(600.0, (OLD,))]


def test_old_layers_serve_until_the_new_ones_are_read_where_nodes_hold_both():
    reading_s = load_s(llama(), 16, 20, bytes_per_s=RATE)
    assert spans({OLD: 50.0}, [NEW], gb=20.0) == [
        (pytest.approx(reading_s), (OLD,)),
        (pytest.approx(600.0 - reading_s), (NEW,)),
    ]


@pytest.mark.parametrize(("runs_s", "drains_s"), [(0.0, 0.0), (12.0, 12.0), (200.0, DRAIN_S)])
def test_nobody_serves_while_a_node_that_cannot_hold_both_runs_dry_and_reads(runs_s, drains_s):
    """The time to run dry was not counted: a move of the only pipeline cost more than was said."""
    tight = 10.0
    assert not fits_both(llama(), node("a", gb=tight), [(0, 16), (0, 20)])
    reading_s = load_s(llama(), 0, 20, bytes_per_s=RATE)
    gap, rest = spans({OLD: runs_s}, [NEW], gb=tight)
    assert gap == (pytest.approx(drains_s + reading_s), ())
    assert rest == (pytest.approx(600.0 - drains_s - reading_s), (NEW,))


def test_nodes_without_work_are_read_at_once_and_nothing_stops():
    other, free = pipeline("c", "d"), pipeline("e", "f")
    (first_s, before), (_, after) = spans({OLD: 9.0, other: 9.0}, [OLD, other, free], gb=10.0)
    assert (before, after) == ((OLD, other), (OLD, other, free))
    assert first_s == pytest.approx(load_s(llama(), 0, 16, bytes_per_s=RATE), rel=0.1)


def test_pipelines_that_must_make_room_do_so_after_each_other():
    other = pipeline("c", "d")
    moved = [pipeline(*names, cuts=(20,)) for names in ("ab", "cd")]
    serving = [len(pipelines) for _, pipelines in spans({OLD: 9.0, other: 9.0}, moved, gb=10.0)]
    assert serving == [1, 1, 2]


@pytest.mark.parametrize(
    ("gb", "reserved_tokens", "horizon_s", "moves"),
    [(8.0, 2400, 600.0, False), (8.0, 2400, 1200.0, True), (8.0, 0, 600.0, True), (8.5, 2400, 30.0, True)],
)
def test_layers_leave_a_slow_node_where_the_gap_pays_within_the_horizon(gb, reserved_tokens, horizon_s, moves):
    """Nodes of 8.5 GB hold old and new layers together; of 8 GB they run dry first, if anything runs."""
    near = dict.fromkeys("abc", 0.0005)
    nodes = tuple(node(name, gb=gb, speed=0.33 if name == "a" else 1.0, hop_s=near) for name in "abc")
    plan = Replan(
        1, nodes, current=(pipeline("a", "b", "c", cuts=(11, 22)),), reserved_tokens=(reserved_tokens,),
        wanted_tokens_per_s=20.0, horizon_s=horizon_s,
    )  # fmt: skip
    planned = answer(plan, llama(), DEMAND, SchedulerConfig())
    assert (planned.pipelines != plan.current) == moves


def test_what_serves_may_have_no_room_for_a_sequence_of_the_demand():
    """Longer requests are asked for than its nodes keep a single one of: it earns nothing, and may be replaced."""
    nodes = (node("a", gb=40.0), node("b", gb=9.0), node("c", gb=40.0))
    plan = Replan(1, nodes, current=(OLD,), reserved_tokens=(2400,), wanted_tokens_per_s=20.0)
    planned = answer(plan, llama(), Demand(8, 30_000, 100), SchedulerConfig())
    assert [{stage.node_id for stage in stages} for stages in planned.pipelines] == [{"a", "c"}]


names = st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=2, unique=True)


@given(
    st.lists(st.tuples(names, st.integers(4, 28), st.floats(0.0, 100.0)), max_size=4),
    st.lists(st.tuples(names, st.integers(4, 28)), max_size=4),
    st.floats(10.0, 30.0),
)
def test_the_horizon_is_covered_and_the_plan_serves_in_the_end(current, plan, gb):
    old: dict[Pipeline, float] = {}
    for pair, cut, runs_s in current:
        if not {*pair} & {stage.node_id for stages in old for stage in stages}:
            old[pipeline(*pair, cuts=(cut,))] = runs_s
    new: list[Pipeline] = []
    for pair, cut in plan:
        if not {*pair} & {stage.node_id for stages in new for stage in stages}:
            new.append(pipeline(*pair, cuts=(cut,)))
    found = spans(old, new, gb=gb)
    assert sum(span_s for span_s, _ in found) == pytest.approx(600.0)
    assert {*found[-1][1]} == {*new}
