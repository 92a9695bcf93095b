"""Asks a gateway through OpenAI's and litellm's libraries: run by the engines' own Python. `ask_openai.py URL`

It has two keys: `alice` may ask as she likes, `bob` once a minute. The engine is llama.cpp's server.
"""

from __future__ import annotations

import asyncio
import sys

import litellm
import openai
import pytest

URL = sys.argv[1] + "/v1"
MODEL = "llama"
CHAT = [{"role": "user", "content": "once upon a time"}]


def client(key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=URL, api_key=key, max_retries=0)


def refused(kind: type[openai.APIStatusError], ask, code: str | None) -> openai.APIStatusError:
    """Return the error that a request ends with."""
    with pytest.raises(kind) as caught:
        ask()
    assert caught.value.code == code, caught.value
    assert caught.value.request_id, caught.value
    return caught.value


def chats(alice: openai.OpenAI) -> None:
    assert [model.id for model in alice.models.list()] == [MODEL]
    assert alice.models.retrieve(MODEL).id == MODEL
    said = alice.chat.completions.create(model=MODEL, messages=CHAT, max_completion_tokens=12, temperature=0)
    text = said.choices[0].message.content
    assert (len(text), said.usage.completion_tokens, said.choices[0].finish_reason) == (12, 12, "length")
    assert said.id.endswith(said._request_id)

    asked = {"model": MODEL, "messages": CHAT, "max_tokens": 12, "temperature": 0}
    *chunks, last = alice.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert (last.choices, last.usage.completion_tokens) == ([], 12)
    with alice.chat.completions.stream(**asked) as stream:
        assert "".join(event.delta for event in stream if event.type == "content.delta") == text

    several = alice.chat.completions.create(**asked | {"n": 2, "temperature": 1, "seed": 7, "stop": ["qq"]})
    assert [choice.index for choice in several.choices] == [0, 1]
    logs = alice.chat.completions.create(**asked, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(logs) == 12
    with alice.chat.completions.create(**asked | {"max_tokens": 1500}, stream=True) as left:
        next(iter(left))


def others(alice: openai.OpenAI) -> None:
    said = alice.completions.create(model=MODEL, prompt="once", max_tokens=5, temperature=0)
    chunks = alice.completions.create(model=MODEL, prompt="once", max_tokens=5, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == said.choices[0].text
    answer = alice.responses.create(model=MODEL, input="once upon a time", max_output_tokens=5)
    assert answer.output_text
    events = list(alice.responses.create(model=MODEL, input="once", max_output_tokens=5, stream=True))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")


def errors(alice: openai.OpenAI) -> None:
    ask = alice.chat.completions.create
    refused(openai.BadRequestError, lambda: ask(model=MODEL, messages=CHAT, temperature=3), "invalid_value")
    refused(openai.BadRequestError, lambda: ask(model=MODEL, messages=[{"role": "user"}]), "400")
    refused(openai.NotFoundError, lambda: ask(model="other", messages=CHAT), "model_not_found")
    refused(openai.AuthenticationError, client("mallory").models.list, "token-missing")
    refused(openai.InternalServerError, lambda: alice.embeddings.create(model=MODEL, input="x"), "501")
    bob = client("bob").completions
    bob.create(model=MODEL, prompt="x", max_tokens=1)
    late = refused(
        openai.RateLimitError, lambda: bob.create(model=MODEL, prompt="x", max_tokens=1), "rate_limit_exceeded"
    )
    assert 0 < int(late.response.headers["retry-after"]) <= 60


async def through_litellm() -> None:
    asked = {"model": f"openai/{MODEL}", "messages": CHAT, "max_tokens": 12, "temperature": 0}
    told = {"api_base": URL, "api_key": "alice", "num_retries": 0}
    text = litellm.completion(**asked, **told).choices[0].message.content
    stream = await litellm.acompletion(**asked, **told, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage.completion_tokens == 12
    said = await litellm.atext_completion(
        model=f"text-completion-openai/{MODEL}", prompt="a", max_tokens=3, **told
    )
    assert len(said.choices[0].text) == 3
    for kind, wrong in ((litellm.NotFoundError, {"model": "openai/other"}), (litellm.BadRequestError, {"n": 0})):
        with pytest.raises(kind):
            await litellm.acompletion(**asked | wrong, **told)


alice = client("alice")
chats(alice)
others(alice)
errors(alice)
asyncio.run(through_litellm())
sys.stdout.write("all is well\n")
