"""Runs a frame under uvicorn until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Awaitable, Iterator
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
        why = (error.strerror or str(error)).partition(" (while attempting to bind")[0]  # which is said here
        raise UsageError(f"cannot listen on {host}:{port}: {why}", hint="another --host or --port") from error


def serve(frame: Frame, listener: socket.socket, *, drain_s: float, tls: ssl.SSLContext | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then finish what runs within `drain_s`; a second signal ends it at once.

    tls: speaks HTTPS by this context; a certificate loaded into it later is shown to connections made later.
    Raises MissingPart where uvicorn or httptools is not installed.
    """
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
    """Return a `uvicorn.Server` of a frame: uvicorn's own limits, and those that it has not (decision 10).

    Raises MissingPart where uvicorn or httptools is not installed.
    """
    for module in ("uvicorn", "httptools"):
        need(module, extra="serve")
    from uvicorn import Config, Server

    from strata.net.connection import Connection

    # It warns of every client that does not speak HTTP, and advises to install what would not help.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    class LimitedConnection(Connection):
        limits = frame.limits

    class DrainingServer(Server):
        """uvicorn's, with signals left to us: it would stop listening first and wait for requests afterwards."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    config = Config(
        frame,
        http=LimitedConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=frame.limits.connections + SPARE_CONNECTIONS,
        timeout_keep_alive=int(frame.limits.head_s),
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
