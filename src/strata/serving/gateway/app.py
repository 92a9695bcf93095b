"""The gateway over HTTP: OpenAI's endpoints for clients, `wire.py`'s for nodes, and what operators look at."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from strata.net.http import Frame, Limits, Realm, error_body, kind_of
from strata.net.metrics import CONTENT_TYPE, render
from strata.serving.gateway import nodes
from strata.serving.gateway.gateway import Gateway
from strata.serving.gateway.openai import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    GenerationRequest,
    RerankRequest,
    ResponsesRequest,
    goal_s,
    parse,
)
from strata.serving.gateway.response import GenerationResponse

KINDS: Final[dict[type[GenerationRequest], str]] = {
    ChatRequest: "chatcmpl",
    CompletionRequest: "cmpl",
    EmbeddingsRequest: "embd",
    ResponsesRequest: "resp",
    RerankRequest: "rerank",
}
"""What is scheduled, and how the ids of such requests begin."""


class GatewayFrame(Frame):
    """Tells clients whose requests did not end in time."""

    gateway: Gateway

    def give_up(self) -> None:
        """End all requests with an honest error."""
        for driver in self.gateway.drivers.values():
            driver.give_up()


def make_frame(
    gateway: Gateway,
    *,
    limits: Limits,
    token: str = "",
    node_token: str = "",
    lifespan: Callable[[AsyncExitStack], Awaitable[None]] | None = None,
) -> GatewayFrame:
    """Return the gateway as an ASGI application; `lifespan` starts what runs beside it."""

    @asynccontextmanager
    async def live(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if lifespan:
                await lifespan(stack)
            yield
            for driver in gateway.drivers.values():
                await driver.stop()

    async def health(_request: Request) -> Response:
        trouble = "stopping" if frame.is_draining else gateway.why_not_ready()
        body = {"status": "unavailable", "reason": trouble} if trouble else {"status": "ok"}
        return JSONResponse(body, 503 if trouble else 200)

    endpoints = _Endpoints(gateway)
    app = Starlette(
        routes=[
            *(endpoints.generation(kind, prefix) for kind, prefix in KINDS.items()),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{name:path}", endpoints.model),
            Route("/decisions/{id}", endpoints.decision),
            Route("/status", endpoints.status),
            Route("/metrics", endpoints.metrics),
            Route("/healthz", health),
            *nodes.routes(gateway),
        ],
        lifespan=live,
        exception_handlers=dict.fromkeys((HTTPException, ApiError, Exception), _error),
    )
    frame = GatewayFrame(
        app,
        realms=[
            Realm("/", token, drains=False),
            Realm("/v1/", token),
            Realm("/nodes/", node_token, drains=False),
            Realm("/healthz", drains=False),
        ],
        limits=limits,
        requests=gateway.meters.http,
    )
    frame.gateway = gateway
    return frame


class _Endpoints:
    """What clients and operators ask."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def generation(self, kind: type[GenerationRequest], prefix: str) -> Route:
        """Return the route of an endpoint whose requests are scheduled; `prefix` begins their ids."""

        async def generate(request: Request) -> Response:
            return await self._generate(kind, request, prefix)

        return Route(kind.path, generate, methods=["POST"])

    async def _generate(self, kind: type[GenerationRequest], request: Request, prefix: str) -> Response:
        generation = parse(kind, await request.body())
        ttft_goal_s, tpot_goal_s = (
            goal_s(request.headers, header) for header in ("x-strata-ttft-ms", "x-strata-tpot-ms")
        )
        driver = self.gateway.drivers.get(generation.model)
        if driver is None:
            raise self._no_model(generation.model)
        request_id = f"{prefix}-{self.gateway.new_id()}"
        stream = driver.submit(
            generation,
            request_id,
            created=int(self.gateway.wall_clock()),
            ttft_goal_s=ttft_goal_s,
            tpot_goal_s=tpot_goal_s,
        )
        # An ASGI application in all but name: Starlette only calls it.
        return GenerationResponse(driver, stream)  # type: ignore[return-value]

    async def models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_card(name) for name in self.gateway.drivers]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]  # may hold slashes: org/model
        if name not in self.gateway.drivers:
            raise self._no_model(name)
        return JSONResponse(_card(name))

    def _no_model(self, name: str) -> ApiError:
        known = ", ".join(sorted(self.gateway.drivers)) or "none yet"
        return ApiError(404, f"there is no model {name!r}; known: {known}", "model_not_found", param="model")

    async def decision(self, request: Request) -> Response:
        request_id = request.path_params["id"]
        for driver in self.gateway.drivers.values():
            decision = driver.core.explain(request_id)
            if decision is not None:
                return JSONResponse(_finite(decision) | {"model": driver.name})
        raise ApiError(404, f"{request_id!r} is unknown, or no longer remembered", "decision_not_found")

    async def status(self, _request: Request) -> Response:
        drivers = self.gateway.drivers
        return JSONResponse({name: _finite(driver.core.status()) for name, driver in drivers.items()})

    async def metrics(self, _request: Request) -> Response:
        return PlainTextResponse(render(self.gateway.meters.registry), headers={"content-type": CONTENT_TYPE})


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "strata"}


def _finite(data: Any) -> Any:
    """Return data that JSON can hold: null for what has no end."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


async def _error(_request: Request, error: Exception) -> Response:
    """Give every error the form of OpenAI's API; the frame logs those that are ours."""
    if isinstance(error, ApiError):
        return Response(error.body, error.status, media_type="application/json")
    status, message, code, headers = 500, "internal error", "internal", None
    if isinstance(error, HTTPException):
        status, message, headers = error.status_code, error.detail, error.headers
        code = str(status)
    return Response(error_body(message, kind=kind_of(status), code=code), status, headers, "application/json")
