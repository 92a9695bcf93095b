"""Connections to engines: HTTP/1.1 requests, each answered by a stream, with as little as that takes.

httpx takes two milliseconds of a processor a request (`strata bench gateway`), most of what a gateway would cost.
What comes is handed on from where the event loop read it: no task wakes for a piece. Errors are httpx's, so that
callers need not know which of the two they have.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import httpx

from strata.net.asyncio_backend import KEEPALIVE
from strata.net.tls import client_context

PIECE_BYTES: Final = 2**16
"""Most of a head, and of what stands for the size of a chunk."""
IDLE: Final = 256
"""Connections to an engine that are kept for later."""
LOOK_S: Final = 5.0
"""How often a wait is looked at before it is too long, which it may be sooner than was thought when it began."""


class EngineAnswer:
    """An engine's status, headers (small letters) and body, as it comes. may_keep: its connection is good yet.

    since_s: when the wait for the next piece began, infinite while nobody waits; gap_s: the longest so far.
    due_s: until when to wait, by these two.
    """

    def __init__(self, transport: asyncio.Transport, due_s: Callable[[float, float], float]) -> None:
        self._loop, self._transport, self._due_s = asyncio.get_running_loop(), transport, due_s
        self.since_s, self.gap_s = self._loop.time(), 0.0
        self.status_code, self.headers = 0, dict[str, str]()
        self.is_whole = self.may_keep = self._is_closed = False
        self._data = b""
        self._chunks: Chunks | None = None
        self._left = -1
        self._keeps = True
        self._take: Callable[[bytes], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._lost: Exception | None = None
        """The connection's end: what came before may be all."""
        self._look()

    async def begin(self) -> None:
        """Return when the head is there. Raises httpx's errors; a ReadError where nothing came at all."""
        while self.status_code < 200:
            await self._wait()

    async def hand(self, take: Callable[[bytes], bool]) -> None:
        """Call `take` with the pieces of the body as they come, until all of it is there or it returns False.

        Raises httpx's errors, and what `take` raises. Nothing more is read until the next call.
        """
        self._take, self.since_s = take, self._loop.time()
        try:
            if self._data:
                data, self._data = self._data, b""
                self.feed(data)
            self._transport.resume_reading()
            while self._error is not None or (self._take is not None and not self.is_whole):
                await self._wait()
        finally:
            self._take, self.since_s = None, math.inf
            if not self.is_whole:
                self._transport.pause_reading()

    def feed(self, data: bytes) -> None:
        """Take what came over the connection."""
        take = self._take
        if take is None:
            self._data += data
            if self.status_code < 200:
                try:
                    self._read_head()
                except httpx.RemoteProtocolError as error:
                    self._fail(error)
            return
        now_s = self._loop.time()
        if now_s - self.since_s > self.gap_s:
            self.gap_s = now_s - self.since_s
        self.since_s = now_s
        try:
            piece = self._piece(data)
            if piece and not take(piece):
                self._take = None
        except Exception as error:
            self._fail(error)
            return
        if self.is_whole or self._take is None:
            self._wake()

    def _read_head(self) -> None:
        """Read a head that is there whole. Raises httpx's errors."""
        while self.status_code < 200:  # before it, an engine may say that it goes on
            head, end, rest = self._data.partition(b"\r\n\r\n")
            if not end:
                if len(head) > PIECE_BYTES:
                    raise httpx.RemoteProtocolError("the answer has no head")
                return
            first, *lines = head.decode("latin-1").split("\r\n")
            version, _, status = first.partition(" ")
            if not version.startswith("HTTP/1.") or not status[:3].isdigit():
                raise httpx.RemoteProtocolError(f"this is no HTTP/1.1: {first[:80]!r}")
            self._data, self.status_code = rest, int(status[:3])
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._keeps = version != "HTTP/1.0" and self.headers.get("connection", "").lower() != "close"
        length = self.headers.get("content-length", "")
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._chunks = Chunks()
        elif length.isdigit():
            self._left = int(length)
            self.is_whole = self._left == 0
        self.may_keep = self._keeps and self.is_whole
        self._wake()

    def _piece(self, data: bytes) -> bytes:
        """Return what data have of the body. Raises httpx's errors."""
        if self._chunks is not None:
            piece = self._chunks.feed(data)
            self.is_whole = self._chunks.is_whole
        elif self._left >= 0:
            piece, self._left = data[: self._left], self._left - len(data)
            self.is_whole = self._left <= 0
        else:  # to the end of the connection
            piece, self._keeps, self.is_whole = data, False, self._is_closed
        self.may_keep = self._keeps and self.is_whole and self._left in (-1, 0)
        return piece

    def end(self, error: Exception | None) -> None:
        """Note that the connection was closed, or broke."""
        if self.status_code < 200:
            self._lost = httpx.ReadError(f"closed without an answer: {error or 'no reason given'}")
        elif error is not None:
            self._lost = httpx.ReadError(str(error))
        elif self._chunks is None and self._left < 0:
            self._is_closed, self.is_whole = True, not self._data
        else:
            self._lost = httpx.RemoteProtocolError("closed in the middle of an answer")
        self._wake()

    def _fail(self, error: Exception) -> None:
        """End whoever waits."""
        self._error, self.may_keep = self._error or error, False
        self._wake()

    def _look(self) -> None:
        """End a wait that is too long: by one timer, as one a piece would cost more than the piece."""
        now_s, due_s = self._loop.time(), self._due_s(self.since_s, self.gap_s)
        if due_s > now_s:
            self.timer = self._loop.call_later(min(due_s - now_s, LOOK_S), self._look)
        else:
            self._fail(httpx.ReadTimeout(f"nothing came for {now_s - self.since_s:.3g} s"))

    async def _wait(self) -> None:
        if self._error is None and self._lost is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        error = self._error or (None if self.is_whole else self._lost)
        if error is not None:
            raise error

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,8})\r\n").match


