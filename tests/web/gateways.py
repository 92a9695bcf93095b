"""A gateway as it answered over made-up workers, and an address that answers so again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.serving.gateway.world import World
from tests.serving.gateway.world import run as run_gateway

WAITS_S = 0.8
"""Of the last request, before its first token."""


def record() -> dict[str, object]:
    """Return what a gateway of two workers answered, by path, when three requests were over."""

    async def scenario(world: World) -> dict[str, object]:
        ids = [(await world.complete("hello", tokens=tokens)).json()["id"] for tokens in (4, 8)]
        ids.append(await _slow(world))
        paths = ["/status", "/decisions", *(f"/decisions/{request_id}" for request_id in ids)]
        return {path: (await world.get(path)).json() for path in paths}

    with ThreadPoolExecutor(1) as pool:  # a browser's test has a loop in this thread
        return pool.submit(run_gateway, scenario).result()


async def _slow(world: World) -> str:
    for worker in world.workers:
        worker.go.clear()
    answer = asyncio.create_task(world.complete("hello", tokens=6))
    waits = [asyncio.create_task(worker.waits.wait()) for worker in world.workers]
    _, others = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for other in others:
        other.cancel()
    world.tick(WAITS_S)
    for worker in world.workers:
        worker.go.set()
    return (await answer).json()["id"]


@contextmanager
def answering(answers: Mapping[str, object], *, token: str = "") -> Iterator[str]:
    """Answer so at an address of this machine, to who has the token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_known = not token or self.headers["authorization"] == f"Bearer {token}"
            body = json.dumps(answers[self.path] if is_known else {"error": {"message": "no"}}).encode()
            self.send_response(200 if is_known else 401)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
