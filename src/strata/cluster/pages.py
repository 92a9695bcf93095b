"""What every part on the cluster answers besides its work: /healthz, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from strata.http import Frame, Limits, Realm
from strata.prometheus import CONTENT_TYPE, Counter


def make_pages(render: Callable[[], str], *, requests: Counter, unready: Callable[[], str]) -> Frame:
    """Return the pages. unready: why the part should not be counted on yet, empty where it may be."""

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(request: Request) -> Response:
        why = unready()
        return PlainTextResponse(why or "ok", status_code=503 if why else 200)

    async def metrics(request: Request) -> Response:
        return Response(render(), headers={"content-type": CONTENT_TYPE})

    routes = [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
    realms = [Realm("/", drains=False)]
    return Frame(Starlette(routes=routes), realms=realms, limits=Limits(connections=64), requests=requests)
