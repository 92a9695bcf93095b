from __future__ import annotations

import pytest

from tests.serving.gateway.engine_world import DONE, asked_of, chunk_of, run, told
from tests.serving.gateway.world import events_of, foretold, text_of


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


@pytest.mark.parametrize(("is_stream", "count"), [(True, 1), (False, 0)])
def test_the_time_of_a_token_after_the_first_is_of_answers_that_come_token_by_token(is_stream, count):
    """Of an answer in one piece it would be next to nothing."""

    async def scenario(world):
        assert (await world.request(prompt="x", max_tokens=4, stream=is_stream)).status_code == 200
        return (await world.client.get("/metrics")).text

    counts = [line for line in run(scenario).splitlines() if line.startswith("strata_tpot_seconds_count{")]
    assert counts == ['strata_tpot_seconds_count{model="llama"} 1.0'] * count
