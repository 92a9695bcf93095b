"""What every part on the cluster answers besides its work: /healthz, /readyz and /metrics, until it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from strata.net.http import Frame, Limits, Realm
from strata.net.metrics import CONTENT_TYPE, Counter

REALMS: Final = tuple(Realm(path, drains=False) for path in ("/healthz", "/readyz", "/metrics"))

Why = Callable[[], str]
"""Returns why not, empty where all is well."""


def page_routes(
    render: Callable[[], str], *, unready: Why = lambda: "", unwell: Why = lambda: ""
) -> list[BaseRoute]:
    """Return the routes. render: metrics. unready: why not to count on it yet; unwell: why to restart it."""

    def page(why: Why) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            problem = why()
            return PlainTextResponse(problem or "ok", status_code=503 if problem else 200)

        return answer

    async def metrics(request: Request) -> Response:
        return Response(render(), headers={"content-type": CONTENT_TYPE})

    return [Route("/healthz", page(unwell)), Route("/readyz", page(unready)), Route("/metrics", metrics)]


def make_pages(
    render: Callable[[], str],
    *,
    requests: Counter,
    unready: Why = lambda: "",
    unwell: Why = lambda: "",
) -> Frame:
    """Return a part that has nothing else to answer."""
    app = Starlette(routes=page_routes(render, unready=unready, unwell=unwell))
    limits = Limits(body_bytes=2**10, connections=64)
    return Frame(app, realms=[Realm("/", drains=False)], limits=limits, requests=requests)
