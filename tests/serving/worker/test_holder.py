import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.worker.holder import AttemptKey, Holder, Refused
from tests.serving.worker.builders import SHAPE, NumberMaker

WEIGHTS = SHAPE.weight_bytes(2, 4)
TOKEN = SHAPE.kv_bytes(2, 4, tokens=1)


def holder(*, kv_tokens=100, slots=4):
    return Holder(SHAPE, NumberMaker(), memory_bytes=WEIGHTS + kv_tokens * TOKEN, slots=slots)


def load(held, version, first=2, end=4):
    missing = held.open(version, first, end)
    held.close(version, {number: held.maker.layer(number) for number in missing})


def begin(held, name="r", *, version=1, tokens=10, now_s=0.0, first=2, end=4):
    return held.begin(AttemptKey(name, 1), version, first, end, kv_tokens=tokens, now_s=now_s)


def test_layers_that_two_plans_share_are_made_once():
    held = Holder(SHAPE, NumberMaker(), memory_bytes=1e6, slots=4)
    load(held, 1, 0, 4)
    load(held, 2, 2, 6)
    assert held.maker.made == [0, 1, 2, 3, 4, 5, 6, 7]  # 0 embeds, 7 is the head
    assert held.loaded == (1, 2)


def test_a_plan_that_is_there_is_not_loaded_again():
    held = holder()
    load(held, 1)
    assert held.open(1, 2, 4) is None


def test_a_plan_is_not_ready_before_its_layers_are():
    held = holder()
    held.open(1, 2, 4)
    assert held.loaded == ()
    with pytest.raises(Refused, match="are not ready") as refused:
        begin(held)
    assert refused.value.is_at_fault


def test_a_released_plan_stays_until_nothing_runs_on_it():
    held = holder()
    load(held, 1)
    begin(held)
    held.release(1)
    assert held.loaded == (1,)
    held.end(AttemptKey("r", 1))
    assert held.loaded == ()
    assert held._layers == {}


def test_a_plan_released_while_it_loads_is_not_kept():
    held = holder()
    held.open(1, 2, 4)
    held.release(1)
    assert not held.close(1, {3: 3, 4: 4})
    assert held.plans == {}


def test_a_plan_wanted_again_is_kept():
    held = holder()
    load(held, 1)
    begin(held)
    held.release(1)
    assert held.open(1, 2, 4) is None
    held.end(AttemptKey("r", 1))
    assert held.loaded == (1,)


@pytest.mark.parametrize(("first", "end"), [(4, 4), (4, 2), (0, 7)])
def test_layers_the_model_does_not_have_are_refused(first, end):
    with pytest.raises(Refused, match="a model of 6 layers has no layers"):
        holder().open(1, first, end)


def test_layers_that_do_not_fit_are_refused():
    with pytest.raises(Refused, match=r"layers \[0, 6\) need \d+ bytes; \d+ are available"):
        holder(kv_tokens=0).open(1, 0, 6)


def test_a_plan_does_not_change_its_layers():
    held = holder()
    load(held, 1)
    with pytest.raises(Refused, match=r"plan 1 already has layers \[2, 4\)"):
        held.open(1, 3, 4)


def test_the_slots_are_what_runs_at_most():
    held = holder(slots=1)
    load(held, 1)
    begin(held)
    with pytest.raises(Refused, match="all 1 slots are taken"):
        begin(held, "other")


def test_the_memory_for_keys_and_values_is_what_is_left_of_the_weights():
    held = holder(kv_tokens=25)
    load(held, 1)
    begin(held, "a", tokens=20)
    with pytest.raises(Refused, match=f"6 tokens need {6 * TOKEN} bytes of KV memory; {5 * TOKEN} are free"):
        begin(held, "b", tokens=6)
    begin(held, "b", tokens=5)
    assert held.kv_bytes == held.kv_capacity_bytes


def test_an_attempt_is_told_apart_from_the_one_before():
    held = holder()
    load(held, 1)
    begin(held)
    held.begin(AttemptKey("r", 2), 1, 2, 4, kv_tokens=1, now_s=0.0)
    held.end(AttemptKey("r", 1))
    assert list(held.sequences) == [AttemptKey("r", 2)]


def test_what_has_ended_may_end_again():
    held = holder()
    load(held, 1)
    begin(held)
    held.end(AttemptKey("r", 1))
    held.end(AttemptKey("r", 1))
    assert held.sequences == {}


def test_only_what_did_not_move_is_idle():
    held = holder()
    load(held, 1)
    for name in ("idle", "moved", "driven"):
        begin(held, name)
    held.sequences[AttemptKey("moved", 1)].moved_s = 50.0
    assert held.idle(10.0, [AttemptKey("driven", 1)]) == [AttemptKey("idle", 1)]


ACTS = st.one_of(
    st.tuples(st.just("load"), st.integers(0, 3), st.sampled_from([(0, 2), (2, 4), (1, 5), (4, 6)])),
    st.tuples(st.just("release"), st.integers(0, 3)),
    st.tuples(st.just("begin"), st.integers(0, 3), st.integers(0, 5), st.integers(1, 40)),
    st.tuples(st.just("end"), st.integers(0, 5)),
)


@given(st.lists(ACTS, max_size=40))
def test_no_more_is_promised_than_there_is_and_nothing_is_left_over(acts):
    held = Holder(SHAPE, NumberMaker(), memory_bytes=2 * SHAPE.weight_bytes(0, 6), slots=3)
    for kind, *rest in acts:
        try:
            if kind == "load":
                version, (first, end) = rest
                missing = held.open(version, first, end)
                if missing is not None:
                    held.close(version, dict.fromkeys(missing, 0))
            elif kind == "release":
                held.release(*rest)
            elif kind == "begin":
                version, name, tokens = rest
                plan = held.plans.get(version)
                before = held.kv_capacity_bytes - held.kv_bytes
                begin(
                    held, str(name), version=version, tokens=tokens,
                    first=plan.first if plan else 0, end=plan.end if plan else 1,
                )  # fmt: skip
                assert held.kv_bytes <= held.kv_capacity_bytes
                assert held.kv_capacity_bytes - held.kv_bytes < before
            else:
                held.end(AttemptKey(str(rest[0]), 1))
        except Refused:
            pass
        assert len(held.sequences) <= 3
        running = {id(sequence.held) for sequence in held.sequences.values()}
        assert running <= {id(plan) for plan in held.plans.values()}
    for key in list(held.sequences):
        held.end(key)
    for version in range(4):
        held.release(version)
    assert (held.plans, held._layers, held.kv_bytes) == ({}, {}, 0)


def test_a_step_that_its_abort_has_overtaken_begins_nothing():
    held = holder()
    load(held, 1)
    held.stop(AttemptKey("r", 1))
    with pytest.raises(Refused, match="was stopped") as refused:
        begin(held)
    assert not refused.value.is_at_fault
    assert held.kv_bytes == 0
    begin(held, "s")
