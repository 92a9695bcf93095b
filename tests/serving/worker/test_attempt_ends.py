"""How attempts end on every worker of a chain: complete, aborted, broken, hung, or after their lease."""

import asyncio
import threading
from contextlib import aclosing

import pytest

from strata.serving.worker.holder import AttemptKey
from tests.serving.worker.builders import Cluster, run

WHOLE = ()
THREE = (2, 4)


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
