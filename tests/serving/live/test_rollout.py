"""How plans follow each other: double-buffered where nodes have room, else one pipeline at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.serving.live.instructions import Load, Release
from strata.serving.live.rollout import PipelinePhase, Rollout
from strata.serving.planning.allocation import Pipeline, Stage


def pipeline(*nodes: str, layers: int = 4) -> Pipeline:
    step = layers // len(nodes)
    ends = [step * (i + 1) for i in range(len(nodes) - 1)] + [layers]
    return tuple(Stage(n, first, end) for n, first, end in zip(nodes, [0, *ends[:-1]], ends, strict=True))


def roomy(_node: str, _ranges: list[tuple[int, int]]) -> bool:
    return True


def tight(_node: str, _ranges: list[tuple[int, int]]) -> bool:
    return False


def load(rollout: Rollout, instructions: list) -> list:
    """Do what is asked at once, and what follows from it."""
    done, todo = [], list(instructions)
    while todo:
        one = todo.pop(0)
        done.append(one)
        if isinstance(one, Load):
            todo += rollout.loaded(one.node_id, one.version, 0.0)
    return done


def phases(rollout: Rollout) -> list[tuple[Pipeline, str]]:
    return [(one.stages, one.phase.value) for one in rollout]


def test_a_pipeline_serves_once_all_its_nodes_have_loaded():
    rollout = Rollout(roomy)
    first, second = rollout.adopt([pipeline("a", "b")], 0.0)
    assert [type(first), type(second)] == [Load, Load]
    rollout.loaded("a", first.version, 1.0)
    assert phases(rollout) == [(pipeline("a", "b"), "loading")]
    rollout.loaded("b", second.version, 2.0)
    assert phases(rollout) == [(pipeline("a", "b"), "serving")]


def test_nothing_makes_room_while_another_pipeline_reads_its_layers():
    """The second was drained in the moment that the first began to load: nobody served."""
    rollout = Rollout(tight)
    load(rollout, rollout.adopt([pipeline("a", "b"), pipeline("c", "d")], 0.0))
    moved = [pipeline("b", "a"), pipeline("d", "c")]
    loads = [each for each in rollout.adopt(moved, 1.0) if isinstance(each, Load)]
    assert {each.node_id for each in loads} == {"a", "b"}
    assert phases(rollout) == [(pipeline("c", "d"), "serving"), (moved[0], "loading"), (moved[1], "waiting")]
    load(rollout, loads)
    assert phases(rollout) == [(moved[0], "serving"), (moved[1], "serving")]


def test_what_a_new_plan_shares_with_the_old_one_stays_untouched():
    rollout = Rollout(roomy)
    load(rollout, rollout.adopt([pipeline("a", "b"), pipeline("c", "d")], 0.0))
    assert rollout.adopt([pipeline("c", "d"), pipeline("b", "a")], 1.0) == [Load("b", 3, 0, 2), Load("a", 3, 2, 4)]


def test_the_old_layers_serve_until_the_new_ones_are_loaded_and_go_when_they_run_dry():
    rollout = Rollout(roomy)
    load(rollout, rollout.adopt([pipeline("a", "b")], 0.0))
    rollout[1].running.add("r")
    asked = rollout.adopt([pipeline("b", "a")], 1.0)
    assert [one.phase for one in rollout] == [PipelinePhase.SERVING, PipelinePhase.LOADING]
    load(rollout, asked)
    assert [one.phase for one in rollout] == [PipelinePhase.DRAINING, PipelinePhase.SERVING]
    rollout[1].running.clear()
    assert rollout.is_dry()
    assert rollout.advance(2.0) == [Release("a", 1), Release("b", 1)]
    assert phases(rollout) == [(pipeline("b", "a"), "serving")]


def test_where_both_do_not_fit_the_old_ones_are_drained_first():
    rollout = Rollout(tight)
    load(rollout, rollout.adopt([pipeline("a", "b")], 0.0))
    rollout[1].running.add("r")
    assert rollout.adopt([pipeline("b", "a")], 1.0) == []
    assert phases(rollout) == [(pipeline("a", "b"), "draining"), (pipeline("b", "a"), "waiting")]
    rollout[1].running.clear()
    after = rollout.advance(2.0)
    assert after == [Release("a", 1), Release("b", 1), Load("b", 2, 0, 2), Load("a", 2, 2, 4)]


def test_tight_nodes_are_emptied_one_pipeline_at_a_time_while_others_serve():
    rollout = Rollout(tight)
    load(rollout, rollout.adopt([pipeline("a", "b"), pipeline("c", "d")], 0.0))
    for old in rollout:
        old.running.add(f"r{old.version}")
    rollout.adopt([pipeline("b", "a"), pipeline("d", "c")], 1.0)
    assert [one.phase.value for one in rollout] == ["draining", "serving", "waiting", "waiting"]
    rollout[1].running.clear()
    load(rollout, rollout.advance(2.0))
    assert [one.phase.value for one in rollout] == ["draining", "serving", "waiting"]
    assert rollout.in_phase(PipelinePhase.SERVING)[0].stages == pipeline("b", "a")


def test_losing_a_node_releases_the_others_and_hands_back_what_ran():
    rollout = Rollout(roomy)
    load(rollout, rollout.adopt([pipeline("a", "b"), pipeline("c", "d")], 0.0))
    rollout[1].running.add("r")
    lost, out = rollout.lose("a", 1.0)
    assert [one.running for one in lost] == [{"r"}]
    assert out == [Release("b", 1)]
    assert phases(rollout) == [(pipeline("c", "d"), "serving")]


def test_a_late_answer_to_a_load_nobody_wants_any_more_is_released():
    rollout = Rollout(roomy)
    rollout.adopt([pipeline("a", "b")], 0.0)
    rollout.adopt([pipeline("b", "a")], 0.0)
    assert Release("a", 1) in rollout.loaded("a", 1, 1.0)


@given(
    st.lists(st.permutations(["a", "b", "c", "d"]), min_size=1, max_size=6),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_every_plan_is_reached_whatever_the_order_of_answers(plans, has_capacity, random):
    """No node ever serves two ranges, and the last plan alone serves at the end."""
    rollout, todo = Rollout(roomy if has_capacity else tight), []
    for nodes in plans:
        todo += rollout.adopt([pipeline(*nodes[:2]), pipeline(*nodes[2:])], 0.0)
        for one in rollout.in_phase(PipelinePhase.SERVING):
            one.running.add(f"r{one.version}")
        for _ in range(random.randrange(4)):
            if todo:
                one = todo.pop(random.randrange(len(todo)))
                if isinstance(one, Load):
                    todo += rollout.loaded(one.node_id, one.version, 0.0)
        serving = {stage for one in rollout.in_phase(PipelinePhase.SERVING) for stage in one.stages}
        assert len(serving) == len({stage.node_id for stage in serving})
    for _ in range(200):
        for one in rollout:
            one.running.clear()
        todo += rollout.advance(1.0)
        while todo:
            one = todo.pop()
            if isinstance(one, Load):
                todo += rollout.loaded(one.node_id, one.version, 1.0)
    assert {one.stages for one in rollout} == {pipeline(*plans[-1][:2]), pipeline(*plans[-1][2:])}
    assert {one.phase for one in rollout} == {PipelinePhase.SERVING}
