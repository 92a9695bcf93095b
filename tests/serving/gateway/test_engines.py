from __future__ import annotations

import asyncio

import pytest

from strata.errors import UsageError
from strata.serving.gateway.discovery import Backend, read_backend
from strata.serving.live.events import Tick
from tests.serving.gateway.engine_world import asked_of, run, told
from tests.serving.gateway.world import FAST, events_of, foretold, text_of


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


@pytest.mark.parametrize("content", [b'"top_p":NaN', b'"top_p":1e999', b'"top_p":-Infinity', b'"user":"\\ud800"'])
def test_what_cannot_be_written_is_not_taken_for_a_broken_engine(content):
    async def scenario(world):
        body = b'{"model":"llama","prompt":"x","max_tokens":2,' + content + b"}"
        odd = await world.client.post("/v1/completions", content=body)
        return odd, await world.request(prompt="x"), len(asked_of(world))

    odd, after, num_asked = run(scenario)
    assert (odd.status_code, after.status_code, num_asked) == (400, 200, 1)


@pytest.mark.parametrize("number", ["8", "8.0", "8e0", "0.8e1"])
def test_a_whole_number_is_one_for_engines_however_it_was_written(number):
    async def scenario(world):
        body = f'{{"model":"llama","prompt":"x","temperature":0.5,"max_tokens":{number}}}'
        await world.client.post("/v1/completions", content=body)
        return asked_of(world)

    (asked,) = run(scenario)
    assert (asked["max_tokens"], type(asked["max_tokens"]), asked["temperature"]) == (8, int, 0.5)


@pytest.mark.parametrize("number", ["5", "5.0", "5e0", "0.5e1"])
def test_the_tokens_of_a_prompt_are_whole_numbers_for_engines(number):
    async def scenario(world):
        body = f'{{"model":"llama", "prompt":[{number}],"max_tokens":2}}'
        await world.client.post("/v1/completions", content=body)
        return asked_of(world)

    (asked,) = run(scenario)
    assert (asked["prompt"], type(asked["prompt"][0])) == ([5], int)


def test_a_text_with_numbers_in_it_reaches_an_engine_in_the_clients_own_bytes():
    """Found by a profile: a text that spoke of 1.0 had its whole request read and written anew."""
    body = b'{ "model" : "llama", "prompt" : "version 1.0, seed: 3e8", "temperature": 1.0 }'

    heard = []

    async def scenario(world):
        for engine in world.engines:
            answer = engine.answer

            def hear(path, body, answer=answer):
                heard.append(body)
                return answer(path, body)

            engine.answer = hear
        await world.client.post("/v1/completions", content=body)

    run(scenario)
    assert body in heard


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


def test_the_option_names_an_address_a_model_and_slots():
    assert read_backend("http://a:1/v1/,model=m,slots=3") == Backend("http://a:1", "m", 3)
    assert read_backend("http://a:1") == Backend("http://a:1", "", 0)
    for wrong in ("a:1", "http://a:1,slots=0", "http://a:1,slots=x", "http://a:1,modle=m"):
        with pytest.raises(UsageError, match="--backend"):
            read_backend(wrong)
