"""The gateway over HTTP: OpenAI's endpoints for clients, `wire.py`'s for nodes, and what operators look at."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from strata.net.http import Frame, Limits, Realm, error_body, kind_of
from strata.net.metrics import CONTENT_TYPE, render
from strata.serving.gateway import nodes
from strata.serving.gateway.gateway import Gateway, why_not_ready
from strata.serving.gateway.openai import Writer, goal_s, parse
from strata.serving.gateway.request_stream import ApiError
from strata.serving.gateway.response import GenerationResponse, fault_body

Endpoint = Callable[[Request], Awaitable[Response]]


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
        trouble = "stopping" if frame.is_draining else why_not_ready(gateway)
        body = {"status": "unavailable", "reason": trouble} if trouble else {"status": "ok"}
        return JSONResponse(body, 503 if trouble else 200)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", _answering(gateway, "chat"), methods=["POST"]),
            Route("/v1/completions", _answering(gateway, "completion"), methods=["POST"]),
            Route("/v1/models", _models(gateway)),
            Route("/v1/models/{name:path}", _model(gateway)),
            Route("/decisions/{id}", _decision(gateway)),
            Route("/status", _status(gateway)),
            Route("/metrics", _metrics(gateway)),
            Route("/healthz", health),
            *nodes.routes(gateway),
        ],
        lifespan=live,
        exception_handlers={HTTPException: _http_error, ApiError: _fault, Exception: _bug},
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


def _answering(gateway: Gateway, kind: Any) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        generation = replace(
            parse(kind, await request.body()),
            ttft_goal_s=goal_s(request.headers, "x-strata-ttft-ms"),
            tpot_goal_s=goal_s(request.headers, "x-strata-tpot-ms"),
        )
        driver = gateway.drivers.get(generation.model)
        if driver is None:
            raise _no_model(gateway, generation.model)
        request_id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{gateway.new_id()}"
        stream = driver.submit(generation, request_id)
        # An ASGI application in all but name: Starlette only calls it.
        return GenerationResponse(driver, stream, Writer(generation, request_id, int(gateway.wall_clock())))  # type: ignore[return-value]

    return endpoint


def _models(gateway: Gateway) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_card(name) for name in gateway.drivers]})

    return endpoint


def _model(gateway: Gateway) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        name = request.path_params["name"]  # may hold slashes: org/model
        if name not in gateway.drivers:
            raise _no_model(gateway, name)
        return JSONResponse(_card(name))

    return endpoint


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "strata"}


def _no_model(gateway: Gateway, name: str) -> ApiError:
    known = ", ".join(sorted(gateway.drivers)) or "none yet"
    return ApiError(404, f"there is no model {name!r}; known: {known}", "model_not_found", param="model")


def _decision(gateway: Gateway) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        request_id = request.path_params["id"]
        for driver in gateway.drivers.values():
            decision = driver.core.explain(request_id)
            if decision is not None:
                return JSONResponse(_finite(decision) | {"model": driver.name})
        raise ApiError(404, f"{request_id!r} is unknown, or no longer remembered", "decision_not_found")

    return endpoint


def _status(gateway: Gateway) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        return JSONResponse(_finite(gateway.status()))

    return endpoint


def _finite(data: Any) -> Any:
    """Return data that JSON can hold: null for what has no end."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


def _metrics(gateway: Gateway) -> Endpoint:
    async def endpoint(_request: Request) -> Response:
        return PlainTextResponse(render(gateway.meters.registry), headers={"content-type": CONTENT_TYPE})

    return endpoint


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = error_body(error.detail, kind=kind_of(error.status_code), code=str(error.status_code))
    return Response(body, error.status_code, error.headers, "application/json")


async def _bug(_request: Request, _error: Exception) -> Response:
    # The frame logs it; here it only gets the form of the others.
    return Response(
        error_body("internal error", kind=kind_of(500), code="internal"), 500, None, "application/json"
    )


async def _fault(_request: Request, fault: Exception) -> Response:
    assert isinstance(fault, ApiError)
    return Response(fault_body(fault), fault.status, media_type="application/json")
