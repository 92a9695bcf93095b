"""The ways of a worker over HTTP: to its gateway, and to the other workers. Needs httpx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from time import perf_counter
from typing import Final, NamedTuple

import httpx
import numpy as np
from numpy.typing import NDArray

from strata.errors import StrataError
from strata.serving.wire import AbortMessage, Message, StepError, StepHeader, TokenMessage
from strata.serving.worker.holder import AttemptKey, ChainError

GATEWAY_LIMIT_S: Final = 5.0
HOP_LIMIT_S: Final = 2.0
CONNECT_LIMIT_S: Final = 3.0
SHORT_LIMIT_S: Final = 5.0
"""For messages that need no layer to run."""
AT_ONCE: Final = 16
"""Peers measured at the same time: more would measure our own queue."""
STEP_HEADER: Final = "strata-step"


class GatewayReply(NamedTuple):
    """Of the gateway: its status, the token of the reason where there is one, the body, and what it says of it."""

    status: int
    code: str
    body: bytes
    message: str = ""


class Unreachable(StrataError):
    """The gateway did not answer."""


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
        return GatewayReply(
            answer.status_code, _of_error(answer, "code"), answer.content, _of_error(answer, "message")
        )


def _of_error(answer: httpx.Response, key: str) -> str:
    """Return what an error says under a key; empty where there is none."""
    try:
        value = answer.json()["error"][key]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError):
        return ""
    return value if isinstance(value, str) else ""


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


def to_bytes(hidden: NDArray[np.float32]) -> bytes:
    """Return activations as they travel."""
    return hidden.astype("<f4", copy=False).tobytes()


def from_bytes(body: bytes, hidden_size: int) -> NDArray[np.float32]:
    """Return activations [T, D]. Raises ChainError where the bytes are not activations."""
    if not body or len(body) % (4 * hidden_size):
        raise ChainError(
            f"{len(body)} bytes are not a whole number of activations of {hidden_size} float32 values"
        )
    return np.frombuffer(body, dtype="<f4").reshape(-1, hidden_size)


class HttpPeers:
    """Other workers behind their addresses."""

    def __init__(self, client: httpx.AsyncClient, *, node_id: str, step_limit_s: float) -> None:
        self._client, self._node_id, self._step_limit_s = client, node_id, step_limit_s

    async def step(self, header: StepHeader, hidden: NDArray[np.float32]) -> None:
        """Have the step done by the first of the header's stages and all after it."""
        dest = header.stages[0]
        await self._post(
            f"{dest.url}/step",
            content=to_bytes(hidden),
            headers={STEP_HEADER: header.model_dump_json(), "content-type": "application/octet-stream"},
            limit_s=self._step_limit_s * len(header.stages),
            suspect=dest.node_id,
        )

    async def token(self, url: str, message: TokenMessage) -> None:
        """Send a token to the first worker; who cannot is suspected, for the first one waits for it."""
        await self._post(f"{url}/token", content=message.model_dump_json(), suspect=self._node_id)

    async def abort(self, url: str, key: AttemptKey) -> None:
        """Have a worker free what an attempt holds."""
        message = AbortMessage(request_id=key.request_id, attempt=key.attempt)
        await self._post(f"{url}/abort", content=message.model_dump_json(), suspect=None)

    async def _post(
        self,
        url: str,
        *,
        content: str | bytes,
        suspect: str | None,
        headers: Mapping[str, str] | None = None,
        limit_s: float = SHORT_LIMIT_S,
    ) -> None:
        timeout = httpx.Timeout(limit_s, connect=min(CONNECT_LIMIT_S, limit_s))
        try:
            answer = await self._client.post(url, content=content, headers=headers, timeout=timeout)
        except httpx.HTTPError as error:
            raise ChainError(f"{url}: {type(error).__name__}: {error}", suspect) from error
        if answer.is_success:
            return
        try:
            fault = StepError.model_validate_json(answer.content)
        except ValueError:
            raise ChainError(f"{url} answered {answer.status_code}", suspect) from None
        raise ChainError(fault.error, fault.node_id)
