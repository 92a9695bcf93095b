from __future__ import annotations

import asyncio
import itertools

import pytest

from strata.serving.live.events import Leave
from tests.serving.gateway.engine_world import asked_of, run, told
from tests.serving.gateway.world import events_of, foretold, text_of


def test_a_stream_that_only_an_engine_understands_does_not_begin_anew_elsewhere():
    async def scenario(world):
        for engine in world.engines:
            engine.stream = told(b"event: one\ndata: {}\n\n", breaks=True)
        return await world.request("responses", input="x", stream=True)

    answer = run(scenario)
    assert answer.content.count(b"event: one") == 1
    assert events_of(answer.content.split(b"\n\n")[-2])[-1]["error"]["code"] == "engine-lost"


def test_an_engine_that_dies_before_its_first_token_is_replaced_unseen():
    async def scenario(world):
        one, _ = world.engines
        one.is_dead = True
        return [await world.request(prompt="hello", max_tokens=6) for _ in range(4)]

    for answer in run(scenario):
        assert answer.json()["choices"][0]["text"] == foretold("hello", 6)


def test_a_completion_goes_on_elsewhere_with_what_it_had_and_counts_as_one():
    async def scenario(world):
        world.engines[0].chunks_left = 3
        more = {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}}
        answers = [await world.request(prompt="hello", **more) for _ in range(2)]
        return [answer.content for answer in answers], asked_of(world)

    bodies, asked = run(scenario)
    assert sorted(one["max_tokens"] for one in asked) == [5, 8, 8]
    for body in bodies:
        assert text_of(body) == foretold("hello", 8)
        assert events_of(body)[-2]["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}


def test_a_chat_that_has_begun_ends_with_an_error_event_as_nobody_else_can_go_on_with_it():
    async def scenario(world):
        world.engines[0].chunks_left = 3
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": True}
        return await world.request("chat/completions", **body)

    answer = run(scenario, names="a")
    assert text_of(answer.content) == foretold("hi", 3)
    assert events_of(answer.content)[-1]["error"]["code"] == "engine-lost"


def chats(*, owners, engine=None, **more):
    """Two chats, one of which breaks off after three letters; their bodies, and what was asked of engines."""

    async def scenario(world):
        for one, owner in zip(world.engines, owners, strict=True):
            one.owner = owner
            world.backend_client.broken[one.name].set()  # asks again what it is
            one.polled.clear()
            await one.polled.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        for name, value in (engine or {}).items():
            setattr(world.engines[0], name, value)
        world.engines[0].chunks_left = 3
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "stream": True} | more
        answers = [await world.request("chat/completions", **body) for _ in range(2)]
        return [answer.content for answer in answers], asked_of(world)

    return run(scenario)


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens"])
def test_a_chat_goes_on_on_an_engine_that_takes_an_open_message(limit):
    bodies, asked = chats(owners=("vllm", "vllm"), **{"max_tokens": None, limit: 8})
    (again,) = [one for one in asked if "continue_final_message" in one]
    assert again["messages"] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": foretold("hi", 3)},
    ]
    assert again["max_tokens"] == 5
    for body in bodies:
        assert text_of(body) == foretold("hi", 8)
        roles = [
            c["delta"]["role"] for one in events_of(body)[:-1] for c in one["choices"] if "role" in c["delta"]
        ]
        assert roles == ["assistant"]


@pytest.mark.parametrize(
    "case",
    [
        {"owners": ("vllm", "somebody")},
        {"owners": ("vllm", "vllm"), "presence_penalty": 1},
        {"owners": ("vllm", "vllm"), "engine": {"delta": {"reasoning_content": "hm"}}},
    ],
)
def test_a_chat_that_would_not_be_the_same_ends_with_an_error_event(case):
    bodies, asked = chats(**case)
    assert not any("continue_final_message" in one for one in asked)
    (broken,) = [body for body in bodies if text_of(body) != foretold("hi", 8)]
    assert text_of(broken) == foretold("hi", 3)
    assert events_of(broken)[-1]["error"]["code"] == "engine-lost"


