"""What an interrupted attempt has cached goes to the workers of the next, which say what it would have said."""

import asyncio
import threading
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.serving.wire import KeptMessage
from strata.serving.worker.holder import PARKED_S, AttemptKey
from tests.serving.worker.builders import SHAPE, Cluster, NumberCache
from tests.serving.worker.test_chain import THREE, run
from tests.support.laws import examples

PROMPT = (1, 2, 3)


def first_of(cluster, message):
    return next(worker for worker in cluster.workers if worker.node_id == message.stages[0].node_id)


async def parked(cluster, count, message=None, **fields):
    """Have an attempt interrupted after so many tokens; return its message and its tokens."""
    message, tokens = message or cluster.message(**fields), []
    worker = first_of(cluster, message)
    async with aclosing(worker.generate(message)) as lines:
        async for line in lines:
            if line.token is None:
                assert line.finish, line
                break
            tokens.append(line.token)
            if len(tokens) == count:
                worker.abort(AttemptKey(message.request_id, message.attempt), is_kept=True)
                break
    await cluster.settled()
    return message, tokens


def following(message, said, to, **changes):
    """Return the next attempt's message. said: all tokens so far."""
    kept = {"attempt": message.attempt, "tokens": len(message.prompt) + len(said) - 1, "stages": message.stages}
    fields = {"attempt": message.attempt + 1, "generated": tuple(said), "stages": to}
    return message.model_copy(update=fields | {"kept": KeptMessage(**(kept | changes))})


async def whole(**fields):
    async with Cluster() as cluster:
        return await cluster.said(**fields)


async def goes_on(cluster, message, said, to, **changes):
    """Return the lines of the next attempt."""
    again = following(message, said, to, **changes)
    return [line async for line in first_of(cluster, again).generate(again)]


@examples(25)
@given(st.sets(st.integers(1, 5), max_size=4), st.sets(st.integers(1, 5), max_size=4), st.integers(1, 9))
def test_wherever_it_was_cut_and_whenever_it_moves_nothing_is_computed_anew(before, after, count):
    async def scenario():
        async with Cluster(*sorted(before)) as cluster:
            message, tokens = await parked(cluster, count, max_tokens=10)
            steps = []
            cluster.network.before = lambda node_id, key, row: steps.append(row)
            nodes = list(reversed(cluster.workers))
            while len(nodes) <= len(after):
                after.pop()
            stages = await cluster.relay(*sorted(after), workers=nodes)
            for worker in cluster.workers:  # what is parked outlives the layers it came from
                worker.holder.release(1)
            rest = await goes_on(cluster, message, tokens, stages)
            await cluster.settled()
            left = [(worker.holder.kv_bytes, dict(worker.holder.parked)) for worker in cluster.workers]
            return tokens, rest, steps, left

    tokens, (*rest, end), steps, left = run(scenario())
    assert end.finish == "length", end
    assert tokens + [line.token for line in rest] == run(whole(max_tokens=10))
    assert all(row.tokens == 1 for row in steps)
    assert all(row.position >= len(PROMPT) + len(tokens) - 1 for row in steps)
    assert set(map(str, left)) == {"(0, {})"}


def test_what_is_parked_has_no_slot_and_waits_only_for_a_while():
    async def scenario():
        async with Cluster(*THREE, slots=1) as cluster:
            await parked(cluster, 3)
            during = [len(worker.holder.parked) for worker in cluster.workers], cluster.held
            other = await cluster.lines(request_id="other", max_tokens=3)
            await cluster.settled()
            cluster.clock.now_s += PARKED_S + 1
            for worker in cluster.workers:
                worker.expire()
            return during, other[-1].finish, [worker.holder.kv_bytes for worker in cluster.workers]

    during, finish, left = run(scenario())
    assert during == ([1, 1, 1], {"a": 0, "b": 0, "c": 0})
    assert finish == "length"
    assert left == [0, 0, 0]


def test_what_is_parked_makes_room_for_what_runs():
    memory_bytes = SHAPE.weight_bytes(0, 6) + SHAPE.kv_bytes(0, 6, tokens=12)

    async def scenario():
        async with Cluster(memory_bytes=memory_bytes) as cluster:
            message, tokens = await parked(cluster, 3)
            other = await cluster.lines(request_id="other", max_tokens=3)
            return other[-1].finish, await goes_on(cluster, message, tokens, message.stages)

    finish, (line,) = run(scenario())
    assert finish == "length"
    assert line.error == "a: the keys and values of attempt 1 did not come: attempt 1 of r is not kept here"
    assert line.node_id is None


