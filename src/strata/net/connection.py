"""One client's connection to a server of ours: uvicorn's with httptools, within limits and with ways past ASGI.

uvicorn has no time for a head to come in, no limit to its size, and answers HTTP/1.0 in chunks, which its clients
do not read (decision 10). An application is handed, in the scope's `state`, what ASGI has no messages for:

* `abort()` breaks the connection; `is_held()` says whether the client does not keep up, `is_here()` whether all of
  the request's body has come and nobody has taken it.
* `listen(on_lost)` calls back when the connection is lost: `receive` would take a task to wait in.
* `write(piece)` writes a piece of an answer at once, past the queue of messages.
* `upgrade(name, protocol)` hands the connection over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from strata.net.http import Limits

_FRAMING: Final = (b"content-length", b"transfer-encoding")


class Connection(HttpToolsProtocol):
    """Takes requests one after the other. `limits` are its class's, as uvicorn makes the instances."""

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # uvicorn closes a connection once its buffer is sent: never, with a client that reads no more.
        self.app_state = {
            **self.app_state,
            "abort": lambda: self.transport.abort(),
            "is_held": lambda: self.flow.write_paused,
            "is_here": self._is_here,
            "listen": self._listen,
            "write": self._write,
            "upgrade": self._upgrade,
        }
        self._answering: RequestResponseCycle | None = None
        self._is_begun, self._head = False, b""
        """Whether its head is written, or waits for what is written with it."""
        self._is_in_head, self._head_bytes = False, 0
        self._is_read = False
        """Whether the head that is parsed has been before."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._upgraded: asyncio.Protocol | None = None
        self._early: bytes | None = None
        """What came after a request that asks for an upgrade, until it is known whose it is."""
        self._on_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        super().connection_made(cast("asyncio.Transport", transport))
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take what came, for the parser or for whom the connection was handed to."""
        if self._upgraded is not None:
            self._upgraded.data_received(data)
        elif self._early is not None:
            self._early += data
            self.flow.pause_reading()
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        was_in_head = self._is_in_head
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._is_in_head and was_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > 2 * self.limits.header_bytes:
                self.send_400_response("The head of the request is too large.")
        # No head is there, or not all of it. More bytes of it buy no more time.
        is_idle = self._answering is None or self._answering.response_complete
        if is_idle and self._head_timer is None and not self.transport.is_closing():
            self._await_head()

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            rest = data[upgrade.args[0] :]
            framing = [b"%b: %b\r\n" % pair for pair in self.headers if pair[0] in _FRAMING]
            if not framing:
                self._early = rest
                return
            # The parser leaves a body to the other protocol. Nobody here takes an upgrade with a body, but clients
            # offer one (Java's): it reads the body as that of a request without.
            self.cycle.more_body, self._is_read = True, True
            self._feed(b"".join((b"POST / HTTP/1.1\r\n", *framing, b"\r\n", rest)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell those who listen."""
        self._forget_head()
        super().connection_lost(exc)
        if self._upgraded is not None:
            self._upgraded.connection_lost(exc)
        if self._on_lost is not None:
            self._on_lost()

    def shutdown(self) -> None:
        """Close as soon as the answer that runs is complete."""
        if self._upgraded is not None:
            self.transport.close()
        else:
            super().shutdown()

    # The parser's

    def on_message_begin(self) -> None:
        """Begin a head."""
        if not self._is_read:
            self._is_in_head, self._head_bytes = True, 0
            super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if not self._is_read:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        if self._is_read:
            self._is_read = False
            return
        self._is_in_head = False
        self._forget_head()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        early, self._early = self._early, None
        if early:  # it did not come to an upgrade
            self._parse(early)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering, self._is_begun = cycle, False
        cycle.transport = cast("asyncio.Transport", self)
        super()._start_asgi_task(cycle, app if cycle.scope["http_version"] != "1.0" else _unchunked(app, cycle))

    # The answer's, which takes this for its transport

    def write(self, data: bytes) -> None:
        """Write, a head together with what comes at once after it: to wake a client twice costs more than both."""
        if self._answering is not None and self._answering.response_started and not self._is_begun:
            self._is_begun, self._head = True, data
            self.loop.call_soon(self._write_head)
        else:
            head, self._head = self._head, b""
            self.transport.write(head + data)

    def is_closing(self) -> bool:
        """Return whether the connection ends."""
        return self.transport.is_closing()

    def close(self) -> None:
        """Close the connection once all is sent."""
        self._write_head()
        self.transport.close()

    def _write_head(self) -> None:
        if self._head:
            self.write(b"")

    # The application's

    def _is_here(self) -> bool:
        cycle = self._answering
        return cycle is not None and not cycle.more_body and bool(cycle.body)

    def _listen(self, on_lost: Callable[[], None] | None) -> None:
        """Call this when the connection is lost, at once where it is; None to forget it."""
        self._on_lost = on_lost
        if on_lost is not None:
            self.flow.resume_reading()  # or its end would not be seen
            if self.transport.is_closing():
                on_lost()

    def _write(self, piece: bytes) -> bool:
        """Write a piece of an answer of unknown length; return whether it could.

        Only to a client that keeps up: `send` waits for one that does not.
        """
        cycle = self._answering
        if (
            not piece
            or cycle is None
            or not cycle.chunked_encoding
            or cycle.response_complete
            or self.flow.write_paused
            or self.transport.is_closing()
        ):
            return False
        self.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        return True

    def _upgrade(self, name: str, protocol: asyncio.Protocol) -> None:
        """Hand the connection over; the request it began with is over when the connection is."""
        self._forget_head()
        head = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {name}\r\n\r\n"
        self.transport.write(head.encode())
        self._upgraded = protocol
        protocol.connection_made(self.transport)
        early, self._early = self._early, None
        if early:
            protocol.data_received(early)
        self.flow.resume_reading()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.head_s, self.transport.abort)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = None


def _unchunked(app: Any, cycle: RequestResponseCycle) -> Any:
    """Return an application whose answers of unknown length end with the connection, as HTTP/1.0 has it."""

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                cycle.chunked_encoding = None if b"content-length" in names else False
            elif not cycle.expected_content_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, sending)

    return whole
