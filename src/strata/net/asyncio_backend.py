"""Connections of httpx over asyncio's own streams: closing never waits, so that nothing cancels it half way.

httpcore's default closes a connection in two turns of the loop, shielded from anyio's cancellations only. A task
of asyncio that is cancelled there forgets the other connections that it had taken out of the pool to close
(github.com/encode/httpcore, pull request 922): sockets stay open until the garbage collector comes, most where a
peer with many idle connections has died.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpcore
import httpx

KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A peer that is gone without a word is noticed after half a minute, however long it may be silent."""


def transport(context: ssl.SSLContext) -> httpx.AsyncHTTPTransport:
    """Return what carries a client's requests, as many at once as there are; no proxy of the environment."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    made = httpx.AsyncHTTPTransport(verify=context, limits=limits, socket_options=KEEPALIVE, trust_env=False)
    made._pool._network_backend = AsyncioBackend()  # httpx has no parameter for it
    return made


class AsyncioBackend(httpcore.AsyncNetworkBackend):
    """TCP alone."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to one address of a host after the other."""
        local = None if local_address is None else (local_address, 0)
        with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(host, port, local_addr=local)
            stream = _Stream(reader, writer)
            try:
                for option in socket_options or ():
                    writer.get_extra_info("socket").setsockopt(*option)
            except OSError:
                await stream.aclose()
                raise
        return stream

    async def sleep(self, seconds: float) -> None:
        """Wait before another attempt to connect."""
        await asyncio.sleep(seconds)


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _mapped(httpcore.ReadTimeout, httpcore.ReadError):
            async with asyncio.timeout(timeout):
                return await self.reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with _mapped(httpcore.WriteTimeout, httpcore.WriteError):
            async with asyncio.timeout(timeout):
                self.writer.write(buffer)
                await self.writer.drain()

    async def aclose(self) -> None:
        self.writer.transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                await self.writer.start_tls(ssl_context, server_hostname=server_hostname)
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # asked of an idle connection: whether its peer has closed it
            return self.reader.at_eof() or self.writer.is_closing()
        names = {"client_addr": "sockname", "server_addr": "peername"}
        return self.writer.get_extra_info(names.get(info, info))


@contextmanager
def _mapped(timeout: type[Exception], failure: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timeout(error) from error
    except OSError as error:
        raise failure(error) from error
