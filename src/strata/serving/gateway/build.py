"""Puts a gateway together: a driver for the workers' model, one for every model that engines serve."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Final

import httpx

from strata.clock import Clock
from strata.net.http import Frame, Limits
from strata.serving.gateway.app import make_frame
from strata.serving.gateway.discovery import Backend, models_of, watch
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.engines import Engines
from strata.serving.gateway.gateway import Gateway
from strata.serving.gateway.meters import Meters
from strata.serving.gateway.workers import Workers
from strata.serving.live.config import SchedulerConfig
from strata.serving.live.core import Core
from strata.serving.worker.shape import ELEMENT_BYTES, Shape
from strata.workload.inference import ModelInfo
from strata.workload.serving_job import Demand

log = logging.getLogger(__name__)

DEMAND: Final = Demand(batch=8, prompt_tokens=128, output_tokens=128)
"""What plans are made for until requests say more (assumed)."""
ASK_AGAIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What a gateway is told. shape: of the workers' model, None to take none."""

    config: SchedulerConfig
    shape: Shape | None
    backends: tuple[Backend, ...] = ()
    limits: Limits = field(default_factory=Limits)
    token: str = ""
    node_token: str = ""
    backend_token: str = ""


def build(settings: GatewaySettings, *, clock: Clock = time.monotonic) -> tuple[Gateway, Frame]:
    """Return a gateway, and itself as an ASGI application whose lifespan starts it."""
    gateway = Gateway(Meters(lambda: gateway.counts()))

    async def start(stack: AsyncExitStack) -> None:
        if settings.shape:
            client = await stack.enter_async_context(_client(settings.node_token))
            gateway.fingerprint = settings.shape.fingerprint
            gateway.workers = _workers(gateway, settings, settings.shape, client, clock)
        if settings.backends:
            client = await stack.enter_async_context(_client(settings.backend_token))
            for number, backend in enumerate(settings.backends):
                if backend.model:
                    _engines(gateway, settings, backend.model, client, clock)
                _in_background(stack, _serve_backend(gateway, settings, number, client, clock))

    frame = make_frame(
        gateway, limits=settings.limits, token=settings.token, node_token=settings.node_token, lifespan=start
    )
    return gateway, frame


def tiny_model(shape: Shape) -> ModelInfo:
    """Return the workers' model as planners see it."""
    model = ModelInfo.of(shape.spec, weight_bytes_per_param=ELEMENT_BYTES, kv_element_bytes=ELEMENT_BYTES)
    return replace(model, hidden_bytes=float(ELEMENT_BYTES * shape.hidden_size))


def engine_model(name: str) -> ModelInfo:
    """Return the model of engines: they are never cut, so of its layers only that there are some matters."""
    return replace(tiny_model(Shape(num_layers=1)), model_name=name)


def _workers(
    gateway: Gateway,
    settings: GatewaySettings,
    shape: Shape,
    client: httpx.AsyncClient,
    clock: Clock,
) -> Driver:
    urls: dict[str, str] = {}
    backend_client = Workers(
        client,
        urls,
        max_positions=shape.max_positions,
        default_tokens=DEMAND.output_tokens,
        silence_s=settings.limits.answer_s,
    )
    core = Core(settings.config, tiny_model(shape), DEMAND, learns=True)
    driver = Driver(core, backend_client, urls, gateway.meters, clock=clock)
    gateway.drivers[driver.name] = driver
    return driver


def _engines(
    gateway: Gateway, settings: GatewaySettings, model: str, client: httpx.AsyncClient, clock: Clock
) -> Driver | None:
    """Return the driver of a model's engines; None where the name is taken by the workers' model."""
    if driver := gateway.drivers.get(model):
        return None if driver is gateway.workers else driver
    urls: dict[str, str] = {}
    backend_client = Engines(client, urls, default_tokens=DEMAND.output_tokens, silence_s=settings.limits.answer_s)
    core = Core(settings.config, engine_model(model), DEMAND, learns=True)
    driver = gateway.drivers[model] = Driver(core, backend_client, urls, gateway.meters, clock=clock)
    return driver


async def _serve_backend(
    gateway: Gateway, settings: GatewaySettings, number: int, client: httpx.AsyncClient, clock: Clock
) -> None:
    backend = settings.backends[number]
    model = backend.model
    while not model:
        models = await models_of(backend, client)
        model = models[0].name if models else ""
        if not model:
            await asyncio.sleep(ASK_AGAIN_S)
    driver = _engines(gateway, settings, model, client, clock)
    if driver is None:
        log.error("%s is not used: its model %r has the same name as the workers' model", backend.url, model)
        return
    assert isinstance(driver.backend_client, Engines)
    await watch(backend, f"backend-{number}", driver, driver.backend_client)


def _client(token: str) -> httpx.AsyncClient:
    # No proxy of the environment: nodes are near. As many connections as there are requests in flight.
    return httpx.AsyncClient(
        headers={"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {}),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        trust_env=False,
    )


def _in_background(stack: AsyncExitStack, work: Coroutine[Any, Any, None]) -> None:
    """Run until the gateway stops."""

    async def guarded() -> None:
        try:
            await work
        except Exception:
            log.exception("a task has ended that should not")

    async def end() -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    task = asyncio.create_task(guarded())
    stack.push_async_callback(end)
