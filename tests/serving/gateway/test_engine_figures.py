"""What engines say of themselves, and what the gateway makes of it: slots, memory, load, and where prompts go."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from itertools import pairwise

import pytest

from strata.serving.gateway.discovery import CONTEXT_TOKENS, SLOTS
from strata.serving.live.events import Tick
from tests.serving.gateway.engine_world import EngineWorld
from tests.serving.gateway.world import FAST

PROPS = {"total_slots": 3, "default_generation_settings": {"n_ctx": 2048}}
CONFIG = 'vllm:cache_config_info{block_size="16",engine="%d",kv_cache_size_tokens="4000"} 1.0\n'
GAUGE = 'vllm:num_requests_%s{engine="%d",model_name="llama"} %s\n'


def says(engine, owner, page="", *, props=None):
    engine.owner, engine.pages = owner, {"/metrics": page}
    if props is not None:
        engine.pages["/props"] = props if isinstance(props, str) else json.dumps(props)


async def look(world, *, seconds=1.0):
    world.now_s += seconds
    await world.watched()
    world.driver.post(Tick())


def node(world, name="a"):
    return next(node for node in world.driver.core.status()["nodes"] if node["id"] == name)


def started(scenario, *, slots=0, names="a", owner="somebody", **engine):
    """Run a scenario with engines that say this from the start."""

    async def whole():
        world = EngineWorld(names, slots=slots, config=replace(FAST, routing_strategy="auto"))
        for one in world.engines:
            says(one, owner, **engine)
        async with world.up():
            return await scenario(world)

    return asyncio.run(whole())


@pytest.mark.parametrize(
    ("engine", "slots", "kv_tokens"),
    [
        ({"owner": "vllm", "page": CONFIG % 0 + CONFIG % 1}, SLOTS, 8000),
        ({"owner": "llamacpp", "props": PROPS}, 3, 6144),
        ({"owner": "llamacpp", "props": PROPS | {"total_slots": -1}}, SLOTS, SLOTS * CONTEXT_TOKENS),
        ({"owner": "llamacpp", "props": "none"}, SLOTS, SLOTS * CONTEXT_TOKENS),
        ({"owner": "llamacpp", "props": "[]"}, SLOTS, SLOTS * CONTEXT_TOKENS),
        ({"owner": "somebody", "page": CONFIG % 0, "props": PROPS}, SLOTS, SLOTS * CONTEXT_TOKENS),
    ],
)
def test_an_engines_limits_are_its_own_word_where_it_gives_one(engine, slots, kv_tokens):
    async def scenario(world):
        return node(world), [path for path, _ in world.engines[0].heard]

    found, heard = started(scenario, **engine)
    assert (found["slots"], found["kv_tokens"]) == (slots, kv_tokens)
    if engine["owner"] == "somebody":
        assert set(heard) == {"/v1/models"}


def test_slots_that_the_user_gave_stand_against_the_engines():
    async def scenario(world):
        return node(world)["slots"]

    assert started(scenario, slots=2, owner="llamacpp", props=PROPS) == 2


@pytest.mark.parametrize("tokens", [1, 20])
def test_no_request_is_refused_by_an_estimate_of_its_length(tokens):
    """An engine counts tokens; the gateway, which takes four bytes for one, only books what there is."""

    async def scenario(world):
        return await world.request(prompt="word " * 100, max_tokens=50)

    page = CONFIG.replace("4000", str(tokens)) % 0
    assert started(scenario, owner="vllm", page=page).status_code == 200


def test_an_engine_that_comes_back_with_other_limits_has_those():
    async def scenario(world):
        says(world.engines[0], "llamacpp", props=PROPS | {"total_slots": 5})
        world.backend_client.broken["a"].set()
        while node(world)["slots"] != 5:
            await look(world)
        return await world.request(prompt="hello", max_tokens=2)

    assert started(scenario, owner="llamacpp", props=PROPS).status_code == 200


def test_ours_go_where_others_send_less():
    """Two engines alike; requests that did not come through us make one of them the dearer."""
    busy = GAUGE % ("running", 0, "3.0") + GAUGE % ("waiting", 0, "1.0") + GAUGE % ("running", 1, "2e0")

    async def scenario(world):
        world.engines[0].pages["/metrics"] = busy
        await look(world)
        others = node(world)["others"]
        for _ in range(4):
            await world.request(prompt="hello", max_tokens=2)
        went = [len(engine.said("/v1/completions")) for engine in world.engines]
        world.engines[0].pages["/metrics"] = "vllm:num_requests_running{} nonsense\n"
        await look(world)
        return others, went, node(world)["others"]

    assert started(scenario, owner="vllm", names="ab") == (6, [0, 4], 0)


def test_requests_of_ours_are_not_taken_for_others():
    async def scenario(world):
        (engine,) = world.engines
        engine.pause_at = 1
        asked = asyncio.create_task(world.request(prompt="hello", max_tokens=3, n=2, stream=True))
        while not world.driver.streams or not world.driver.streams["cmpl-1"].num_generated:
            await asyncio.sleep(0)
        engine.pages["/metrics"] = GAUGE % ("running", 0, "3.0")
        await look(world)
        engine.resumes.set()
        asked.cancel()
        return node(world)["others"]

    assert started(scenario, owner="vllm") == 1


def test_a_prompt_goes_where_its_beginning_was_read():
    """Found with vLLM: engines' prompts had no blocks, and their costs were so small that none counted."""

    async def scenario(world):
        went = []
        for number in range(6):
            begin = f"conversation {number % 3}: ".ljust(4000, "-")
            await world.request("chat/completions", messages=[{"role": "user", "content": f"{begin} {number}"}])
            went.append([len(engine.said("/v1/chat/completions")) for engine in world.engines])
        return went

    went = started(scenario, names="ab")
    where = [[a - b for a, b in zip(now, before, strict=True)] for before, now in pairwise([[0, 0], *went])]
    assert where[:3] == where[3:]
    assert [1, 0] in where
    assert [0, 1] in where


def test_an_engine_that_serves_another_model_now_is_out():
    """Found with llama.cpp's server, started again with another model: who asked for the first got the second."""

    async def scenario(world):
        engine, watcher = world.engines[0], world.watchers[0]
        engine.model = "other"
        serves_it = await watcher.look()
        out = [one["id"] for one in world.driver.core.status()["nodes"]]
        engine.model = "llama"
        await watcher.look()
        return serves_it, out, len(world.driver.core.status()["nodes"])

    assert started(scenario, names="ab") == (False, ["b"], 2)
