from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from strata.errors import UsageError
from strata.net.http import Limits
from strata.serving.gateway.app import make_frame
from strata.serving.gateway.build import DEMAND, engine_model
from strata.serving.gateway.discovery import Backend, Watcher, read_backend
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.engines import Engines
from strata.serving.gateway.gateway import Gateway
from strata.serving.live.core import Core
from strata.serving.live.events import Leave, Tick
from tests.serving.gateway.world import FAST, FakeEngine, Wires, events_of, foretold, text_of


class LocalConnections:
    """Connections to engines in this process."""

    def __init__(self, client):
        self.client = client

    @asynccontextmanager
    async def stream(self, url, content, *, connect_s, silence_s):
        async with self.client.stream("POST", url, content=content) as answer:
            answer.is_whole = True
            yield answer


class EngineWorld:
    def __init__(self, names: str = "ab") -> None:
        self.engines = [FakeEngine(name) for name in names]
        self.gateway = Gateway()
        self.gateway.new_id = lambda: "1"
        self.now_s = 100.0
        client = httpx.AsyncClient(transport=Wires(self.engines))
        self.pauses_s: list[float] = []
        self.watchers: list[Watcher] = []
        self.backend_client = Engines(
            client,
            LocalConnections(client),
            default_tokens=DEMAND.output_tokens,
            silence_s=60.0,
            answer_s=60.0,
            sleep=self.pause,
        )
        self.driver = Driver(
            Core(FAST, engine_model("llama"), DEMAND),
            self.backend_client,
            self.gateway.meters,
            clock=lambda: self.now_s,
        )
        self.gateway.drivers["llama"] = self.driver
        self.frame = make_frame(self.gateway, limits=Limits())
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.frame), base_url="http://gateway")

    async def pause(self, seconds):
        self.pauses_s.append(seconds)

    async def watched(self):
        """Have every engine looked after once more."""
        for watcher in self.watchers:
            await watcher.look()

    async def request(self, kind="completions", **more):
        return await self.client.post(f"/v1/{kind}", json={"model": "llama", **more})

    @asynccontextmanager
    async def up(self):
        tasks = []
        for engine in self.engines:
            backend = Backend(engine.url, "llama", 4)
            self.watchers.append(Watcher(backend, engine.name, self.driver, self.backend_client))
            tasks.append(asyncio.create_task(self.watchers[-1].run()))
            await engine.polled.wait()
        while len(self.backend_client.urls) < len(self.engines):
            await asyncio.sleep(0)
        try:
            yield self
        finally:
            for task in tasks:
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


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_engine_that_refuses_every_request_is_not_asked_for_ever_and_its_own_words_reach_the_client(status):
    """Found in a review: a 429 with Retry-After became a 503 "given up after 5 attempts"."""

    async def scenario(world):
        for engine in world.engines:
            engine.status, engine.headers = status, {"retry-after": "7"}
        return await world.request(prompt="x"), asked_of(world), world.pauses_s

    answer, asked, pauses_s = run(scenario)
    assert (answer.status_code, answer.headers["retry-after"]) == (status, "7")
    assert answer.json()["error"]["code"] == "engine's own"
    assert len(asked) == FAST.max_attempts
    assert pauses_s == [0.1, 0.2, 0.4, 0.8, 1.6]


def chunk_of(text="", finish=None, index=0, **more):
    choice = {"index": index, "finish_reason": finish, "text": text}
    return b"data: %s\n\n" % json.dumps({"id": "theirs", "choices": [choice]} | more).encode()


DONE = b"data: [DONE]\n\n"


def told(*pieces, breaks=False):
    """An engine's stream."""

    async def stream(text, usage, *, is_chat):
        for piece in pieces:
            yield piece
        if breaks:
            raise httpx.ReadError("reset")

    return stream


