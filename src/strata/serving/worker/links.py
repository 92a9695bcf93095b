"""The way from a worker to its gateway, and how far the other workers are. Needs httpx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from time import perf_counter
from typing import Final

import httpx

from strata.serving.wire import Message
from strata.serving.worker.agent import GatewayReply, Unreachable

GATEWAY_LIMIT_S: Final = 5.0
HOP_LIMIT_S: Final = 2.0
AT_ONCE: Final = 16
"""Peers measured at the same time: more would measure our own queue."""


class HttpGateway:
    """The gateway behind its address."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client, self._url = client, url.rstrip("/")

    async def post(self, path: str, message: Message) -> GatewayReply:
        """Send a message. Raises Unreachable."""
        try:
            answer = await self._client.post(
                self._url + path, content=message.model_dump_json(), timeout=GATEWAY_LIMIT_S
            )
        except httpx.HTTPError as error:
            raise Unreachable(f"{self._url}{path}: {type(error).__name__}: {error}") from error
        return GatewayReply(answer.status_code, _code(answer), answer.content)


def _code(answer: httpx.Response) -> str:
    """Return the token of the reason that an error carries; empty where there is none."""
    try:
        code = answer.json()["error"]["code"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        return ""
    return code if isinstance(code, str) else ""


async def hops(client: httpx.AsyncClient, peers: Mapping[str, str]) -> dict[str, float]:
    """Return the one-way latency to each of the peers that answer in time: half the way there and back [s]."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def hop(url: str) -> float | None:
        async with turn:
            try:
                async with asyncio.timeout(HOP_LIMIT_S):
                    await client.get(f"{url}/healthz")  # opens the connection, which must not count
                    start = perf_counter()
                    await client.get(f"{url}/healthz")
            except (httpx.HTTPError, TimeoutError):
                return None  # not measured this time; whether it lives is the gateway's to say
            return (perf_counter() - start) / 2

    hops_s = await asyncio.gather(*(hop(url) for url in peers.values()))
    return {name: hop_s for name, hop_s in zip(peers, hops_s, strict=True) if hop_s is not None}
