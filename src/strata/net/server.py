"""Runs a frame under uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from strata.errors import UsageError, need
from strata.net.http import Frame

log = logging.getLogger(__name__)

SPARE_CONNECTIONS: Final = 64
"""Beyond the frame's limit, so that its refusals, heartbeats and health checks still get through; over both,
uvicorn answers 503 to everything.
"""


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
    stopping, hurry = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()
        frame.drain()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await _first(serving, stopping.wait())
    if stopping.is_set():
        log.info("stopping: %d requests are running", frame.running)
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await _first(serving, frame.idle(), hurry.wait())
        frame.give_up()
    server.should_exit = True
    await serving


async def _first(serving: asyncio.Task[None], *others: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(other) for other in others]
    try:
        await asyncio.wait([serving, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


@contextmanager
def serving(frame: Frame, listener: socket.socket) -> Iterator[None]:
    """Serve meanwhile, in a thread of its own; connections that are open at the end are closed."""
    server = uvicorn_server(frame)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def uvicorn_server(frame: Frame, *, tls: ssl.SSLContext | None = None) -> Any:
    """Return a `uvicorn.Server` of a frame: uvicorn's own limits, and the two that it has not (decision 10)."""
    import h11
    from uvicorn import Config, Server
    from uvicorn.protocols.http.h11_impl import H11Protocol

    limits = frame.limits
    # It warns of every client that does not speak HTTP, and advises to install what would not help.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    class Connection(H11Protocol):
        """uvicorn's, with a time to send a head in; the frame can break a connection, and upgrade it.

        An application may listen for its end, and write pieces past the queue of messages.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            # uvicorn closes a connection once its buffer is sent: never, with a client that reads no more.
            self.app_state = {
                **self.app_state,
                "abort": lambda: self.transport.abort(),
                "is_held": lambda: self.flow.write_paused,
                "listen": self._listen,
                "write": self._write,
                "upgrade": self._upgrade,
            }
            self._head_timer: asyncio.TimerHandle | None = None
            self._upgraded: asyncio.Protocol | None = None
            self._on_lost: Callable[[], None] | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            if self._upgraded is not None:
                self._upgraded.data_received(data)
                return
            super().data_received(data)
            # IDLE: a head is not there, or not all of it. More bytes of it buy no more time.
            if self.conn.their_state is not h11.IDLE:
                self._forget_head()
            elif self._head_timer is None and not self.transport.is_closing():
                self._await_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            super().connection_lost(exc)
            if self._upgraded is not None:
                self._upgraded.connection_lost(exc)
            if self._on_lost is not None:
                self._on_lost()

        def shutdown(self) -> None:
            if self._upgraded is not None:
                self.transport.close()
            else:
                super().shutdown()

        def _listen(self, on_lost: Callable[[], None] | None) -> None:
            """Call this when the connection is lost, at once where it is: `receive` takes a task to wait in."""
            self._on_lost = on_lost
            self.flow.resume_reading()  # or its end would not be seen
            if on_lost is not None and self.transport.is_closing():
                on_lost()

        def _upgrade(self, name: str, protocol: asyncio.Protocol) -> None:
            """Hand the connection over; the request it began with is over when the connection is."""
            self._forget_head()
            head = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {name}\r\n\r\n"
            self.transport.write(head.encode())
            self._upgraded = protocol
            protocol.connection_made(self.transport)
            early, _ = self.conn.trailing_data
            if early:
                protocol.data_received(early)
            self.flow.resume_reading()

        def _write(self, piece: bytes) -> bool:
            """Write a piece of an answer of unknown length at once, as h11 would; return whether it could.

            Only to a client that has read all before: `send` waits for one that has not.
            """
            conn = self.conn
            is_chunked = conn.our_state is h11.SEND_BODY and conn.their_http_version == b"1.1"
            if (
                not piece
                or not is_chunked
                or self.transport.get_write_buffer_size()
                or self.transport.is_closing()
            ):
                return False
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            return True

        def _await_head(self) -> None:
            self._head_timer = self.loop.call_later(limits.head_s, self.transport.abort)

        def _forget_head(self) -> None:
            if self._head_timer:
                self._head_timer.cancel()
            self._head_timer = None

    class DrainingServer(Server):
        """uvicorn's, with signals left to us: it would stop listening first and wait for requests afterwards."""

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
        limit_concurrency=limits.connections + SPARE_CONNECTIONS,
        timeout_keep_alive=int(limits.head_s),
        timeout_graceful_shutdown=1,
    )
    # uvicorn itself takes only the names of files, and reads them once.
    config.load()
    config.ssl = tls
    return DrainingServer(config)


def _raise_open_files() -> None:
    """Ask for as many open files as we may have: every request in flight is two sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
