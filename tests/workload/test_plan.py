from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.laws import examples

shapes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4)


def plan_of(shape: list[tuple[int, int]], size: int) -> TrainingPlan:
    return TrainingPlan(tuple(Pipeline((Stage("a", 0, 1, 1),), r, m) for r, m in shape), size)


@examples(100)
@given(shapes, st.integers(1, 6), st.data())
def test_a_plan_with_room_for_a_batch_runs_exactly_that(shape, size, data):
    whole = plan_of(shape, size)
    copies = sum(replicas for replicas, _ in shape)
    batch = data.draw(st.integers(copies, whole.num_samples))
    short = whole.with_samples(batch)
    assert short.num_samples == batch
    assert all(short.samples(p) >= p.replicas for p in short.pipelines)
    assert short.with_samples(batch) == short
    assert TrainingPlan.from_dict(short.to_dict()) == short


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4),
    st.integers(1, 40), st.integers(1, 4),
)  # fmt: skip
def test_copies_share_out_samples_under_a_warm_up_that_falls(falls, before, then, copies, more, size):
    """Stages whose warm-ups a few microbatches had cut short kept them when there were many."""
    depths = [sum(falls[i + 1 :]) for i in range(len(falls))]
    stages = tuple(Stage("a", i, 1, 1, min(depth, before - 1)) for i, depth in enumerate(depths))
    samples = copies + more
    after = Pipeline(stages, then, before).with_copies(copies, samples, microbatch_size=size)
    assert TrainingPlan((after,), size).num_samples == samples
    room = after.replicas * after.microbatches * size
    assert after.replicas == copies
    assert room - copies * size < samples <= room
    warmup, last = [stage.warmup for stage in after.stages], after.microbatches - 1
    assert all(b < a <= last or a == b == last for a, b in pairwise(warmup))
    assert warmup == [min(depth, last) for depth in depths] or before <= max(depths)


def test_full_microbatches_say_nothing_of_samples():
    full = plan_of([(2, 3)], 4)
    assert full.with_samples(24) is full
    assert "samples" not in full.to_dict()["pipelines"][0]
    assert full.with_samples(21).to_dict()["pipelines"][0]["samples"] == 21


def test_the_layers_of_an_interleaved_stage_lie_in_as_many_places_as_it_has_chunks():
    pipeline = Pipeline((Stage("a", 0, 5, 1), Stage("b", 5, 5, 1)), 1, 4)
    whole, chunked = (TrainingPlan((pipeline,), 1, virtual_stages=count) for count in (1, 2))
    assert whole.held_layers(pipeline) == ((range(5),), (range(5, 10),))
    assert chunked.held_layers(pipeline) == ((range(3), range(5, 7)), (range(3, 5), range(7, 10)))
