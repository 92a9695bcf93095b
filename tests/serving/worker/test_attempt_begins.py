"""What an attempt finds where it begins: a plan that is ready or not, room, and who is at the address."""

import asyncio
from contextlib import aclosing

from strata.serving.wire import RangeMessage
from tests.serving.worker.builders import SHAPE, Cluster, answered, load, run

WHOLE = ()
THREE = (2, 4)


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
    assert tokens == run(answered(*WHOLE, max_tokens=12))
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
    assert tokens == run(answered(*WHOLE))


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
