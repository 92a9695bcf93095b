"""Frames on a connection that began as an HTTP request and was upgraded: both ends send whenever they like.

A frame is a header of eight bytes (kind, number and length of what follows, little-endian) and its payload. The
upgrade passes the server's own frame of limits (`http.Frame`), so who may open one is decided as for any request;
what a peer may take after it is here: the length of a frame, and the time to send one whole.
"""

from __future__ import annotations

import asyncio
import fcntl
import ssl
import struct
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

from strata.errors import StrataError

HEADER: Final = struct.Struct("<HHI")
PING: Final = 0xFFFE
PONG: Final = 0xFFFF
UNACKNOWLEDGED: Final = struct.Struct("i")
"""What TIOCOUTQ writes: bytes that the kernel keeps until the peer's has acknowledged them (tcp(7), SIOCOUTQ)."""
HEAD_BYTES: Final = 2**16
ERROR_BYTES: Final = 500
"""Of a refusal that are told."""

E = TypeVar("E", bound="FrameConnection")


class WireFrame(NamedTuple):
    """What came. `number` is the sender's own, mostly how many the payload holds."""

    kind: int
    number: int
    payload: bytes


class FrameError(StrataError):
    """The peer is not there, refuses, or sends what is no frame."""


class FrameConnection(asyncio.Protocol):
    """One end of a connection. on_frame may raise FrameError: the connection then ends for that reason.

    frame_bytes: the longest payload. frame_s: to send one that has begun.
    on_lost: called once, with what ended it; not where this end closed it.
    """

    def __init__(
        self,
        on_frame: Callable[[WireFrame], None],
        on_lost: Callable[[str], None],
        *,
        frame_bytes: int,
        frame_s: float,
    ) -> None:
        self.on_frame, self.on_lost = on_frame, on_lost
        self.is_open = False
        self.heard_s = self.answered_s = 0.0
        """When something came last, and a ping's answer [s, of the event loop]."""
        self._frame_bytes, self._frame_s = frame_bytes, frame_s
        self._data = bytearray()
        self._late: asyncio.TimerHandle | None = None
        self._pings = dict[int, asyncio.Future[None]]()
        self._num_pings = 0
        self.num_sent = 0
        """Bytes, taken by the peer or not."""
        self._why = "the connection was closed"
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport, self.is_open = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """Hand over what is whole."""
        self.heard_s = asyncio.get_running_loop().time()
        self._data += data
        try:
            self._parse()
        except FrameError as error:
            self.abort(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """Say so."""
        was_closed, self.is_open, self._transport = self._transport is None, False, None
        self._forget_late()
        for pong in self._pings.values():
            if not pong.done():
                pong.set_exception(FrameError(self._why))
        if not was_closed:
            self.on_lost(f"{self._why}: {exc}" if exc else self._why)

    def send(self, kind: int, count: int, *parts: bytes) -> None:
        """Send a frame; one that is lost before is told of by `on_lost`."""
        if self._transport is not None:
            header = HEADER.pack(kind, count, sum(map(len, parts)))
            data = b"".join((header, *parts))
            self.num_sent += len(data)
            self._transport.write(data)

    async def ping(self) -> None:
        """Return when the peer's event loop has answered. Raises FrameError where the connection ends."""
        if not self.is_open:
            raise FrameError(self._why)
        self._num_pings = number = self._num_pings % (PONG - 1) + 1
        self._pings[number] = pong = asyncio.get_running_loop().create_future()
        try:
            self.send(PING, number)
            await pong
        finally:
            del self._pings[number]

    @property
    def num_taken(self) -> int:
        """Bytes that the peer's machine has acknowledged: a link that is cut goes on to be written to for long."""
        if self._transport is None:
            return self.num_sent
        here = bytearray(UNACKNOWLEDGED.size)
        with suppress(OSError):  # a kernel that does not tell: what it took has been sent
            fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, here)
        (unacknowledged,) = UNACKNOWLEDGED.unpack(here)
        return self.num_sent - self._transport.get_write_buffer_size() - int(unacknowledged)

    def close(self) -> None:
        """Close it, what was sent goes out first; nobody is told."""
        if self._transport is not None:
            self._transport.close()
        self._transport, self.is_open = None, False

    def abort(self, why: str) -> None:
        """Break it off."""
        self._why = why
        if self._transport is not None:
            self._transport.abort()

    def _parse(self) -> None:
        data, at = self._data, 0
        while len(data) - at >= HEADER.size:
            kind, count, length = HEADER.unpack_from(data, at)
            if length > self._frame_bytes:
                raise FrameError(f"a frame of {length} bytes exceeds {self._frame_bytes}")
            end = at + HEADER.size + length
            if len(data) < end:
                break
            payload, at = bytes(memoryview(data)[at + HEADER.size : end]), end
            self._forget_late()
            if kind == PING:
                self.send(PONG, count, payload)
            elif kind == PONG:
                self.answered_s = self.heard_s
                if (pong := self._pings.get(count)) and not pong.done():
                    pong.set_result(None)
            else:
                self.on_frame(WireFrame(kind, count, payload))
        del data[:at]
        if data and self._late is None:
            why = f"a frame was not complete within {self._frame_s:g} s"
            self._late = asyncio.get_running_loop().call_later(self._frame_s, self.abort, why)

    def _forget_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Opening(asyncio.Protocol):
    """The client's end until the server has answered the request."""

    def __init__(self, head: bytes) -> None:
        self._head, self._data = head, b""
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._head)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self.answered.done() and (b"\r\n\r\n" in self._data or len(self._data) > HEAD_BYTES):
            self.answered.set_result(None)

    def answer(self) -> tuple[bytes, bytes]:
        """Return the head and all that has come after it."""
        head, _, rest = self._data.partition(b"\r\n\r\n")
        return head, rest

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(FrameError(f"closed without an answer: {exc or 'end of stream'}"))


async def connect(
    url: str,
    made: E,
    *,
    protocol: str,
    headers: Mapping[str, str],
    connect_s: float,
    tls: ssl.SSLContext | None = None,
) -> E:
    """Ask a server to upgrade a connection, and give it to `made`. Raises FrameError where that cannot be had."""
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    lines = [f"GET {parts.path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: Upgrade", f"Upgrade: {protocol}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    secure = tls if parts.scheme == "https" else None
    transport: asyncio.Transport | None = None
    try:
        async with asyncio.timeout(connect_s):
            transport, opening = await loop.create_connection(
                lambda: _Opening(head), parts.hostname or "", parts.port or (443 if secure else 80), ssl=secure
            )
            await opening.answered
        answer, rest = opening.answer()
        status = answer.split(b"\r\n", 1)[0].partition(b" ")[2].decode("latin-1")
        if not status.startswith("101"):
            body = rest[:ERROR_BYTES].decode(errors="replace")
            raise FrameError(f"answered {status[:80]} {body}".strip())
        if transport.is_closing():  # which `made` would never hear
            raise FrameError("closed as soon as it was opened")
    except BaseException as error:
        if transport is not None:
            transport.abort()
        if isinstance(error, TimeoutError):
            raise FrameError(f"no answer within {connect_s:g} s") from None
        if isinstance(error, OSError | UnicodeError):
            raise FrameError(f"{type(error).__name__}: {error}") from error
        raise
    transport.set_protocol(made)
    made.connection_made(transport)
    if rest:
        made.data_received(rest)
    return made