@pytest.mark.parametrize(
    ("pieces", "breaks"),
    [
        ((chunk_of("hello"), chunk_of(finish="stop")), False),
        ((chunk_of("hello"), chunk_of(finish="stop")), True),
        ((chunk_of("hello", finish="stop") + DONE,), False),
    ],
    ids=["closed without [DONE]", "reset instead of [DONE]", "all in one piece"],
)
def test_an_answer_that_said_why_it_ended_is_complete_with_or_without_done(pieces, breaks):
    """Found in a review: without [DONE] the client got the whole text twice."""

    async def scenario(world):
        for engine in world.engines:
            engine.stream = told(*pieces, breaks=breaks)
        return await world.request(prompt="x", stream=True), asked_of(world)

    answer, asked = run(scenario)
    assert text_of(answer.content) == "hello"
    assert events_of(answer.content)[-1] == "[DONE]"
    assert len(asked) == 1


def test_an_answer_that_is_done_without_having_said_why_is_not_complete():
    """Found in a review: a text that was cut off passed as the whole one."""

    async def completions(world):
        world.engines[0].stream = told(*map(chunk_of, foretold("hello", 8)[:3]), DONE)
        return [await world.request(prompt="hello", max_tokens=8, stream=True) for _ in range(2)]

    async def chat(world):
        world.engines[0].stream = told(chunk_of("hel"), DONE)
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        return await world.request("chat/completions", **body)

    assert {text_of(answer.content) for answer in run(completions)} == {foretold("hello", 8)}
    assert events_of(run(chat, names="a").content)[-1]["error"]["code"] == "engine-lost"


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": 3}, {}, None, 5, {"prompt_tokens": 3, "completion_tokens": None}]
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_usage_that_says_less_than_all_costs_nobody_an_answer(usage, is_stream):
    """Found in a review: without completion_tokens the answer was generated five times, and then a 503."""

    async def scenario(world):
        choice = {"index": 0, "finish_reason": "length", "text": "hi"}
        for engine in world.engines:
            engine.stream = told(chunk_of("hi", "stop"), chunk_of(usage=usage), DONE)
            engine.document = {"id": "theirs", "choices": [choice], "usage": usage}
        return await world.request(prompt="x", stream=is_stream), asked_of(world)

    answer, asked = run(scenario)
    assert answer.status_code == 200
    assert "hi" in answer.text
    assert len(asked) == 1


@pytest.mark.parametrize(
    "bad", [b"data: 5\n\n", b"data: {\n\n", b'data: {"choices":[{"delta":5}]}\n\n', b"x" * 2**21]
)
def test_nonsense_from_an_engine_is_a_failed_attempt(bad):
    async def scenario(world):
        world.engines[0].stream = told(bad)
        return [await world.request(prompt="hello", max_tokens=4, stream=True) for _ in range(4)]

    for answer in run(scenario):
        assert text_of(answer.content) == foretold("hello", 4)


def test_what_a_current_engine_sends_is_handed_on_byte_for_byte_but_for_its_id():
    theirs = b'{"id": "theirs", "object":"text_completion","created":5,"model":"llama","choices":[' + (
        b'{"index":0,"text":"a\\"id\\": \\"theirs\\"  \xc3\xa9","finish_reason":"stop","odd":[1 , 2]}]}'
    )

    async def scenario(world):
        for engine in world.engines:
            engine.stream = told(b"data: " + theirs + b"\n\n", DONE)
        return await world.request(prompt="x", stream=True)

    expected = theirs.replace(b'"id": "theirs"', b'"id":"cmpl-1"', 1).replace(
        b'"model":"llama"', b'"model":"llama"'
    )
    assert run(scenario).content == b"data: " + expected + b"\n\n" + DONE


