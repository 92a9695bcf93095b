"""One request in the gateway, from its arrival to its end: what is asked, and what has come of it so far."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from strata.serving.gateway.openai import ApiError, GenerationRequest, Usage
from strata.serving.request import RequestSignal
from strata.serving.tokens import StopFinder, TokenDecoder
from strata.serving.wire import GenerateMessage

ROOM: Final = 64
"""Pieces that wait for a slow client before nothing more is read from the worker."""

Piece = str | bytes
"""Text of a worker's tokens, or what a whole engine wrote: events, or a document."""


class RequestStream:
    """The meeting point of attempts, which write, and the client's connection, which reads.

    `attempt` is the one that may write; the scheduler numbers them from 1. on_first_token: called once in each.
    decoder: makes text of workers' tokens.
    """

    def __init__(
        self,
        request: GenerationRequest,
        signal: RequestSignal,
        prompt: tuple[int, ...],
        *,
        arrived_s: float,
        decoder: TokenDecoder,
        created: int = 0,
        on_first_token: Callable[[RequestStream], None],
    ) -> None:
        self.request, self.signal, self.prompt, self.arrived_s = request, signal, prompt, arrived_s
        self.created = created
        """When, in seconds since 1970, for the client to read."""
        self.attempt = 0
        self.node_ids: list[str] = []
        """Where the present attempt runs."""
        self.sent: GenerateMessage | None = None
        """What the last attempt's workers were asked for."""
        self._task: asyncio.Task[None] | None = None
        self.generated: list[int] = []
        self.texts: list[str] = []
        """What an engine wrote so far, for another to go on from."""
        self.is_plain = True
        """Whether that is all an engine wrote: no calls of tools, no reasoning beside it, nothing else."""
        self.num_generated = self.num_resumed = 0
        self.first_s: float | None = None
        self.finish: str | None = None
        self.fault: ApiError | None = None
        self.engine_usage: Usage | None = None
        self.write: Callable[[bytes], bool] | None = None
        """Hands an engine's events to a client that keeps up, past the queue; returns whether it could."""
        self.refusal: ApiError | None = None
        """What the last engine said that refused it for now."""
        self._on_first_token, self._has_begun = on_first_token, False
        self._decoder, self._stops = decoder, StopFinder(request.stops)
        self._pieces = deque[Piece]()
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._has_room.set()

    @property
    def request_id(self) -> str:
        """The id, which is also the answer's."""
        return self.signal.request_id

    @property
    def has_text(self) -> bool:
        """Whether the client has something of the answer that no other attempt can take back."""
        return bool(self.num_generated) or not self.is_plain

    @property
    def text(self) -> str:
        """What an engine wrote so far, in one."""
        return "".join(self.texts)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be written."""
        return self.finish is not None or self.fault is not None

    @property
    def usage(self) -> Usage:
        """Tokens so far; an engine's own count where it gave one."""
        return self.engine_usage or Usage(self.signal.prompt_tokens, self.num_generated)

    def tpot_s(self, now_s: float) -> float | None:
        """Return the mean time of a token after the first, where this answer alone came token by token."""
        comes_by_token = bool(self.generated) or self.request.stream  # workers always send so, engines if asked
        tokens = self.usage.completion_tokens
        if self.first_s is None or not comes_by_token or self.request.num_choices > 1 or tokens < 2:
            return None
        return (now_s - self.first_s) / (tokens - 1)

    def begin(self, attempt: int, task: asyncio.Task[None], node_ids: list[str]) -> None:
        """Let another attempt write, after what there is."""
        self.attempt, self._task, self.node_ids = attempt, task, node_ids
        self._has_begun, self.num_resumed = False, self.num_generated

    def stop(self) -> list[str]:
        """Cancel the present attempt; return the nodes it was on, none where it has ended already."""
        node_ids, task = self.part()
        if task:
            task.cancel()
        return node_ids

    def part(self) -> tuple[list[str], asyncio.Task[None] | None]:
        """Let the present attempt write no more; return its nodes, and what reads it, as `stop` does."""
        node_ids, self.node_ids = self.node_ids, []
        return node_ids, self._task if node_ids else None

    def may_write(self, attempt: int) -> bool:
        """Return whether an attempt is the present one, and not over."""
        return self.attempt == attempt and bool(self.node_ids)

    def note_token(self) -> None:
        """Note that the present attempt has something to show."""
        if not self._has_begun:
            self._has_begun = True
            self._on_first_token(self)

    def put_token(self, token: int) -> bool:
        """Take a worker's token; return whether the text so far ends in a stop text."""
        self.note_token()
        self.generated.append(token)
        self.num_generated += 1
        self._put_text(self._stops.push(self._decoder.push(token)))
        return self._stops.is_found

    def put(self, piece: Piece) -> None:
        """Take what may be shown."""
        if self.is_over:
            return  # the client was told why, and its connection may have another answer by now
        if self.write and isinstance(piece, bytes) and not self._pieces and self.write(piece):
            return
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

    @property
    def is_full(self) -> bool:
        """Whether the client has not kept up."""
        return not self._has_room.is_set()

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
