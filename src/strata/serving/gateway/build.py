"""Puts a gateway together: a driver for the workers' model, one for every model that engines serve."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import httpx

from strata.clock import Clock
from strata.net.http import Frame, Limits
from strata.serving.gateway.access import NOBODY, NodeAccess
from strata.serving.gateway.app import make_frame
from strata.serving.gateway.backend import BackendClient
from strata.serving.gateway.connections import EngineConnections
from strata.serving.gateway.discovery import Backend, Watcher, models_of
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.engines import Engines
from strata.serving.gateway.gateway import Gateway
from strata.serving.gateway.keys import ClientKeys
from strata.serving.gateway.workers import Workers
from strata.serving.hosted import HostedModel
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from strata.serving.tasks import TaskSet
from strata.serving.tokens import Tokenizer
from strata.serving.wire import node_client
from strata.workload import huggingface
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

log = logging.getLogger(__name__)

DEMAND: Final = Demand(batch=8, prompt_tokens=128, output_tokens=128)
"""What plans are made for until requests say more (assumed)."""
ASK_AGAIN_S: Final = 2.0
SILENCE_S: Final = 120.0
"""A prompt of a hundred thousand tokens may be read for so long before the first token comes (assumed)."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What a gateway is told. model: the workers', with its tokenizer; None to take no workers.

    token, keys, nodes, origins: as `make_frame` takes them. silence_s: longest wait for the next piece of a stream
    from an engine. authority: whose certificates nodes and engines may show, besides the system's.
    """

    config: SchedulerConfig
    model: tuple[HostedModel, Tokenizer] | None
    backends: tuple[Backend, ...] = ()
    limits: Limits = field(default_factory=Limits)
    token: str = ""
    keys: ClientKeys | None = None
    nodes: NodeAccess = NOBODY
    origins: tuple[str, ...] = ()
    backend_token: str = ""
    authority: Path | None = None
    silence_s: float = SILENCE_S


def build(settings: GatewaySettings, *, clock: Clock = time.monotonic) -> tuple[Gateway, Frame]:
    """Return a gateway, and itself as an ASGI application whose lifespan starts it."""
    gateway = Gateway(fingerprint=settings.model[0].fingerprint if settings.model else "")
    builder = _Builder(gateway, settings, clock)
    frame = make_frame(
        gateway,
        limits=settings.limits,
        token=settings.token,
        keys=settings.keys,
        nodes=settings.nodes,
        origins=settings.origins,
        lifespan=builder.start,
    )
    return gateway, frame


@functools.cache
def _usual_model() -> ModelInfo:
    return ModelInfo.of(huggingface.model("llama-3.1-8b"))


def engine_model(name: str) -> ModelInfo:
    """Return the model of engines: they are never cut, and take for tokens what a usual model does (assumed)."""
    return replace(_usual_model(), model_name=name)


@dataclass(frozen=True, slots=True)
class _Builder:
    """Adds drivers to a gateway, as engines say which model they serve."""

    gateway: Gateway
    settings: GatewaySettings
    clock: Clock

    async def start(self, stack: AsyncExitStack) -> None:
        """Serve until the stack is left."""
        settings = self.settings
        if settings.model:
            model, tokenizer = settings.model
            client = await stack.enter_async_context(node_client(settings.nodes.token, settings.authority))
            workers = Workers(
                client,
                model,
                tokenizer,
                default_tokens=DEMAND.output_tokens,
                silence_s=settings.limits.answer_s,
            )
            self.gateway.workers = self._driver(model.info, workers, is_shown=not settings.backends)
        if settings.backends:
            client = await stack.enter_async_context(node_client(settings.backend_token, settings.authority))
            connections = EngineConnections(settings.backend_token, settings.authority)
            stack.push_async_callback(connections.aclose)
            tasks = TaskSet(lambda error: log.error("a background task ended unexpectedly", exc_info=error))
            stack.push_async_callback(tasks.close)
            for number, backend in enumerate(settings.backends):
                if backend.model:
                    self._engines(backend.model, client, connections)
                tasks.start(self._serve_backend(backend, f"backend-{number}", client, connections))

    def _driver(self, model: ModelInfo, backend_client: BackendClient, *, is_shown: bool = True) -> Driver:
        core = Core(self.settings.config, model, DEMAND, learns=True)
        driver = Driver(core, backend_client, self.gateway.meters, clock=self.clock)
        if is_shown:  # or, before engines that may be all there is, as soon as a worker joins
            self.gateway.drivers[driver.name] = driver
        return driver

    def _engines(self, model: str, client: httpx.AsyncClient, connections: EngineConnections) -> Driver:
        """Return the driver of that name: of the model's engines, or of the workers' model."""
        workers = self.gateway.workers
        if driver := workers if workers and workers.name == model else self.gateway.drivers.get(model):
            return driver
        engines = Engines(
            client,
            connections,
            default_tokens=DEMAND.output_tokens,
            silence_s=self.settings.silence_s,
            answer_s=self.settings.limits.answer_s,
        )
        return self._driver(engine_model(model), engines)

    async def _serve_backend(
        self, backend: Backend, node_id: str, client: httpx.AsyncClient, connections: EngineConnections
    ) -> None:
        while True:
            name = backend.model
            while not name:
                if served := await models_of(backend, client):
                    name = served[0].name
                else:
                    await asyncio.sleep(ASK_AGAIN_S)
            driver = self._engines(name, client, connections)
            if not isinstance(driver.backend_client, Engines):
                problem = "its model %r has the same name as the workers' model"
                log.error(f"%s is not used: {problem}", backend.url, name)
                return
            await Watcher(backend, node_id, driver, driver.backend_client).run()