def test_what_goes_on_where_it_was_needs_no_memory_besides():
    memory_bytes = SHAPE.weight_bytes(0, 6) + SHAPE.kv_bytes(0, 6, tokens=12)

    async def scenario():
        async with Cluster(memory_bytes=memory_bytes) as cluster:
            message, tokens = await parked(cluster, 3)
            lines = await goes_on(cluster, message, tokens, message.stages)
            return tokens + [line.token for line in lines if line.token is not None]

    assert run(scenario()) == run(whole())


def test_who_asks_before_the_worker_has_heard_of_the_end_is_given_what_runs():
    async def scenario():
        async with Cluster(*THREE) as cluster:
            message, tokens = cluster.message(max_tokens=60), []
            lines = cluster.workers[0].generate(message)
            while len(tokens) < 5:
                tokens.append((await anext(lines)).token)
            stages = await cluster.relay(3, workers=cluster.workers[1:])
            rest = await goes_on(cluster, message, tokens, stages)
            await lines.aclose()
            await cluster.settled()
            return tokens + [line.token for line in rest if line.token is not None]

    assert run(scenario()) == run(whole(max_tokens=60))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 4}, "4 kept tokens of 6: all but the last have to be"),
        ({"attempt": 7}, "attempt 7 of r is not kept here"),
        ({"stages": lambda stages: stages[1:]}, "nobody kept the layers [0, 1]"),
        (
            {"stages": lambda stages: (stages[0].model_copy(update={"url": "at-z", "end": 6}),)},
            "nobody is there",
        ),
        ({"stages": lambda stages: (stages[0].model_copy(update={"end": 6}),)}, "attempt 1 of r is not kept here"),
        ({"stages": lambda stages: (stages[0].model_copy(update={"first": 2, "end": 6}),)}, "layer 3 has not 5"),
    ],
)
def test_what_was_not_kept_ends_the_attempt_and_blames_nobody(changes, words):
    async def scenario():
        async with Cluster(*THREE) as cluster:
            message, tokens = await parked(cluster, 3)
            stages = await cluster.relay(workers=cluster.workers[1:])
            made = {k: v(message.stages) if callable(v) else v for k, v in changes.items()}
            lines = await goes_on(cluster, message, tokens, stages, **made)
            await cluster.settled()
            return lines, cluster.held

    (line,), held = run(scenario())
    assert words in line.error
    assert line.node_id is None
    assert held == {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize("end", ["gives", "takes"])
def test_a_hand_over_that_fails_in_memory_ends_the_attempt_at_once(end, monkeypatch, caplog):
    def fails(*_arguments):
        raise MemoryError("no room")

    async def scenario():
        async with Cluster(*THREE) as cluster:
            message, tokens = await parked(cluster, 3)
            stages = await cluster.relay(3, workers=cluster.workers[1:])
            monkeypatch.setattr(NumberCache, "taken" if end == "gives" else "fill", fails)
            return await goes_on(cluster, message, tokens, stages)

    (line,) = run(scenario())
    assert "MemoryError: no room" in line.error
    assert line.node_id == (None if end == "gives" else line.error[0])


def test_a_link_that_ends_between_two_layers_is_opened_again():
    async def scenario():
        async with Cluster(*THREE) as cluster:
            message, tokens = await parked(cluster, 3)
            stages = await cluster.relay(workers=cluster.workers[2:])
            part, cut = NumberCache.fill, []

            def fill(cache, *arguments):
                part(cache, *arguments)
                if not cut:
                    cut.append(1)
                    loop.call_soon_threadsafe(cluster.network.break_off)

            loop = asyncio.get_running_loop()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(NumberCache, "fill", fill)
                lines = await goes_on(cluster, message, tokens, stages)
            return tokens + [line.token for line in lines if line.token is not None], lines[-1]

    said, end = run(scenario())
    assert end.finish == "length", end
    assert said == run(whole())


def test_a_worker_that_dies_while_it_hands_over_costs_the_attempt_alone():
    async def scenario():
        async with Cluster(*THREE) as cluster:
            message, tokens = await parked(cluster, 3)
            stages = await cluster.relay(workers=cluster.workers[2:])
            go = threading.Event()
            cluster.workers[0]._executor.submit(go.wait)  # it computes, and gives nothing
            asking = asyncio.create_task(goes_on(cluster, message, tokens, stages))
            for _ in range(50):
                await asyncio.sleep(0)
            cluster.network.cut("at-a")
            lines = await asking
            go.set()
            return lines

    (line,) = run(scenario())
    assert "the connection was closed: cut" in line.error
