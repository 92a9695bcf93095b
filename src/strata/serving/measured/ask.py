"""Asks a live server for completions as requests come, and logs what its answers took."""

from __future__ import annotations

import asyncio
import json
import random
import string
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import httpx

from strata.errors import MissingPart, UsageError
from strata.serving.measured.log import Log
from strata.workload.requests import Request

PROBE_BYTES: Final = 2000
ANSWER_S: Final = 600.0
"""Longest wait for the next piece of an answer."""


class Answers(NamedTuple):
    """The log of what was answered, and what was wrong with the rest."""

    log: Log
    errors: list[str]


async def ask(url: str, requests: Sequence[Request], *, token: str = "", seed: int = 0) -> Answers:
    """Ask for completions of random texts.

    Raises MissingPart where nobody answers or nobody serves, UsageError for a refusal.

    How many tokens a text has is what the server says of one; those of each request are what it says of them.
    """
    headers = {"authorization": f"Bearer {token}"} if token else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=ANSWER_S, limits=limits) as client:
        try:
            models = await client.get("/v1/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise MissingPart(f"nobody answers at {url}: {error}", hint="strata serve gateway") from None
        if models.status_code != httpx.codes.OK:
            raise UsageError(f"{url}/v1/models answered {models.status_code}", hint="STRATA_TOKEN")
        await _check_ready(client, url)
        listed = models.json().get("data") or [{}]
        asker = _Asker(client, str(listed[0].get("id", "")), random.Random(seed))
        try:
            probe = await asker.answer(PROBE_BYTES, 1, time.perf_counter())
        except ValueError as error:
            raise UsageError(
                f"{url}: {error}", hint="a server of OpenAI's completions that streams usage"
            ) from None
        asker.bytes_per_token = PROBE_BYTES / probe[1]
        answers = await asyncio.gather(*asker.all(requests), return_exceptions=True)
    rows, errors = list[tuple[float, ...]](), list[str]()
    for answer in answers:
        if isinstance(answer, (ValueError, httpx.HTTPError)):
            errors.append(f"{type(answer).__name__}: {answer}")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            rows.append(answer)
    if not rows:
        raise UsageError(f"{url} answered none of {len(answers)} requests: {errors[0]}")
    return Answers(Log.of(rows), errors)


async def _check_ready(client: httpx.AsyncClient, url: str) -> None:
    """Raise MissingPart where a gateway says that nobody serves: requests would wait for somebody to join."""
    health = await client.get("/healthz")
    if health.status_code != httpx.codes.SERVICE_UNAVAILABLE:
        return  # ready, or an engine, which has no such path
    try:
        reason = health.json()["reason"]
    except (ValueError, LookupError, TypeError):
        reason = "/healthz answered 503"
    raise MissingPart(f"{url} serves nothing yet: {reason}", hint=f"strata serve worker --gateway {url}")


class _Asker:
    def __init__(self, client: httpx.AsyncClient, model: str, rng: random.Random) -> None:
        self.bytes_per_token = 1.0
        self._client, self._model, self._rng = client, model, rng

    def all(self, requests: Sequence[Request]) -> list[Any]:
        """Return what asks for each request when it comes."""
        start_s = time.perf_counter()

        async def answer_of(request: Request) -> tuple[float, ...]:
            await asyncio.sleep(start_s + request.at_s - time.perf_counter())
            size = max(1, round(request.prompt_tokens * self.bytes_per_token))
            return await self.answer(size, request.output_tokens, start_s)

        return [answer_of(request) for request in requests]

    async def answer(self, size: int, max_tokens: int, start_s: float) -> tuple[float, ...]:
        """Return a row of a log. Raises ValueError and HTTPError where there is none."""
        # Words that nothing has cached.
        text = "".join(self._rng.choices(string.ascii_lowercase + " ", k=size))
        body = {"model": self._model, "prompt": text, "max_tokens": max_tokens, "temperature": 1.0, "stream": True}
        body["stream_options"] = {"include_usage": True}
        at_s = time.perf_counter()
        first_s = last_s = 0.0
        usage: dict[str, Any] = {}
        async with self._client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != httpx.codes.OK:
                reply = (await response.aread()).decode(errors="replace")[:300]
                raise ValueError(f"HTTP status {response.status_code}: {reply}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise ValueError(f"{event['error']}"[:300])
                if event.get("choices"):
                    last_s = time.perf_counter()
                    first_s = first_s or last_s
                usage = event.get("usage") or usage
        prompt, output = (usage.get(f"{kind}_tokens", 0) for kind in ("prompt", "completion"))
        if not (first_s and prompt and output):
            raise ValueError("the answer has no tokens, or no usage that counts them")
        return at_s - start_s, prompt, output, first_s - at_s, last_s - at_s