class Chunks:
    """Takes HTTP's chunks apart (RFC 9112, section 7.1)."""

    def __init__(self) -> None:
        self._rest, self._left, self.is_whole = b"", 0, False

    def feed(self, data: bytes) -> bytes:
        """Return what a piece holds of the body. Raises httpx's errors."""
        # Most often it is one chunk, and all of it.
        if not (self._left or self._rest) and (usual := _SIZE(data)):
            end = usual.end() + int(usual[1], 16)
            if usual.end() < end == len(data) - 2:
                return data[usual.end() : end]
        data, self._rest = self._rest + data, b""
        out, at = list[bytes](), 0
        while at < len(data) and not self.is_whole:
            if self._left:  # of the chunk, and two for the end of its line
                if self._left > 2:
                    out.append(data[at : at + self._left - 2])
                taken = min(self._left, len(data) - at)
                at, self._left = at + taken, self._left - taken
                continue
            if (usual := _SIZE(data, at)) and (length := int(usual[1], 16)):
                at, self._left = usual.end(), length + 2
                continue
            size, newline, _ = data[at:].partition(b"\r\n")
            text = size.partition(b";")[0].strip()
            if not newline or ((is_last := not text.strip(b"0")) and b"\r\n\r\n" not in data[at:]):
                self._rest = data[at:]
                break
            try:
                self._left = int(text if text.isalnum() else b"none", 16) + 2
            except ValueError:
                raise httpx.RemoteProtocolError(f"no size of a chunk: {text[:40]!r}") from None
            self.is_whole, at = is_last, at + len(size) + 2
        if len(self._rest) > PIECE_BYTES:
            raise httpx.RemoteProtocolError("a chunk has no size")
        return out[0] if len(out) == 1 else b"".join(out)


class _Connection(asyncio.Protocol):
    """One connection, and the answer that comes over it now."""

    def __init__(self) -> None:
        self.is_closed = False
        self.answer: EngineAnswer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.answer is not None:
            self.answer.feed(data)
        else:  # nobody asked
            self.is_closed = True
            self.transport.abort()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.answer is not None and not self.is_closed:
            self.answer.end(exc)
        self.is_closed = True


class EngineConnections:
    """Connections to any number of engines, kept while they are good. `token` is shown to all of them."""

    def __init__(self, token: str = "", authority: Path | None = None) -> None:
        self._tls = client_context(authority)
        self._bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        self._idle = defaultdict[str, list[_Connection]](list)

    @asynccontextmanager
    async def stream(
        self, url: str, content: bytes, *, connect_s: float, due_s: Callable[[float, float], float]
    ) -> AsyncIterator[EngineAnswer]:
        """POST JSON; yield the answer when its head is there. due_s: as `EngineAnswer` has it.

        Raises httpx's errors.
        """
        parts = urlsplit(url)
        place = f"{parts.scheme}://{parts.netloc}"
        is_used, idle = True, self._idle[place]
        head = f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n{self._bearer}Accept: */*\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        while is_used:
            while idle and idle[-1].is_closed:
                idle.pop()
            is_used = bool(idle)
            connection = idle.pop() if idle else await self._connect(place, connect_s)
            connection.answer = answer = EngineAnswer(connection.transport, due_s)
            try:
                connection.transport.write(head.encode() + content)
                try:
                    await answer.begin()
                except httpx.ReadError:
                    if is_used:
                        continue  # it was closed meanwhile, which nobody could know
                    raise
                yield answer
                return
            finally:
                answer.timer.cancel()
                connection.answer = None
                if answer.may_keep and not connection.is_closed and len(idle) < IDLE:
                    idle.append(connection)
                else:
                    connection.is_closed = True
                    connection.transport.abort()

    async def _connect(self, place: str, connect_s: float) -> _Connection:
        parts = urlsplit(place)
        tls = self._tls if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await loop.create_connection(_Connection, parts.hostname or "", port, ssl=tls)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {connect_s:g} s") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        for option in KEEPALIVE:
            connection.transport.get_extra_info("socket").setsockopt(*option)
        return connection

    async def aclose(self) -> None:
        """Close what is kept."""
        for connection in (connection for kept in self._idle.values() for connection in kept):
            connection.transport.close()
        self._idle.clear()
        await asyncio.sleep(0)  # in which the loop closes them: it may end behind this
