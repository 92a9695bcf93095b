from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest
from starlette.requests import Request

from strata.errors import UsageError
from strata.serving.gateway.access import NodeAccess, read_network
from strata.serving.gateway.build import DEMAND
from strata.serving.gateway.openai import ApiError
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


def test_a_worker_says_how_many_sequences_it_decodes_in_one_step():
    async def scenario(world):
        world.workers[0].incarnation += 1
        await world.workers[0].join(step_sequences=8)
        return [node.step_sequences for node in world.driver.core.nodes()]

    assert run(scenario) == [8, math.inf]  # `b` says nothing of it


def test_a_second_worker_of_a_name_does_not_throw_out_one_that_answers():
    """Found in a review: the healthy worker ended, since another one had been started with its --id."""

    async def scenario(world):
        first, other = world.workers
        first.incarnation = 5
        await first.join()
        answers = [await world.post("/nodes/join", card(first, other.url, life)) for life in (4, 6, 2**63 - 2)]
        return answers, await first.tell("heartbeat"), world.driver.core.incarnation("a")

    answers, heartbeat, life = run(scenario)
    assert [code_of(answer) for answer in answers] == [(409, "node-name-taken")] * 3
    assert (heartbeat.status_code, life) == (200, 5)


def test_a_worker_that_was_restarted_takes_its_name_over_at_once_whatever_its_clock_says():
    async def scenario(world):
        first, other = world.workers
        for life, url in ((5, other.url), (1, first.url), (9, first.url)):
            first.is_dead = url == other.url
            first.incarnation = life
            joined = await world.post("/nodes/join", card(first, url, life))
            assert joined.status_code == 200
            assert world.driver.core.incarnation("a") == life
            first.incarnation = life + 1  # it answers in a later life by the next turn
        return world.driver.backend_client.urls["a"]

    assert run(scenario) == "http://a.test"


def test_nobody_locks_a_worker_out_by_claiming_its_name_with_a_number_that_no_clock_shows():
    """Found in a review."""

    async def scenario(world):
        real, _ = world.workers
        await real.tell("leave")
        claimed = await world.post("/nodes/join", card(real, "http://nobody.test", 2**63 - 2))
        return claimed, await real.join(), await real.tell("heartbeat")

    assert [answer.status_code for answer in run(scenario)] == [200, 200, 200]


def card(worker, url, incarnation):
    figures = dict.fromkeys(("compute_capability", "memory_bytes", "memory_bandwidth_bytes_per_s"), 1e9)
    life = {"node_id": worker.name, "incarnation": incarnation, "url": url}
    return figures | life | {"fingerprint": SHAPE.fingerprint}


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


def asked(access, *, headers=None, client=("127.0.0.1", 1), url=None):
    """Return the refusal of a node's message, None where it is let in."""
    sent = {"content-type": "application/json"} | (headers or {})
    scope = {"type": "http", "client": client, "headers": [(k.encode(), v.encode()) for k, v in sent.items()]}

    async def asking():
        request = Request(scope)
        access.check_request(request)
        if url:
            await access.check_url(url, request)

    try:
        asyncio.run(asking())
    except ApiError as error:
        return error.status, error.code
    return None


LOCAL = NodeAccess(is_local=True)


@pytest.mark.parametrize(
    ("access", "client", "headers", "refused"),
    [
        (LOCAL, "127.0.0.1", {}, None),
        (LOCAL, "::1", {}, None),
        (LOCAL, "192.0.2.7", {}, (401, "node-token-missing")),
        (LOCAL, "127.0.0.1", {"origin": "http://evil.example"}, (401, "node-token-missing")),
        (LOCAL, "127.0.0.1", {"x-forwarded-for": "192.0.2.7"}, (401, "node-token-missing")),
        (LOCAL, "127.0.0.1", {"content-type": "application/x-www-form-urlencoded"}, (415, "not-json")),
        (LOCAL, "127.0.0.1", {"content-type": "text/plain"}, (415, "not-json")),
        (LOCAL, "127.0.0.1", {"content-type": "application/json; charset=utf-8"}, None),
        (NodeAccess(), "127.0.0.1", {}, (401, "node-token-missing")),
        (NodeAccess("secret"), "192.0.2.7", {}, None),
    ],
)
def test_without_a_token_only_this_machine_s_own_workers_are_let_in(access, client, headers, refused):
    """Found in a review: without tokens any page in a browser could join, and with one any client."""
    assert asked(access, client=(client, 1), headers=headers) == refused


@pytest.mark.parametrize(
    ("url", "client", "networks", "refused"),
    [
        ("http://127.0.0.1:9", "127.0.0.1", (), None),
        ("http://192.0.2.7:9", "192.0.2.7", (), None),
        ("http://[::ffff:192.0.2.7]:9", "192.0.2.7", (), None),
        ("http://169.254.169.254/", "192.0.2.7", (), (403, "outside-node-network")),
        ("http://127.0.0.1:6443", "192.0.2.7", (), (403, "outside-node-network")),
        ("http://192.0.2.8:9", "192.0.2.7", (), (403, "outside-node-network")),
        ("http://192.0.2.8:9", "192.0.2.7", ("192.0.2.0/24",), None),
        ("http://198.51.100.1:9", "192.0.2.7", ("192.0.2.0/24", "10.0.0.0/8"), (403, "outside-node-network")),
        ("ftp://192.0.2.7", "192.0.2.7", (), (422, "invalid_value")),
        ("http://user@192.0.2.7", "192.0.2.7", (), (422, "invalid_value")),
        ("http://192.0.2.7/admin", "192.0.2.7", (), (422, "invalid_value")),
        ("http://192.0.2.7?x=1", "192.0.2.7", (), (422, "invalid_value")),
        ("http://192.0.2.7:99999", "192.0.2.7", (), (422, "invalid_value")),
        ("http://no such host", "192.0.2.7", (), (422, "invalid_value")),
    ],
)
def test_the_gateway_talks_to_no_address_outside_the_nodes_networks(url, client, networks, refused):
    """Found in a review: it showed its token to whatever address a node named."""
    access = NodeAccess("secret", networks=tuple(read_network(text) for text in networks))
    assert asked(access, client=(client, 1), url=url) == refused


def test_what_is_no_network_is_refused():
    with pytest.raises(UsageError, match="--node-network nope"):
        read_network("nope")


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
