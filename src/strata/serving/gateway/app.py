"""The gateway over HTTP: OpenAI's endpoints for clients, `wire.py`'s for nodes, and what operators look at."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from strata.net.http import (
    App,
    Frame,
    Limits,
    Message,
    Realm,
    Receive,
    Scope,
    Send,
    bearer_of,
    error_body,
    kind_of,
)
from strata.net.metrics import CONTENT_TYPE, render
from strata.net.not_served import not_served
from strata.serving.gateway.access import NOBODY, NodeAccess
from strata.serving.gateway.gateway import Gateway
from strata.serving.gateway.headers import goal_s, plain
from strata.serving.gateway.keys import ClientKeys
from strata.serving.gateway.nodes import routes as node_routes
from strata.serving.gateway.openai import (
    ApiError,
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    GenerationRequest,
    RerankRequest,
    ResponsesRequest,
    parse,
)
from strata.serving.gateway.openapi import document
from strata.serving.gateway.response import GenerationResponse

KINDS: Final[dict[type[GenerationRequest], str]] = {
    ChatRequest: "chatcmpl",
    CompletionRequest: "cmpl",
    EmbeddingsRequest: "embd",
    ResponsesRequest: "resp",
    RerankRequest: "rerank",
}
"""What is scheduled, and how the ids of such requests begin."""


REQUEST_ID: Final = "strata.request_id"
"""Where a request's scope has its id: the answer's header, and the end of its id in OpenAI's form."""
RECENT: Final = 50
"""Requests of a model that `/decisions` lists."""


class GatewayFrame(Frame):
    """Tells clients whose requests did not end in time, gives every answer an id, and browsers leave to read it.

    origins: of the pages that may ask; `*` for all.
    """

    gateway: Gateway
    origins: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await super().__call__(scope, receive, send)
            return
        headers = dict(scope["headers"])
        allowed = self._allowed(headers.get(b"origin", b""))
        if allowed and scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            answer = [*allowed, (b"access-control-max-age", b"600")]
            answer.append((b"access-control-allow-methods", b"GET, POST"))
            # All that it asks for: the bearer, and what clients' libraries say of themselves.
            answer.append((b"access-control-allow-headers", headers.get(b"access-control-request-headers", b"*")))
            await send({"type": "http.response.start", "status": 204, "headers": answer})
            await send({"type": "http.response.body", "body": b""})
            return
        scope[REQUEST_ID] = request_id = self.gateway.new_id()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode()), *allowed]
            await send(message)

        await super().__call__(scope, receive, sending)

    def _allowed(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        """Return the headers that let a page of this origin read an answer."""
        if not origin or not self.origins.intersection(("*", origin.decode("latin-1"))):
            return []
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", b"x-request-id, retry-after"),
            (b"vary", b"origin"),
        ]

    def give_up(self) -> None:
        """End all requests with an honest error."""
        for driver in self.gateway.drivers.values():
            driver.give_up()


def make_frame(
    gateway: Gateway,
    *,
    limits: Limits,
    token: str = "",
    keys: ClientKeys | None = None,
    nodes: NodeAccess = NOBODY,
    origins: Sequence[str] = (),
    lifespan: Callable[[AsyncExitStack], Awaitable[None]] | None = None,
) -> GatewayFrame:
    """Return the gateway as an ASGI application; `lifespan` starts what runs beside it.

    token: what opens all but nodes' paths; keys open OpenAI's, within limits. origins: of pages that may ask.
    """

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

    endpoints = _Endpoints(gateway, keys)
    app = Starlette(
        routes=[
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{name:path}", endpoints.model),
            Route("/decisions", endpoints.decisions),
            Route("/decisions/{id}", endpoints.decision),
            Route("/status", endpoints.status),
            Route("/metrics", endpoints.metrics),
            Route("/healthz", health),
            Route("/openapi.json", endpoints.openapi),
            *node_routes(gateway, nodes),
        ],
        lifespan=live,
        exception_handlers=dict.fromkeys((HTTPException, ApiError, Exception), _error),
    )
    frame = GatewayFrame(
        _Shortcut(app, endpoints),
        realms=[
            Realm("/", token, drains=False),
            Realm("/v1/", token, opens=lambda bearer: bool(keys and keys.find(bearer))),
            Realm("/nodes/", nodes.token, drains=False),
            Realm("/healthz", drains=False),
        ],
        limits=limits,
        requests=gateway.meters.http,
    )
    frame.gateway, frame.origins = gateway, frozenset(origins)
    return frame


