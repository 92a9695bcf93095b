from __future__ import annotations

import asyncio
from dataclasses import replace

from strata.serving.gateway.build import DEMAND
from tests.serving.gateway.world import FAST, SHAPE, World, foretold, run


def code_of(answer):
    return answer.status_code, answer.json()["error"]["code"]


def test_a_join_is_answered_with_what_to_hold_and_whom_to_measure():
    async def scenario(world):
        return (await world.workers[0].tell("heartbeat")).json()

    desired = run(scenario)
    assert desired["peers"] == {"b": "http://b.test"}
    assert desired["heartbeat_interval_s"] == 1.0
    assert [(one["first"], one["end"]) for one in desired["ranges"]] == [(0, SHAPE.num_layers)]


def test_a_second_node_of_a_name_takes_over_only_if_it_started_later():
    async def scenario(world):
        worker = world.workers[0]
        same = await worker.join()
        worker.incarnation = 0
        older = await worker.join()
        stale_beat = await worker.tell("heartbeat")
        worker.incarnation = 2
        newer = await worker.join(url="http://b.test")
        worker.incarnation = 1
        return same, older, stale_beat, newer, await worker.tell("heartbeat")

    same, older, stale_beat, newer, replaced = run(scenario)
    assert same.status_code == newer.status_code == 200
    assert code_of(older) == code_of(stale_beat) == code_of(replaced) == (409, "node-stale")


def test_a_node_that_nobody_knows_is_told_to_join_again():
    async def scenario(world):
        world.workers[0].name = "stranger"
        return await world.workers[0].tell("heartbeat")

    assert code_of(run(scenario)) == (409, "join-again")


def test_a_node_cut_off_for_long_and_back_again_serves_again():
    async def scenario(world):
        cut, other = world.workers
        for _ in range(15):
            await other.tell("heartbeat")
            await world.passes(1.0)
        told = await cut.tell("heartbeat")
        await cut.join()
        await world.passes(1.0)
        await other.tell("leave")
        return told, (await cut.tell("heartbeat")).json()["ranges"], await world.complete()

    told, ranges, answer = run(scenario)
    assert code_of(told) == (409, "join-again")
    assert len(ranges) == 1
    assert answer.json()["choices"][0]["text"] == foretold("hello", 8)


def test_a_clock_that_jumps_expels_nobody_who_beats():
    async def scenario(world):
        for jump_s in (3600.0, -7200.0):
            await world.passes(jump_s)
            for worker in world.workers:
                assert (await worker.tell("heartbeat")).status_code == 200
        return await world.complete()

    assert run(scenario).status_code == 200


def test_a_loaded_that_was_lost_is_made_up_for_by_a_beat():
    async def scenario(world):
        world = World()
        for worker in world.workers:
            worker.answer = deaf(worker)
            await worker.join()
        await world.passes(1.0)
        assert not world.driver.core.status()["ready"]
        for worker in world.workers:
            wanted = (await worker.tell("heartbeat")).json()["ranges"]
            await worker.tell("heartbeat", loaded=[one["version"] for one in wanted])
        ready = world.driver.core.status()["ready"]
        await world.down()
        return ready

    assert run(scenario) is True


def deaf(worker):
    """Answers as before, but tells the gateway of no loaded layers."""
    answer = worker.answer

    async def answering(path, body):
        return await answer("/other" if path == "/load" else path, body)

    return answering


def test_a_route_that_joins_parts_of_two_pipelines_names_the_plan_on_each_of_them():
    half = SHAPE.weight_bytes(0, 2) + DEMAND.batch * SHAPE.kv_bytes(0, 2, tokens=DEMAND.kv_tokens)

    async def scenario():
        world = World(num_workers=4, config=replace(FAST, routing_strategy="dp"))
        for worker in world.workers:
            await worker.join(memory_bytes=1.3 * half)
        await world.passes(1.0)
        # What is measured later makes it best to cross from one pipeline to the other.
        (a, b), (c, d) = ([name for name, _, _ in p["stages"]] for p in world.driver.core.status()["pipelines"])
        near = {a: d, d: a, c: b, b: c}
        for worker in world.workers:
            hop_s = {other: 1e-4 if other == near[worker.name] else 1.0 for other in near}
            await worker.tell("heartbeat", hop_s=hop_s)
        await world.passes(1.0)
        for _ in range(4):
            await world.complete()
        held = {worker.name: {body["version"] for body in worker.said("/load")} for worker in world.workers}
        routes = [body["stages"] for worker in world.workers for body in worker.said("/generate")]
        await world.down()
        return held, routes

    held, routes = asyncio.run(scenario())
    assert len(routes) == 4
    assert all(len({stage["version"] for stage in stages}) == 2 for stages in routes)
    assert all(stage["version"] in held[stage["node_id"]] for stages in routes for stage in stages)


def test_a_worker_of_another_model_is_refused():
    async def scenario(world):
        return await world.workers[0].join(fingerprint="other")

    assert code_of(run(scenario)) == (409, "other-model")


def test_an_engine_does_not_join_and_an_address_is_one():
    async def scenario(world):
        return await world.workers[0].join(model="llama"), await world.workers[0].join(url="file:///x")

    engine, address = run(scenario)
    assert code_of(engine) == (409, "whole-engine")
    assert code_of(address) == (422, "invalid_value")


def test_a_message_that_is_none_is_422():
    async def scenario(world):
        return await world.post("/nodes/heartbeat", b"{"), await world.post("/nodes/join", {"node_id": "x"})

    for answer in run(scenario):
        assert code_of(answer) == (422, "invalid_value")


def test_a_large_cluster_is_told_of_itself_a_few_peers_a_beat():
    async def scenario(world):
        known = set()
        for number in range(40):
            card = {"node_id": f"n{number}", "incarnation": 1, "url": f"http://n{number}.test"}
            card |= {"compute_capability": 1.0, "memory_bytes": 1.0, "memory_bandwidth_bytes_per_s": 1.0}
            await world.post("/nodes/join", card | {"fingerprint": SHAPE.fingerprint})
        for _ in range(3):
            peers = (await world.workers[0].tell("heartbeat")).json()["peers"]
            assert len(peers) == 16
            known |= peers.keys()
        return known

    assert len(run(scenario)) == 41


def test_a_gateway_without_workers_says_so():
    async def scenario(world):
        world.gateway.workers = None
        return await world.workers[0].tell("heartbeat")

    assert code_of(run(scenario)) == (404, "no-workers")