def test_an_engine_that_streams_lives_and_is_not_asked_anything_meanwhile():
    """Found in a review: it was expelled as silent in the middle of a stream: it answers nothing else then."""

    async def scenario(world):
        (engine,) = world.engines
        engine.pause_at, engine.resumes = 3, asyncio.Event()
        asked = asyncio.create_task(world.request(prompt="hello", max_tokens=6, stream=True))
        while not (world.driver.streams and world.driver.streams["cmpl-1"].num_generated == 3):
            await asyncio.sleep(0)
        engine.is_deaf = True  # to /v1/models
        num_polled = len(engine.said("/v1/models"))
        for _ in range(30):
            world.now_s += 1.0
            await world.watched()
            world.driver.post(Tick())
        polled = len(engine.said("/v1/models")) - num_polled
        engine.resumes.set()
        return await asked, polled, world.driver.core.status()["ready"]

    answer, polled, is_ready = run(scenario, names="a")
    assert text_of(answer.content) == foretold("hello", 6)
    assert (polled, is_ready) == (0, True)


def test_an_engine_that_hangs_comes_back_only_after_it_has_answered_a_request():
    """Found in a review: it still answered /v1/models, and clients waited for it again and again."""

    async def scenario(world):
        one, _ = world.engines
        one.hangs = True
        answers = [await world.request(prompt="hello", max_tokens=6, stream=True) for _ in range(6)]
        num_tried = len([body for body in one.said("/v1/completions") if body["prompt"] != "a"])
        one.hangs = False
        world.backend_client.broken["a"].set()
        while world.driver.core.status()["suspects"]:
            world.now_s += 1.0
            await world.watched()
        return answers, num_tried, world.driver.core.status()

    answers, num_tried, status = run(scenario)
    assert [text_of(answer.content) for answer in answers] == [foretold("hello", 6)] * 6
    assert num_tried == 1
    assert len(status["nodes"]) == 2


def test_what_only_engines_can_do_goes_to_them_as_it_came():
    """Found in a review: the gateway refused for engines what its own workers cannot do."""

    async def scenario(world):
        asked = [
            {"prompt": "x", "n": 3},
            {"prompt": ["x", "y"]},
            {"prompt": [[1, 2], [3]]},
            {"prompt": [100_000]},
            {"prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 1},
            {"prompt": "x", "stop": ["a", "b", "c", "d", "e"]},
        ]
        answers = [await world.request(**body) for body in asked]
        image = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
        chat = {"messages": [{"role": "critic", "content": image}]}
        answers.append(await world.request("chat/completions", **chat))
        return answers, [*asked, chat], asked_of(world)

    answers, sent, asked = run(scenario)
    assert [answer.status_code for answer in answers] == [200] * 7
    assert sorted(map(repr, map(sorted, map(dict.items, asked)))) == sorted(
        repr(sorted({"model": "llama", **body}.items())) for body in sent
    )


@pytest.mark.parametrize("path", ["embeddings", "responses", "rerank"])
def test_endpoints_that_engines_alone_have_are_passed_through(path):
    document = {"object": "list", "data": [{"embedding": [0.5]}], "usage": {"prompt_tokens": 2}}

    async def scenario(world):
        for engine in world.engines:
            engine.document = document
        whole = await world.request(path, input="x", dimensions=1)
        for engine in world.engines:
            engine.stream = told(b"event: response.created\ndata: {}\n\n", b"event: done\ndata: {}\n\n")
        return whole, await world.request(path, input="x", stream=True), world

    whole, stream, world = run(scenario)
    assert whole.json() == document
    assert stream.content == b"event: response.created\ndata: {}\n\nevent: done\ndata: {}\n\n"
    asked = [body for engine in world.engines for to, body in engine.heard if to == f"/v1/{path}"]
    assert asked[0] == {"model": "llama", "input": "x", "dimensions": 1}
    assert "stream_options" not in asked[1]


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


def test_the_option_names_an_address_a_model_and_slots():
    assert read_backend("http://a:1/v1/,model=m,slots=3") == Backend("http://a:1", "m", 3)
    assert read_backend("http://a:1") == Backend("http://a:1", "", 64)
    for wrong in ("a:1", "http://a:1,slots=0", "http://a:1,slots=x", "http://a:1,modle=m"):
        with pytest.raises(UsageError, match="--backend"):
            read_backend(wrong)


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