class _Shortcut:
    """Takes requests that are scheduled past Starlette, whose layers are a tenth of what an answer costs."""

    def __init__(self, app: Starlette, endpoints: _Endpoints) -> None:
        self.app, self.endpoints = app, endpoints
        self._kinds = {kind.path: (kind, prefix) for kind, prefix in KINDS.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = self._kinds.get(scope["path"]) if scope["type"] == "http" else None
        if kind is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            if scope["method"] != "POST":
                raise HTTPException(405, headers={"allow": "POST"})
            response: App = await self.endpoints.generate(*kind, request)
        except (ApiError, HTTPException) as error:
            response = await _error(request, error)
        await response(scope, receive, send)


class _Endpoints:
    """What clients and operators ask."""

    def __init__(self, gateway: Gateway, keys: ClientKeys | None) -> None:
        self.gateway, self.keys = gateway, keys

    async def generate(self, kind: type[GenerationRequest], prefix: str, request: Request) -> GenerationResponse:
        """Schedule a request; `prefix` begins its id. Raises ApiError."""
        key = self.keys and self.keys.find(bearer_of(request.scope["headers"]))
        if key and self.keys:
            self.keys.admit(key)
        headers = dict(request.scope["headers"])
        plain(headers)
        generation = parse(kind, await _body(request.receive))
        ttft_goal_s, tpot_goal_s = goal_s(headers, "x-strata-ttft-ms"), goal_s(headers, "x-strata-tpot-ms")
        driver = self.gateway.drivers.get(generation.model)
        if driver is None:
            raise self._no_model(generation.model)
        request_id = f"{prefix}-{request.scope[REQUEST_ID]}"
        stream = await driver.submit(
            generation,
            request_id,
            created=int(self.gateway.wall_clock()),
            ttft_goal_s=ttft_goal_s,
            tpot_goal_s=tpot_goal_s,
        )
        counted = self.keys.counted(key, lambda: stream.usage.num_tokens) if key and self.keys else nullcontext()
        return GenerationResponse(driver, stream, counted)

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

    async def openapi(self, _request: Request) -> Response:
        return JSONResponse(document(KINDS))

    async def decision(self, request: Request) -> Response:
        request_id = request.path_params["id"]
        for driver in self.gateway.drivers.values():
            decision = driver.core.explain(request_id)
            if decision is not None:
                return JSONResponse(_finite(decision) | {"model": driver.name})
        raise ApiError(404, f"{request_id!r} is unknown, or no longer remembered", "decision_not_found")

    async def decisions(self, _request: Request) -> Response:
        drivers = self.gateway.drivers.values()
        newest = [
            decision | {"model": driver.name} for driver in drivers for decision in driver.core.recent(RECENT)
        ]
        return JSONResponse(_finite(newest))

    async def status(self, _request: Request) -> Response:
        drivers = self.gateway.drivers
        return JSONResponse({name: _finite(driver.core.status()) for name, driver in drivers.items()})

    async def metrics(self, _request: Request) -> Response:
        return PlainTextResponse(render(self.gateway.meters.registry), headers={"content-type": CONTENT_TYPE})


async def _body(receive: Receive) -> bytes:
    """Return a body whole, as Starlette would with more ado; the frame has limited it."""
    body, has_more = b"", True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return body


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "strata"}


def _finite(data: Any) -> Any:
    """Return data that JSON can hold: null for what has no end."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, list | tuple) else data


async def _error(request: Request, error: Exception) -> Response:
    """Give every error the form of OpenAI's API; the frame logs those that are ours."""
    if isinstance(error, ApiError):
        return Response(error.body, error.status, error.headers, "application/json")
    if isinstance(error, HTTPException):
        return await not_served(request, error)
    return Response(
        error_body("internal error", kind=kind_of(500), code="internal"), 500, None, "application/json"
    )
