"""A gateway before engines that are made up, in one process, and what such an engine streams."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from strata.net.http import Limits
from strata.serving.gateway.app import make_frame
from strata.serving.gateway.build import DEMAND, engine_model
from strata.serving.gateway.connections import EngineConnections
from strata.serving.gateway.discovery import Backend, Watcher
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.engines import Engines
from strata.serving.gateway.gateway import Gateway
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from tests.serving.gateway.world import FAST, FakeEngine, Wires
from tests.support.live_server import listening


class LocalAnswer:
    """An answer from an engine in this process."""

    def __init__(self, answer):
        self.status_code, self.headers = answer.status_code, answer.headers
        self.is_whole, self.since_s = False, 0.0
        self._pieces = answer.aiter_bytes()

    async def hand(self, take):
        async for piece in self._pieces:
            self.since_s += 1.0
            if not take(piece):
                return
        self.is_whole = True


class LocalConnections:
    """Connections to engines in this process, which may be silent for as long as they like."""

    def __init__(self, client):
        self.client = client

    @asynccontextmanager
    async def stream(self, url, content, *, connect_s, due_s):
        async with self.client.stream("POST", url, content=content) as answer:
            yield LocalAnswer(answer)


class EngineWorld:
    """A gateway before engines named a, b, ... ; `wired`: over real sockets, where silence has an end."""

    def __init__(
        self, names: str = "ab", *, slots: int = 4, config: SchedulerConfig = FAST, wired: bool = False
    ) -> None:
        self.slots = slots
        self.engines = [FakeEngine(name) for name in names]
        self.gateway = Gateway()
        self.gateway.new_id = lambda: "1"
        self.now_s = 100.0
        self.wired = wired
        client = httpx.AsyncClient() if wired else httpx.AsyncClient(transport=Wires(self.engines))
        self.pauses_s: list[float] = []
        self.watchers: list[Watcher] = []
        self.backend_client = Engines(
            client,
            EngineConnections() if wired else LocalConnections(client),
            default_tokens=DEMAND.output_tokens,
            silence_s=600.0,
            answer_s=600.0,
            sleep=self.pause,
        )
        self.driver = Driver(
            Core(config, engine_model("llama"), DEMAND),
            self.backend_client,
            self.gateway.meters,
            clock=lambda: self.now_s,
        )
        self.gateway.drivers["llama"] = self.driver
        self.frame = make_frame(self.gateway, limits=Limits())
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.frame), base_url="http://gateway")

    async def pause(self, seconds):
        self.pauses_s.append(seconds)

    async def watched(self):
        """Have every engine looked after once more."""
        for watcher in self.watchers:
            await watcher.look()

    async def request(self, kind="completions", **more):
        return await self.client.post(f"/v1/{kind}", json={"model": "llama", **more})

    @asynccontextmanager
    async def up(self):
        tasks, stack = [], AsyncExitStack()
        for engine in self.engines:
            if self.wired:
                port = await stack.enter_async_context(listening(engine.frame()))
                engine.url = f"http://127.0.0.1:{port}"
            backend = Backend(engine.url, "llama", self.slots)
            self.watchers.append(Watcher(backend, engine.name, self.driver, self.backend_client))
            tasks.append(asyncio.create_task(self.watchers[-1].run()))
            await engine.polled.wait()
        while len(self.backend_client.urls) < len(self.engines):
            await asyncio.sleep(0)
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            await self.driver.stop()
            if self.wired:
                await self.backend_client.connections.aclose()
            await self.backend_client.client.aclose()
            await stack.aclose()


def run(scenario, names="ab", **made):
    async def whole():
        async with EngineWorld(names, **made).up() as world:
            return await scenario(world)

    return asyncio.run(whole())


def asked_of(world):
    return [body for engine in world.engines for path, body in engine.heard if "completions" in path]


def chunk_of(text="", finish=None, index=0, **more):
    choice = {"index": index, "finish_reason": finish, "text": text}
    return b"data: %s\n\n" % json.dumps({"id": "theirs", "choices": [choice]} | more).encode()


DONE = b"data: [DONE]\n\n"


def told(*pieces, breaks=False):
    """An engine's stream."""

    async def stream(text, usage, *, is_chat):
        for piece in pieces:
            yield piece
        if breaks:
            raise httpx.ReadError("reset")

    return stream
