import asyncio
import gc
import weakref
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.wire import FaultMessage
from strata.serving.worker import drive
from strata.serving.worker.steps import ResultRow
from tests.serving.worker.builders import SHAPE, Cluster, NumberMaker, answered, run
from tests.support.laws import examples

WHOLE = ()
THREE = (2, 4)


@pytest.mark.parametrize("cuts", [(3,), THREE, (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chain_of_workers_says_what_one_worker_says(cuts, temperature):
    fields = {"temperature": temperature, "seed": 5, "max_tokens": 12}
    assert run(answered(*cuts, **fields)) == run(answered(*WHOLE, **fields))


def test_an_interrupted_attempt_goes_on_with_what_it_would_havesaid():
    whole = run(answered(*THREE, max_tokens=12))
    assert run(answered(*THREE, max_tokens=12, attempt=2, generated=whole[:5])) == whole[5:]


@examples(25)
@given(st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)), st.integers(1, 9), st.integers(0, 9))
def test_wherever_it_is_cut_and_whenever_it_moves_the_text_is_the_same(before, after, moved, seed):
    fields = {"max_tokens": 10, "temperature": 1.0, "seed": seed}
    said = run(answered(*sorted(before), **fields))[:moved]
    rest = run(answered(*sorted(after), attempt=2, generated=said, **fields))
    assert said + rest == run(answered(*WHOLE, **fields))


def test_max_tokens_counts_all_attempts():
    async def lines():
        async with Cluster(*THREE) as cluster:
            return await cluster.lines(max_tokens=3, generated=(7, 8, 9))

    (only,) = run(lines())
    assert only.finish == "length"


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it():
    whole = run(answered(*THREE, max_tokens=12))
    stop = whole[5]

    async def lines():
        async with Cluster(*THREE) as cluster:
            return await cluster.lines(max_tokens=12, stop_tokens=(stop,))

    *tokens, end = run(lines())
    assert [line.token for line in tokens] == whole[: whole.index(stop)]
    assert end.finish == "stop"


def test_positions_end_the_answer():
    prompt = tuple(range(SHAPE.max_positions - 3))
    assert len(run(answered(*THREE, prompt=prompt, max_tokens=10))) == 3


def test_many_attempts_at_once_do_not_mix():
    async def allsaid():
        async with Cluster(*THREE) as cluster:
            asks = [cluster.said(request_id=f"r{i}", prompt=(i, 9), max_tokens=10) for i in range(8)]
            return await asyncio.gather(*asks)

    alone = [run(answered(*WHOLE, prompt=(i, 9), max_tokens=10)) for i in range(8)]
    assert run(allsaid()) == alone


@pytest.mark.parametrize("cuts", [WHOLE, THREE])
def test_what_an_answer_has_cached_goes_with_it_and_not_when_cycles_are_collected(cuts, monkeypatch):
    made, cache = [], NumberMaker.cache

    def counted(self, max_tokens):
        new = cache(self, max_tokens)
        made.append(weakref.ref(new))
        return new

    async def left():
        async with Cluster(*cuts) as cluster:
            async with aclosing(cluster.workers[0].generate(cluster.message())) as lines:
                await anext(lines)  # and leaves
            for number in range(2):
                await cluster.said(request_id=f"r{number}", max_tokens=3)
            return [ref() for ref in made]

    monkeypatch.setattr(NumberMaker, "cache", counted)
    gc.collect()
    gc.disable()
    try:
        caches = run(left())
        assert caches[: -len(cuts) - 1] == [None] * 2 * (len(cuts) + 1)  # the last step may still be held
    finally:
        gc.enable()


def test_a_last_part_of_one_token_waits_for_the_parts_before_it_beside_others_that_decode():
    """Found by a hang of 120 s: what goes along with others' steps overtook its own sequence."""
    asked = {"prompt": (7,), "max_tokens": 30}
    whole = run(answered(*THREE, **asked))

    async def timeline():
        async with Cluster(*THREE) as cluster:
            stage, waiting = cluster.workers[1].stage, []
            async with aclosing(cluster.workers[0].generate(cluster.message(request_id="other"))) as other:
                await anext(other)  # and decodes
                enter, stage.enter = stage.enter, lambda *step: waiting.append(step)
                rest = asyncio.create_task(cluster.said(**asked, generated=tuple(whole[:17])))  # 1, 16 and 1
                while len(waiting) < 4:
                    await asyncio.sleep(0)
                stage.enter = enter
                for step in sorted(waiting, key=lambda step: step[0].key.request_id != "other"):
                    enter(*step)
                return await rest

    assert whole[:17] + run(timeline()) == whole


def test_a_token_that_comes_late_or_twice_changes_nothing():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            deliver = cluster.workers[0].driver.deliver

            def twice(rows):
                for row in rows:
                    deliver([row, row, row._replace(step=max(row.step - 1, 0)), row._replace(step=row.step + 5)])
                    deliver([ResultRow(drive=77, step=0, token=0)])

            cluster.workers[0].stage.deliver = twice
            return await cluster.said(max_tokens=12)

    assert run(timeline()) == run(answered(*WHOLE, max_tokens=12))


def test_what_is_long_is_read_in_steps_that_are_not(monkeypatch):
    asked = {"prompt": tuple(range(1, 24)), "max_tokens": 20}
    whole = run(answered(*THREE, **asked))

    async def timeline():
        async with Cluster(*THREE) as cluster:
            steps = []

            def note(node_id, key, row):
                if node_id == "b":
                    steps.append((row.position, row.replayed, row.is_partial))

            cluster.network.before = note
            said = await cluster.said(**asked, generated=tuple(whole[:11]))
            return said, steps

    monkeypatch.setattr(drive, "PROMPT_TOKENS", 10)
    monkeypatch.setattr(drive, "REPLAYED_TOKENS", 4)
    said, steps = run(timeline())
    assert whole[:11] + said == whole
    assert steps[:7] == [(0, 0, True), (10, 0, True), (20, 0, True), (23, 4, True), (27, 4, True), (31, 3, False),
                         (34, 0, False)]  # fmt: skip


@pytest.mark.parametrize("how", ["abort", "break"])
def test_a_prompt_that_is_half_read_ends_as_a_token_does(how, monkeypatch):
    async def timeline():
        async with Cluster(*THREE) as cluster:

            def stop(node_id, key, row):
                if row.position == 10 and how == "abort":
                    cluster.workers[0].abort(key)
                elif row.position == 10 and node_id == "c":
                    cluster.workers[2].stage.fail(key, FaultMessage(error="gone", node_id="c"))

            cluster.network.before = stop
            lines = await cluster.lines(prompt=tuple(range(1, 24)))
            await cluster.settled()
            return lines, cluster.held

    monkeypatch.setattr(drive, "PROMPT_TOKENS", 10)
    lines, held = run(timeline())
    assert [(line.error, line.node_id) for line in lines] == [
        ("aborted", None) if how == "abort" else ("gone", "c")
    ]
    assert held == {"a": 0, "b": 0, "c": 0}