def test_a_chat_that_the_scheduler_takes_back_does_not_begin_anew_elsewhere():
    async def scenario(world):
        stream = None
        for engine in world.engines:
            engine.pause_at = 3
        asked = asyncio.create_task(
            world.request(
                "chat/completions", messages=[{"role": "user", "content": "hi"}], max_tokens=8, stream=True
            )
        )
        while not (stream and stream.num_generated == 3):
            stream = world.driver.streams.get("chatcmpl-1")
            await asyncio.sleep(0)
        used = next(engine for engine in world.engines if engine.said("/v1/chat/completions"))
        world.driver.post(Leave(used.name, 1))
        return await asked, asked_of(world)

    answer, asked = run(scenario)
    assert text_of(answer.content) == foretold("hi", 3)
    assert events_of(answer.content)[-1]["error"]["code"] == "engine-lost"
    assert len(asked) == 1


def test_an_engine_that_was_away_is_used_again_when_it_answers():
    async def scenario(world):
        engine = world.engines[0]
        engine.is_dead = True
        waiting = asyncio.create_task(world.request(prompt="hello", max_tokens=6))
        while world.driver.core.status()["ready"]:
            await asyncio.sleep(0)
        engine.is_dead = False
        world.backend_client.broken["a"].set()
        return await waiting

    answer = run(scenario, names="a")
    assert answer.json()["choices"][0]["text"] == foretold("hello", 6)


def test_nothing_of_an_answer_follows_the_error_that_ended_it():
    """What an attempt still has when a request is given up must not reach a connection that goes on."""
    written = []

    async def scenario(world):
        (engine,) = world.engines
        engine.pause_at = 3
        asked = asyncio.create_task(world.request(prompt="hello", max_tokens=6, stream=True))
        while not (world.driver.streams and world.driver.streams["cmpl-1"].num_generated == 3):
            await asyncio.sleep(0)
        stream = world.driver.streams["cmpl-1"]
        stream.write = lambda piece: written.append(piece) or True
        world.driver.give_up()
        stream.put(b"data: late\n\n")
        engine.resumes.set()
        return await asked

    answer = run(scenario, names="a")
    assert text_of(answer.content) == foretold("hello", 3)
    assert events_of(answer.content)[-1]["error"]["code"] == "draining"
    assert written == []


@pytest.fixture
def _impatient(monkeypatch):
    """Silence has an end after two seconds instead of a hundred."""
    monkeypatch.setattr("strata.serving.gateway.pace.SHARE", 2.0 / 600.0)
    monkeypatch.setattr("strata.serving.gateway.connections.LOOK_S", 0.1)


def hung(kind, **asked):
    """Ask two engines, one of which stands still after three letters and says that it is well."""

    async def scenario(world):
        world.engines[0].pause_at = 3
        answers = await asyncio.gather(
            *(world.request(kind, max_tokens=8, stream=True, **asked) for _ in range(2))
        )
        world.engines[0].resumes.set()
        return [answer.content for answer in answers]

    ids = itertools.count(1)

    async def named(world):
        world.gateway.new_id = lambda: str(next(ids))
        return await scenario(world)

    return run(named, wired=True)


@pytest.mark.usefixtures("_impatient")
def test_a_stream_that_stands_still_goes_on_elsewhere_though_its_engine_answers_what_else_is_asked():
    assert [text_of(body) for body in hung("completions", prompt="hello")] == [foretold("hello", 8)] * 2


@pytest.mark.usefixtures("_impatient")
def test_a_stream_that_stands_still_and_that_nobody_can_go_on_with_ends_with_an_error_that_says_so():
    bodies = hung("chat/completions", messages=[{"role": "user", "content": "hi"}])
    (broken,) = [body for body in bodies if text_of(body) != foretold("hi", 8)]
    assert text_of(broken) == foretold("hi", 3)
    error = events_of(broken)[-1]["error"]
    assert error["code"] == "engine-lost"
    assert "nothing came for" in error["message"]
