"""/metrics and /healthz beside a scheduler that runs."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from strata.net.http import Frame, Limits, Realm
from strata.net.metrics import CONTENT_TYPE, Counter, Registry, render


def frame(registry: Registry, *, is_well: Callable[[], bool]) -> Frame:
    """Return the pages: /metrics, and /healthz that is 503 while the kernel does not run the policy."""

    async def figures(_: Request) -> Response:
        return Response(render(registry), headers={"content-type": CONTENT_TYPE})

    async def health(_: Request) -> Response:
        if is_well():
            return PlainTextResponse("ok")
        return PlainTextResponse("the kernel does not run the policy", status_code=503)

    app = Starlette(routes=[Route("/metrics", figures), Route("/healthz", health)])
    requests = Counter("strata_http_requests_total", "Requests by status.", ("code",), registry=registry)
    limits = Limits(body_bytes=2**10, connections=64)
    return Frame(app, realms=[Realm("/", drains=False)], limits=limits, requests=requests)
