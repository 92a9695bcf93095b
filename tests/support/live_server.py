"""A frame behind a real socket on loopback, in the loop of the test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from strata.net.http import Frame
from strata.net.server import listen, uvicorn_server


@asynccontextmanager
async def listening(frame: Frame, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Yield the port. Who connects before the server is up waits in the socket's backlog."""
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn_server(frame, tls=tls)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await serving
