from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import httpx
import pytest

from strata.errors import UsageError
from strata.net.http import Limits
from strata.serving.gateway.app import make_frame
from strata.serving.gateway.build import DEMAND, engine_model
from strata.serving.gateway.discovery import Backend, read_backend, watch
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.engines import Engines
from strata.serving.gateway.gateway import Gateway
from strata.serving.live.core import Core
from strata.serving.live.events import Leave
from tests.serving.gateway.world import FAST, FakeEngine, Wires, events_of, foretold, text_of


class EngineWorld:
    def __init__(self, names: str = "ab") -> None:
        self.engines = [FakeEngine(name) for name in names]
        self.gateway = Gateway()
        self.gateway.new_id = lambda: "1"
        client = httpx.AsyncClient(transport=Wires(self.engines))
        self.pauses_s: list[float] = []
        self.backend_client = Engines(
            client, default_tokens=DEMAND.output_tokens, silence_s=60.0, sleep=self.pause
        )
        self.driver = Driver(
            Core(FAST, engine_model("llama"), DEMAND),
            self.backend_client,
            self.gateway.meters,
            clock=lambda: 100.0,
        )
        self.gateway.drivers["llama"] = self.driver
        self.frame = make_frame(self.gateway, limits=Limits())
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.frame), base_url="http://gateway")

    async def pause(self, seconds):
        self.pauses_s.append(seconds)

    async def request(self, kind="completions", **more):
        return await self.client.post(f"/v1/{kind}", json={"model": "llama", **more})

    @asynccontextmanager
    async def up(self):
        watchers = []
        for engine in self.engines:
            backend = Backend(engine.url, "llama", 4)
            watchers.append(asyncio.create_task(watch(backend, engine.name, self.driver, self.backend_client)))
            await engine.polled.wait()
        while len(self.backend_client.urls) < len(self.engines):
            await asyncio.sleep(0)
        try:
            yield self
        finally:
            for task in watchers:
                task.cancel()
            await self.driver.stop()


def run(scenario, names="ab"):
    async def whole():
        async with EngineWorld(names).up() as world:
            return await scenario(world)

    return asyncio.run(whole())


def asked_of(world):
    return [body for engine in world.engines for path, body in engine.heard if "completions" in path]


def test_a_request_goes_to_an_engine_as_it_came_and_its_answer_comes_back_under_our_id():
    async def scenario(world):
        answer = await world.request(prompt="hello", max_tokens=4, top_p=0.5, guided_choice=["a"], priority=3)
        return answer.json(), asked_of(world)

    answer, asked = run(scenario)
    assert asked == [{"model": "llama", "prompt": "hello", "max_tokens": 4, "top_p": 0.5, "guided_choice": ["a"]}]
    assert answer["id"] == "cmpl-1"
    assert answer["choices"][0]["text"] == foretold("hello", 4)
    assert answer["choices"][0]["matched_stop"] is None
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("wants_usage", [True, False])
def test_a_stream_is_relayed_and_usage_shown_to_who_asked_for_it(wants_usage):
    async def scenario(world):
        more = {"stream_options": {"include_usage": True}} if wants_usage else {}
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True} | more
        return await world.request("chat/completions", **body)

    answer = run(scenario)
    *chunks, done = events_of(answer.content)
    assert done == "[DONE]"
    assert text_of(answer.content) == foretold("hi", 5)
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-1"}
    assert ("usage" in chunks[-1]) == wants_usage
    assert len([c for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]) == 1


@pytest.mark.parametrize("content", [b'"top_p":NaN', b'"user":"\\ud800"'])
def test_what_cannot_be_written_is_not_taken_for_a_broken_engine(content):
    async def scenario(world):
        body = b'{"model":"llama","prompt":"x","max_tokens":2,' + content + b"}"
        odd = await world.client.post("/v1/completions", content=body)
        return odd, await world.request(prompt="x"), len(asked_of(world))

    odd, after, num_asked = run(scenario)
    assert (odd.status_code, after.status_code, num_asked) == (400, 200, 1)


def test_an_engines_refusal_of_a_request_is_passed_on_and_not_tried_elsewhere():
    async def scenario(world):
        for engine in world.engines:
            engine.status = 422
        return await world.request(prompt="x"), asked_of(world)

    answer, asked = run(scenario)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "engine's own"
    assert len(asked) == 1


def test_an_engine_that_fails_every_request_is_not_asked_for_ever():
    async def scenario(world):
        for engine in world.engines:
            engine.status = 500
        return await world.request(prompt="x"), asked_of(world), world.pauses_s

    answer, asked, pauses_s = run(scenario)
    assert answer.status_code == 503
    assert len(asked) == FAST.max_attempts
    assert pauses_s == [0.1, 0.2, 0.4, 0.8, 1.6]


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


def test_the_option_names_an_address_a_model_and_slots():
    assert read_backend("http://a:1/v1/,model=m,slots=3") == Backend("http://a:1", "m", 3)
    assert read_backend("http://a:1") == Backend("http://a:1", "", 64)
    for wrong in ("a:1", "http://a:1,slots=0", "http://a:1,slots=x", "http://a:1,modle=m"):
        with pytest.raises(UsageError, match="--backend"):
            read_backend(wrong)
