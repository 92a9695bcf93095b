"""Connections to engines: HTTP/1.1 requests, each answered by a stream, with as little as that takes.

httpx takes two milliseconds of a processor a request (`strata bench gateway`), most of what a gateway would cost.
Errors are httpx's, so that callers need not know which of the two they have.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import StreamReader, StreamWriter
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from strata.net.tls import client_context
from strata.serving.wire import KEEPALIVE

PIECE_BYTES: Final = 2**16
"""Most of a head, and of what is read at once; twice as much waits for a slow client before the engine has to."""
IDLE: Final = 256
"""Connections to an engine that are kept for later."""


class EngineAnswer:
    """An engine's status, headers (small letters) and body, as it comes. may_keep: its connection is good yet."""

    def __init__(self, reader: StreamReader, silence_s: float) -> None:
        self._reader, self._silence_s, self._since_s = reader, silence_s, asyncio.get_running_loop().time()
        self.status_code, self.headers = 0, dict[str, str]()
        self.is_whole = self.may_keep = False
        self._look()

    def _look(self) -> None:
        """End a wait that is too long: by one timer, as one a piece would cost more than the piece."""
        loop = asyncio.get_running_loop()
        left_s = self._since_s + self._silence_s - loop.time()
        if left_s > 0:  # or nobody waits
            self.timer = loop.call_later(min(left_s, self._silence_s), self._look)
        else:
            self._reader.set_exception(httpx.ReadTimeout(f"nothing came for {self._silence_s:g} s"))

    async def begin(self) -> None:
        """Read the head. Raises httpx's errors; a ReadError where nothing came at all."""
        while self.status_code < 200:  # before it, an engine may say that it goes on
            try:
                head = await self._reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, OSError) as error:
                raise httpx.ReadError(f"closed without an answer: {error}") from error
            except asyncio.LimitOverrunError:
                raise httpx.RemoteProtocolError("the answer has no head") from None
            first, *lines = head[:-4].decode("latin-1").split("\r\n")
            version, _, status = first.partition(" ")
            if not version.startswith("HTTP/1.") or not status[:3].isdigit():
                raise httpx.RemoteProtocolError(f"this is no HTTP/1.1: {first[:80]!r}")
            self.status_code = int(status[:3])
            self.headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
        self._keeps = version != "HTTP/1.0" and self.headers.get("connection", "").lower() != "close"

    async def aiter_bytes(self) -> AsyncGenerator[bytes, None]:
        """Yield the body in the pieces that come. Raises httpx's errors."""
        is_chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        left, chunks = int(length) if length.isdigit() else -1, Chunks()
        self.is_whole = not is_chunked and left == 0
        while not self.is_whole:
            self._since_s = asyncio.get_running_loop().time()
            try:
                data = await self._reader.read(PIECE_BYTES)
            except OSError as error:
                raise httpx.ReadError(str(error)) from error
            self._since_s = math.inf
            if is_chunked:
                piece = chunks.feed(data)
                self.is_whole = chunks.is_whole
            elif left >= 0:
                piece, left = data[:left], left - len(data)
                self.is_whole = left <= 0
            else:  # to the end of the connection
                piece, self.is_whole, self._keeps = data, not data, False
            if not data and not self.is_whole:
                raise httpx.RemoteProtocolError("closed in the middle of an answer")
            self.may_keep = self._keeps and self.is_whole and left in (-1, 0)
            if piece:
                yield piece
        self.may_keep = self._keeps and left in (-1, 0)


class Chunks:
    """Takes HTTP's chunks apart (RFC 9112, section 7.1)."""

    def __init__(self) -> None:
        self._rest, self._left, self.is_whole = b"", 0, False

    def feed(self, data: bytes) -> bytes:
        """Return what a piece holds of the body. Raises httpx's errors."""
        data, self._rest = self._rest + data, b""
        out, at = list[bytes](), 0
        while at < len(data) and not self.is_whole:
            if self._left:  # of the chunk, and two for the end of its line
                piece = data[at : at + self._left]
                at, self._left = at + len(piece), self._left - len(piece)
                out.append(piece[: len(piece) + min(0, self._left - 2)] if self._left < 2 else piece)
                continue
            size, end, _ = data[at:].partition(b"\r\n")
            text = size.partition(b";")[0].strip()
            if not end or ((is_last := not text.strip(b"0")) and b"\r\n\r\n" not in data[at:]):
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


class EngineConnections:
    """Connections to any number of engines, kept while they are good. `token` is shown to all of them."""

    def __init__(self, token: str = "", authority: Path | None = None) -> None:
        self._tls = client_context(authority)
        self._bearer = f"Authorization: Bearer {token}\r\n" if token else ""
        self._idle = defaultdict[str, list[tuple[StreamReader, StreamWriter]]](list)

    @asynccontextmanager
    async def stream(
        self, url: str, content: str, *, connect_s: float, silence_s: float
    ) -> AsyncIterator[EngineAnswer]:
        """POST JSON; yield the answer when its head is there. Raises httpx's errors."""
        parts, body = urlsplit(url), content.encode()
        place, is_used, idle = (
            f"{parts.scheme}://{parts.netloc}",
            True,
            self._idle[f"{parts.scheme}://{parts.netloc}"],
        )
        head = f"POST {parts.path or '/'} HTTP/1.1\r\nHost: {parts.netloc}\r\n{self._bearer}Accept: */*\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        while is_used:
            while idle and idle[-1][0].at_eof():
                idle.pop()[1].close()
            is_used = bool(idle)
            reader, writer = idle.pop() if idle else await self._connect(place, connect_s)
            answer = EngineAnswer(reader, silence_s)
            try:
                writer.write(head.encode() + body)
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
                if answer.may_keep and len(idle) < IDLE:
                    idle.append((reader, writer))
                else:
                    writer.transport.abort()

    async def _connect(self, place: str, connect_s: float) -> tuple[StreamReader, StreamWriter]:
        parts = urlsplit(place)
        tls = self._tls if parts.scheme == "https" else None
        port = parts.port or (443 if tls else 80)
        try:
            async with asyncio.timeout(connect_s):
                ends = await asyncio.open_connection(parts.hostname, port, ssl=tls, limit=PIECE_BYTES)
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {connect_s:g} s") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        for option in KEEPALIVE:
            ends[1].get_extra_info("socket").setsockopt(*option)
        return ends

    async def aclose(self) -> None:
        """Close what is kept."""
        for _, writer in (ends for kept in self._idle.values() for ends in kept):
            writer.close()
        self._idle.clear()
