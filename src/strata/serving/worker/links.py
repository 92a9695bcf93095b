"""The way of a worker to its gateway, over HTTP. Needs httpx."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

import httpx

from strata.errors import StrataError
from strata.serving.wire import Message

GATEWAY_LIMIT_S: Final = 5.0


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
