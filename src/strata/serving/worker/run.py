"""Runs a worker: listens, joins, serves, and on SIGTERM leaves before it finishes what runs through it.

Needs torch, starlette, uvicorn and httpx at import.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time_ns
from typing import Final

from starlette.applications import Starlette

from strata.net.server import serve
from strata.net.tls import client_context
from strata.serving.hosted import HostedModel
from strata.serving.tasks import TaskSet
from strata.serving.wire import JoinMessage, StepSample, node_client
from strata.serving.worker.agent import Agent
from strata.serving.worker.app import body_bytes, frame
from strata.serving.worker.drive import STEP_LIMIT_S
from strata.serving.worker.hardware import Hardware
from strata.serving.worker.holder import ROWS, StageMaker
from strata.serving.worker.links import HttpGateway
from strata.serving.worker.peers import Links
from strata.serving.worker.usage import MachineUsage
from strata.serving.worker.worker import Worker

DRAIN_S: Final = 30.0
"""For what runs when the worker is told to stop; the gateway has sent it elsewhere by then."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Who the worker is and where; `url` is where others reach it, `token` what all nodes show.

    maker: makes the model's layers. samples: what a block of them took before it joins. in_thread: what the thread
    that runs them does first. tls: what it shows itself; authority: whose certificates it believes besides the
    system's.
    """

    node_id: str
    url: str
    gateway: str
    model: HostedModel
    maker: StageMaker
    hardware: Hardware
    samples: tuple[StepSample, ...] = ()
    in_thread: Callable[[], None] = lambda: None
    token: str = ""
    region: str = ""
    tls: ssl.SSLContext | None = None
    authority: Path | None = None
    device: str = "cpu"


def run(settings: WorkerSettings, listener: socket.socket) -> None:
    """Serve until SIGTERM. Raises UsageError where the gateway will not have this worker."""
    process = _WorkerProcess(settings)
    serve(frame(process.worker, token=settings.token, lifespan=process.lifespan, on_drain=process.leave), listener,
          drain_s=DRAIN_S, tls=settings.tls)  # fmt: skip
    if process.error:
        raise process.error


class _WorkerProcess:
    def __init__(self, settings: WorkerSettings) -> None:
        self.error: BaseException | None = None
        self._settings = settings
        self._client = node_client(settings.token, settings.authority)
        peers = Links(
            token=settings.token,
            fingerprint=settings.model.fingerprint,
            frame_bytes=body_bytes(settings.model),
            silence_s=STEP_LIMIT_S,
            tls=client_context(settings.authority),
        )
        self.worker = Worker(
            settings.node_id,
            settings.model,
            settings.maker,
            memory_bytes=settings.hardware.memory_bytes,
            peers=peers,
            clock=monotonic,
            in_thread=settings.in_thread,
        )
        self.worker.stage.url = settings.url
        card = JoinMessage(
            node_id=settings.node_id,
            incarnation=time_ns() // 1_000_000,
            url=settings.url,
            region=settings.region,
            fingerprint=settings.model.fingerprint,
            step_sequences=ROWS,
            samples=settings.samples,
            **settings.hardware._asdict(),
        )
        self.worker.incarnation = card.incarnation
        self.agent = Agent(
            card,
            HttpGateway(self._client, settings.gateway),
            self.worker,
            measure=peers.hops,
            usage=MachineUsage(settings.device).shares,
        )
        self.worker.on_loaded = self.agent.loaded
        self._tasks = TaskSet(self._stopped)
        self._leaving: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Live as long as the server listens."""
        self._heartbeats = self._tasks.start(self.agent.run())
        self._tasks.start(self.agent.measure_forever())
        self._tasks.start(self.worker.expire_forever())
        try:
            yield
        finally:
            await self._tasks.close()
            if self._leaving:
                await self._leaving
            await self.worker.close()
            await self._client.aclose()

    def leave(self) -> None:
        """Stop beating, and say good-bye."""
        self._leaving = asyncio.create_task(self._leave())

    async def _leave(self) -> None:
        self._heartbeats.cancel()
        await asyncio.gather(self._heartbeats, return_exceptions=True)
        if self.agent.is_joined:
            await self.agent.leave()

    def _stopped(self, error: BaseException) -> None:
        """Take the server down with what should have run for ever."""
        self.error = error
        signal.raise_signal(signal.SIGTERM)
