import asyncio
import gc
import threading
import weakref
from collections import deque
from contextlib import aclosing
from dataclasses import replace
from time import monotonic, sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.wire import FaultMessage, RangeMessage, StepSample
from strata.serving.worker import drive
from strata.serving.worker.holder import AttemptKey
from strata.serving.worker.steps import ResultRow
from tests.serving.worker.builders import SHAPE, Cluster, NumberMaker, load
from tests.support.laws import examples

WHOLE = ()
THREE = (2, 4)


def run(work):
    return asyncio.run(asyncio.wait_for(work, 300))


async def _said(*cuts, **fields):
    async with Cluster(*cuts) as cluster:
        return await cluster.said(**fields)


@pytest.mark.parametrize("cuts", [(3,), THREE, (1, 2, 3, 4, 5)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_chain_of_workers_says_what_one_worker_says(cuts, temperature):
    fields = {"temperature": temperature, "seed": 5, "max_tokens": 12}
    assert run(_said(*cuts, **fields)) == run(_said(*WHOLE, **fields))


def test_an_interrupted_attempt_goes_on_with_what_it_would_have_said():
    whole = run(_said(*THREE, max_tokens=12))
    assert run(_said(*THREE, max_tokens=12, attempt=2, generated=whole[:5])) == whole[5:]


@examples(25)
@given(st.sets(st.integers(1, 5)), st.sets(st.integers(1, 5)), st.integers(1, 9), st.integers(0, 9))
def test_wherever_it_is_cut_and_whenever_it_moves_the_text_is_the_same(before, after, moved, seed):
    fields = {"max_tokens": 10, "temperature": 1.0, "seed": seed}
    said = run(_said(*sorted(before), **fields))[:moved]
    rest = run(_said(*sorted(after), attempt=2, generated=said, **fields))
    assert said + rest == run(_said(*WHOLE, **fields))


def test_max_tokens_counts_all_attempts():
    async def lines():
        async with Cluster(*THREE) as cluster:
            return await cluster.lines(max_tokens=3, generated=(7, 8, 9))

    (only,) = run(lines())
    assert only.finish == "length"


def test_a_stop_token_ends_the_answer_and_is_not_part_of_it():
    whole = run(_said(*THREE, max_tokens=12))
    stop = whole[5]

    async def lines():
        async with Cluster(*THREE) as cluster:
            return await cluster.lines(max_tokens=12, stop_tokens=(stop,))

    *tokens, end = run(lines())
    assert [line.token for line in tokens] == whole[: whole.index(stop)]
    assert end.finish == "stop"


def test_positions_end_the_answer():
    prompt = tuple(range(SHAPE.max_positions - 3))
    assert len(run(_said(*THREE, prompt=prompt, max_tokens=10))) == 3


def test_many_attempts_at_once_do_not_mix():
    async def all_said():
        async with Cluster(*THREE) as cluster:
            asks = [cluster.said(request_id=f"r{i}", prompt=(i, 9), max_tokens=10) for i in range(8)]
            return await asyncio.gather(*asks)

    alone = [run(_said(*WHOLE, prompt=(i, 9), max_tokens=10)) for i in range(8)]
    assert run(all_said()) == alone


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


def test_everything_is_free_when_an_answer_is_complete():
    async def held():
        async with Cluster(*THREE) as cluster:
            await cluster.said()
            await cluster.settled()
            return cluster.held, [worker.holder.kv_bytes for worker in cluster.workers]

    assert run(held()) == ({"a": 0, "b": 0, "c": 0}, [0, 0, 0])


@pytest.mark.parametrize("broken", ["b", "c"])
def test_a_broken_chain_names_the_node_next_to_the_break(broken):
    async def timeline():
        async with Cluster(*THREE) as cluster:
            async with aclosing(cluster.workers[0].generate(cluster.message(max_tokens=12))) as lines:
                first = await anext(lines)
                cluster.network.cut(f"at-{broken}")
                rest = [line async for line in lines]
            await cluster.settled()
            return first, rest, cluster.held

    first, rest, held = run(timeline())
    assert first.token is not None
    assert rest[-1].node_id == broken
    assert rest[-1].error == f"at-{broken}: the connection was closed: cut"
    assert held == {"a": 0, "b": 0, "c": 0}  # who is cut off ends what came from the others


def test_a_last_part_of_one_token_waits_for_the_parts_before_it_beside_others_that_decode():
    """Found by a hang of 120 s: what goes along with others' steps overtook its own sequence."""
    asked = {"prompt": (7,), "max_tokens": 30}
    whole = run(_said(*THREE, **asked))

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


def test_a_step_that_overtook_another_ends_the_attempt_at_once():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            deliver, early = cluster.workers[0].driver.deliver, []

            def turned(rows):
                early.extend(rows)
                if len(early) == 3:
                    deliver(reversed(early))

            cluster.workers[0].stage.deliver = turned
            return await cluster.lines(generated=tuple(range(1, 18)), max_tokens=30)

    (line,) = run(timeline())
    assert (line.error, line.node_id) == ("step 2 came out before step 0", None)


def test_a_chain_that_hangs_ends_at_the_time_limit():
    async def timeline():
        async with Cluster(*THREE, step_limit_s=0.01) as cluster:
            cluster.network.before = lambda node_id, key, row: True
            return await cluster.lines()

    (line,) = run(timeline())
    assert line.error == "no token within 0.04 s"


def test_a_worker_whose_layers_hang_names_itself_and_says_in_its_heartbeats_that_it_is_stuck():
    """Found in a review: nobody was named, so that all requests went on going to it."""
    go = threading.Event()

    async def timeline():
        async with Cluster(*WHOLE, step_limit_s=0.01) as cluster:
            (worker,) = cluster.workers
            before = worker.is_stuck()
            worker._executor.submit(go.wait)
            lines = await cluster.lines()
            told = [worker.is_stuck()]
            cluster.clock.now_s += 1.0
            told.append(worker.is_stuck())
            go.set()
            while worker.is_stuck():
                await asyncio.sleep(0)
            return before, lines, told

    before, (line,), told = run(timeline())
    assert (line.node_id, line.error) == ("a", "no token within 0.02 s")
    assert (before, told) == (False, [False, True])


def test_an_abort_frees_the_whole_chain_and_closes_the_stream():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            async with aclosing(cluster.workers[0].generate(cluster.message(max_tokens=60))) as lines:
                await anext(lines)
                during = cluster.held
                cluster.workers[0].abort(AttemptKey("r", 1))
                rest = [line async for line in lines]
            await cluster.settled()
            return during, rest[-1], cluster.held

    during, last, after = run(timeline())
    assert during == {"a": 1, "b": 1, "c": 1}
    assert last.error == "aborted"
    assert last.node_id is None
    assert after == {"a": 0, "b": 0, "c": 0}


def test_a_reader_that_goes_away_frees_the_whole_chain():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            async with aclosing(cluster.workers[0].generate(cluster.message(max_tokens=60))) as lines:
                await anext(lines)
            await cluster.settled()
            return cluster.held

    assert run(timeline()) == {"a": 0, "b": 0, "c": 0}


def test_a_sequence_ends_on_all_when_its_first_worker_dies():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            lines = cluster.workers[0].generate(cluster.message(max_tokens=60))
            await anext(lines)
            cluster.network.cut("at-a")
            await cluster.settled()
            held = cluster.held
            await lines.aclose()
            return held

    assert run(timeline()) == {"a": 0, "b": 0, "c": 0}


def test_a_sequence_that_does_not_move_ends_with_its_lease_on_all_and_its_reader_hears_of_it_at_once():
    """Found in a review: who read on after more than a minute waited for steps that others had forgotten."""

    async def timeline():
        async with Cluster(*THREE) as cluster:
            lines = cluster.workers[0].generate(cluster.message(max_tokens=60))
            await anext(lines)
            cluster.network.before = lambda node_id, key, row: True
            b = cluster.workers[1]
            await cluster.settled()
            before = b.expire()
            cluster.clock.now_s += 61
            ended = b.expire()
            await cluster.settled()
            rest = [line async for line in lines]
            await cluster.settled()
            return before, ended, rest[-1], cluster.held

    before, ended, last, held = run(timeline())
    assert before == []
    assert ended == [AttemptKey("r", 1)]
    assert (last.error, last.node_id) == ("b: no step came for 60 s", None)
    assert held == {"a": 0, "b": 0, "c": 0}


def test_a_stage_whose_layers_hang_names_itself():
    go = threading.Event()

    async def timeline():
        async with Cluster(*THREE) as cluster:
            b = cluster.workers[1]
            b._executor.submit(go.wait)
            asking = asyncio.create_task(cluster.lines())
            while not b.stage.num_waiting and not b.stage.passages:
                await asyncio.sleep(0)
            await cluster.settled()
            b.expire()
            cluster.clock.now_s += 31
            b.expire()
            lines = await asking
            go.set()
            return lines

    (line,) = run(timeline())
    assert (line.node_id, line.error) == ("b", "b: a step was not done within 30 s")


def test_a_driven_sequence_outlives_its_lease():
    async def timeline():
        async with Cluster() as cluster, aclosing(cluster.workers[0].generate(cluster.message())) as lines:
            await anext(lines)
            cluster.clock.now_s += 1000
            return cluster.workers[0].expire()

    assert run(timeline()) == []


def test_a_new_plan_loads_while_requests_stay_on_the_old_one():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            a, _b, c = cluster.workers
            async with aclosing(cluster.workers[0].generate(cluster.message(max_tokens=12))) as lines:
                tokens = [(await anext(lines)).token]
                await load(a, 2, 0, 3)
                await load(c, 2, 3, 6)
                for worker in cluster.workers:
                    worker.holder.release(1)
                held = [sorted(worker.holder.plans) for worker in cluster.workers]
                tokens += [line.token async for line in lines if line.token is not None]
            await cluster.settled()
            return tokens, held, [sorted(worker.holder.plans) for worker in cluster.workers]

    tokens, during, after = run(timeline())
    assert tokens == run(_said(*WHOLE, max_tokens=12))
    assert during == [[1, 2], [1], [1, 2]]
    assert after == [[2], [], [2]]


def test_a_plan_that_is_not_ready_names_the_node():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            cluster.workers[1].holder.release(1)
            lines = await cluster.lines()
            await cluster.settled()
            return lines, cluster.held

    (line,), held = run(timeline())
    assert line.node_id == "b"
    assert "layers [2, 4) of plan 1 are not ready" in line.error
    assert held == {"a": 0, "b": 0, "c": 0}


def test_no_room_names_nobody():
    weights = SHAPE.weight_bytes(0, 6)

    async def timeline():
        async with Cluster(memory_bytes=weights + SHAPE.kv_bytes(0, 6, tokens=10)) as cluster:
            return await cluster.lines(max_tokens=8), await cluster.lines(max_tokens=7, attempt=2)

    refused, taken = run(timeline())
    assert refused[0].error == "a: 11 tokens need 2112 bytes of KV memory; 1920 are free"
    assert refused[0].node_id is None
    assert taken[-1].finish == "length"


def test_an_attempt_runs_once_and_a_second_one_does_not_disturb_it():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            async with aclosing(cluster.workers[0].generate(cluster.message())) as lines:
                tokens = [(await anext(lines)).token]
                again = await cluster.lines()
                await asyncio.sleep(0)
                tokens += [line.token async for line in lines if line.token is not None]
            await cluster.settled()
            return again, tokens

    again, tokens = run(timeline())
    assert again[0].error == "attempt 1 of r is already running"
    assert tokens == run(_said(*WHOLE))


def test_another_worker_at_the_address_is_found_out():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            cluster.workers[1].stage.node_id = "z"
            return await cluster.lines()

    (line,) = run(timeline())
    assert (line.error, line.node_id) == ("z received a sequence that was meant for b", "b")


def test_a_token_that_the_model_does_not_have_is_refused():
    async def timeline():
        async with Cluster() as cluster:
            return await cluster.lines(prompt=(1, 258))

    (line,) = run(timeline())
    assert (line.error, line.node_id) == ("token 258 is not below 258", None)


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

    assert run(timeline()) == run(_said(*WHOLE, max_tokens=12))


def test_a_layer_that_fails_ends_the_attempt_and_names_its_node(caplog):
    async def timeline():
        async with Cluster(*THREE) as cluster:
            cluster.workers[2].holder.plans[1].part.layers[5] = "no number"
            lines = await cluster.lines()
            await cluster.settled()
            return lines, cluster.held

    (line,), held = run(timeline())
    assert line.node_id == "c"
    assert line.error.startswith("c: ")
    assert held == {"a": 0, "b": 0, "c": 0}


def test_layers_that_could_not_be_made_are_made_when_asked_for_again(caplog):
    async def timeline():
        async with Cluster(*THREE) as cluster:
            a = cluster.workers[0]
            make, a.maker.layer = a.maker.layer, None
            a.load(RangeMessage(version=2, first=0, end=3))
            await cluster.settled()
            failed = sorted(a.holder.plans)
            a.maker.layer = make
            await load(a, 2, 0, 3)
            return failed, sorted(a.holder.plans)

    assert run(timeline()) == ([1], [1, 2])


def test_what_was_measured_is_told_once():
    async def timeline():
        async with Cluster(*THREE) as cluster:
            await cluster.said(max_tokens=3)
            b = cluster.workers[1]
            return b.take_samples(), b.take_samples()

    samples, again = run(timeline())
    assert [(s.phase, s.first, s.end, s.units, s.context) for s in samples] == [
        ("prefill", 2, 4, 3, 0.0),
        ("decode", 2, 4, 1, 3.0),
        ("decode", 2, 4, 1, 4.0),
    ]
    assert again == ()


def test_what_is_measured_while_samples_are_taken_is_told_the_next_time():
    async def timeline():
        async with Cluster() as cluster:
            (worker,) = cluster.workers

            class Meanwhile(deque):
                def popleft(self):
                    sample = super().popleft()
                    if sample.context:
                        self.append(replace(sample, context=0.0))
                    return sample

            worker.stage.samples = Meanwhile(StepSample("decode", 0, 6, units, 1.0, 0.1) for units in (1, 2))
            return worker.take_samples(), worker.take_samples(), worker.take_samples()

    assert [[one.units for one in samples] for samples in run(timeline())] == [[1, 2], [1, 2], []]


def test_sequences_decoded_together_are_one_measurement():
    async def timeline():
        async with Cluster() as cluster:
            (worker,) = cluster.workers
            part, step = worker.holder.plans[1].part, worker.holder.plans[1].part.step
            together, deadline_s = [0], monotonic() + 120

            def step_once_all_wait(rows):
                while max(together) < 2 and len(rows) + worker.stage.num_waiting < 4 and monotonic() < deadline_s:
                    sleep(0.001)
                together.append(len(rows))
                return step(rows)

            part.step = step_once_all_wait
            await asyncio.gather(*(cluster.said(request_id=f"r{i}", max_tokens=10) for i in range(4)))
            return worker.take_samples()

    decode = [sample for sample in run(timeline()) if sample.phase == "decode"]
    assert sum(sample.units for sample in decode) == 4 * 9
    # Not three: two and two may take turns, each pair waiting while the other runs.
    assert max(sample.units for sample in decode) >= 2
    assert all(3 <= sample.context <= 11 for sample in decode)


def test_a_replayed_prefill_is_no_measurement():
    async def timeline():
        async with Cluster() as cluster:
            await cluster.said(max_tokens=3, generated=(1, 2))
            return cluster.workers[0].take_samples()

    assert [(sample.phase, sample.units) for sample in run(timeline())] == [("prefill", 3)]  # the prompt


def test_what_is_long_is_read_in_steps_that_are_not(monkeypatch):
    asked = {"prompt": tuple(range(1, 24)), "max_tokens": 20}
    whole = run(_said(*THREE, **asked))

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
