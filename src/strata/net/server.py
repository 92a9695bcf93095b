"""Runs a frame under uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from strata.errors import UsageError, need
from strata.net.http import Frame, error_body, kind_of

log = logging.getLogger(__name__)

SPARE_CONNECTIONS: Final = 64
"""Beyond the limit, so that the refusal itself, beats and health checks still get through."""

TOO_LONG: Final = 431


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises UsageError where the address cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # Connections inherit it. asyncio sets it only where it sees the protocol, which this socket does not say;
        # without, every answer of head and body waits 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="another --host or --port"
        ) from error


def serve(frame: Frame, listener: socket.socket, *, drain_s: float, tls: ssl.SSLContext | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs within `drain_s`; a second signal ends it at once.

    tls: speaks HTTPS by this context; a certificate loaded into it later is shown to connections made later.
    Raises MissingPart where uvicorn is not installed.
    """
    need("uvicorn", extra="serve")
    _raise_open_files()
    asyncio.run(_serve(frame, listener, drain_s, tls))


async def _serve(frame: Frame, listener: socket.socket, drain_s: float, tls: ssl.SSLContext | None) -> None:
    server = uvicorn_server(frame, tls=tls)
    told, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurry if told.is_set() else told).set()
        frame.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await _first(serving, told.wait())
    if told.is_set():
        log.info("stopping: %d requests are running", frame.running)
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await _first(serving, frame.idle(), hurry.wait())
        frame.give_up()
    server.should_exit = True
    await serving


async def _first(serving: asyncio.Task[None], *others: Awaitable[Any]) -> None:
    waiting = [asyncio.ensure_future(one) for one in others]
    try:
        await asyncio.wait([serving, *waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


def uvicorn_server(frame: Frame, *, tls: ssl.SSLContext | None = None) -> Any:
    """Return a `uvicorn.Server` of a frame, with the limits that uvicorn has not."""
    import h11
    from uvicorn import Config, Server
    from uvicorn.protocols.http.h11_impl import H11Protocol

    limits = frame.limits
    # It warns of every client that does not speak HTTP, and advises to install what would not help.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    class Connection(H11Protocol):
        """uvicorn's, with the limits it has not: connections, and the time to send a head."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.app_state = {**self.app_state, "abort": lambda: self.transport.abort()}
            self._due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > limits.connections + SPARE_CONNECTIONS:
                transport.abort()
            else:
                self._due = self.loop.call_later(limits.head_s, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # IDLE: a head is not there, or not all of it. More bytes of it buy no more time.
            if self.conn.their_state is not h11.IDLE:
                self._forget()
            elif self._due is None and not self.transport.is_closing():
                self._due = self.loop.call_later(limits.head_s, self.transport.abort)

        def send_400_response(self, msg: str) -> None:
            """Refuse what is no request; h11 gives up a head far over the limit before the frame sees it."""
            error = sys.exc_info()[1]
            is_long = isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == TOO_LONG
            status, code = (TOO_LONG, "headers-too-large") if is_long else (400, "not-http")
            said = f"headers exceed {limits.header_bytes} bytes" if is_long else msg
            body = error_body(said, kind=kind_of(status), code=code)
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            answer = h11.Response(status_code=status, headers=headers)
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
            self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _forget(self) -> None:
            if self._due:
                self._due.cancel()
            self._due = None

    class Quiet(Server):
        """uvicorn's, with signals left to us: it would close the door first and then wait."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = Config(
        frame,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=2 * limits.header_bytes + 1024,
        timeout_keep_alive=int(limits.head_s),
        timeout_graceful_shutdown=1,
    )
    # uvicorn itself takes only the names of files, and reads them once.
    config.load()
    config.ssl = tls
    return Quiet(config)


def _raise_open_files() -> None:
    """Ask for as many open files as we may have: every request in flight is two sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
