"""The extender over HTTP: kube-scheduler's verbs under /v1/, Volcano's under /volcano/, one router behind both.

Send names (`nodeCacheCapable: true`): whole nodes cost seconds on thousands of them, here and at the scheduler.
What a scheduler has assumed but not yet bound is not seen here; whole devices are also counted by the scheduler as
the vendor's resource, fractions of one device may be refused again by what places them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from strata.cluster.extender.handlers import Handlers
from strata.cluster.health_pages import REALMS, page_routes
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.errors import UsageError
from strata.net.http import Frame, Limits, Realm, error_body, kind_of
from strata.net.metrics import SECONDS, Counter, Histogram, Registry, render
from strata.net.not_served import REFUSALS

LIMITS: Final = Limits(body_bytes=128 * 2**20, connections=64)
"""Five thousand whole nodes of 25 KB; their names are about 100 KB."""

Endpoint = Callable[[Request], Awaitable[Response]]


def make_frame(
    index: Callable[[], Index],
    profiles: Callable[[], Sequence[RuntimeProfile]],
    *,
    unready: Callable[[], str] = lambda: "",
    limits: Limits = LIMITS,
    clock: Callable[[], float] = time.perf_counter,
) -> Frame:
    """Return the extender as an ASGI application; `index` and `profiles` are called for every question.

    unready: why nothing should be asked yet, empty where it may be.
    """
    registry = Registry()
    requests = Counter("strata_http_requests_total", "HTTP requests by status.", ["code"], registry=registry)
    seconds = Histogram(
        "strata_extender_seconds",
        "To decode, decide and encode an answer.",
        ["verb"],
        buckets=SECONDS,
        registry=registry,
    )
    handlers = Handlers(index, profiles)

    def answering(verb: str, answer: Callable[[bytes], bytes]) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            body = await request.body()
            started = clock()
            try:
                reply = answer(body)
            except UsageError as error:
                refusal = error_body(str(error), kind=kind_of(400), code="bad-request")
                return Response(refusal, 400, media_type="application/json")
            seconds.labels(verb).observe(clock() - started)
            return Response(reply, media_type="application/json")

        return endpoint

    async def nothing(request: Request) -> Response:
        async for _ in request.stream():
            pass
        return JSONResponse({})

    app = Starlette(
        routes=[
            Route("/v1/filter", answering("filter", handlers.filter), methods=["POST"]),
            Route("/v1/prioritize", answering("prioritize", handlers.prioritize), methods=["POST"]),
            Route("/volcano/predicate", answering("predicate", handlers.predicate), methods=["POST"]),
            Route("/volcano/prioritize", answering("node-order", handlers.node_order), methods=["POST"]),
            Route("/volcano/onSessionOpen", nothing, methods=["POST"]),
            Route("/volcano/onSessionClose", nothing, methods=["POST"]),
            *page_routes(lambda: render(registry), unready=lambda: "stopping" if frame.is_draining else unready()),
        ],
        exception_handlers=REFUSALS,
    )
    frame = Frame(app, realms=[Realm("/"), *REALMS], limits=limits, requests=requests)
    return frame
