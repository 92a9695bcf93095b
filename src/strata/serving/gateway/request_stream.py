"""One request in the gateway, from its arrival to its end: what is asked, and what has come of it so far."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, Literal

from strata.serving.request import RequestSignal
from strata.serving.tokens import StopFinder, TextStream

ROOM: Final = 64
"""Pieces that wait for a slow client before nothing more is read from the worker."""


class ApiError(Exception):
    """Why there is no answer, as the client will see it."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        body: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.retry_after_s, self.body = retry_after_s, body


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written."""

    prompt_tokens: int
    completion_tokens: int

    def to_dict(self) -> dict[str, int]:
        """Return the form of OpenAI's API."""
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request as it was understood.

    body: as it came, for whole engines. text, tokens: the prompt, as one or the other. max_tokens: None where the
    client left it open. extra: keys beyond those we have that ask for something.
    """

    kind: Literal["chat", "completion"]
    model: str
    body: dict[str, Any]
    text: str
    tokens: tuple[int, ...] = ()
    max_tokens: int | None = None
    temperature: float = 1.0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    is_stream: bool = False
    has_usage: bool = False
    priority: int = 0
    extra: tuple[str, ...] = ()
    ttft_goal_s: float = math.inf
    tpot_goal_s: float = math.inf


Piece = str | dict[str, Any]
"""Text of a worker's tokens, or what a whole engine wrote."""


class RequestStream:
    """The meeting point of attempts, which write, and the client's connection, which reads.

    `attempt` is the one that may write; the scheduler numbers them from 1.
    """

    def __init__(
        self, request: GenerationRequest, signal: RequestSignal, prompt: tuple[int, ...], *, arrived_s: float
    ) -> None:
        self.request, self.signal, self.prompt, self.arrived_s = request, signal, prompt, arrived_s
        self.attempt = 0
        self.generated: list[int] = []
        self.text = ""
        """What an engine wrote so far, for another to go on from."""
        self.is_plain = True
        """Whether that is all an engine wrote: no calls of tools, no reasoning beside it."""
        self.num_generated = self.num_resumed = 0
        self.first_s: float | None = None
        self.finish: str | None = None
        self.fault: ApiError | None = None
        self.engine_usage: Usage | None = None
        self._decoder, self._stops = TextStream(), StopFinder(request.stops)
        self._pieces = deque[Piece]()
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._has_room.set()

    @property
    def request_id(self) -> str:
        """The id, which is also the answer's."""
        return self.signal.request_id

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be written."""
        return self.finish is not None or self.fault is not None

    @property
    def usage(self) -> Usage:
        """Tokens so far; an engine's own count where it gave one."""
        return self.engine_usage or Usage(self.signal.prompt_tokens, self.num_generated)

    def put_token(self, token: int) -> bool:
        """Take a worker's token; return whether the text so far ends in a stop text."""
        self.generated.append(token)
        self.num_generated += 1
        self._put_text(self._stops.push(self._decoder.push(token)))
        return self._stops.is_found

    def put(self, piece: Piece) -> None:
        """Take what may be shown."""
        self._pieces.append(piece)
        if len(self._pieces) >= ROOM:
            self._has_room.clear()
        self._changed.set()

    def end(self, finish: str) -> None:
        """Be over, and well."""
        self._put_text(self._stops.push(self._decoder.end()) + self._stops.end())
        self.finish = finish
        self._changed.set()

    def fail(self, fault: ApiError) -> None:
        """Be over without an answer, or without all of it."""
        if not self.is_over:
            self.fault = fault
            self._changed.set()

    def _put_text(self, text: str) -> None:
        if text:
            self.put(text)

    async def room(self) -> None:
        """Return when the client has kept up."""
        await self._has_room.wait()

    async def take(self) -> list[Piece]:
        """Return all that is there, waiting for something; nothing at the end. Raises ApiError after the rest."""
        while not self._pieces:
            if self.fault:
                raise self.fault
            if self.finish is not None:
                return []
            self._changed.clear()
            await self._changed.wait()
        pieces = list(self._pieces)
        self._pieces.clear()
        self._has_room.set()
        return pieces
