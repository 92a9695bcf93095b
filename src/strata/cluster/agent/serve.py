"""What the agent answers over HTTP: /metrics for Prometheus, /healthz for the kubelet."""

from __future__ import annotations

from collections.abc import Callable

from strata.cluster.agent.meters import Meters
from strata.http import Frame, Limits, Realm
from strata.prometheus import CONTENT_TYPE


def frame(meters: Meters, is_well: Callable[[], bool]) -> Frame:
    """Return the endpoints; both answer until the end."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def metrics(_request: Request) -> PlainTextResponse:
        return PlainTextResponse(meters.render(), headers={"content-type": CONTENT_TYPE})

    async def healthz(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok\n") if is_well() else PlainTextResponse("it hangs\n", status_code=503)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/healthz", healthz)])
    limits = Limits(body_bytes=2**10, connections=64)
    return Frame(app, realms=[Realm("/", drains=False)], limits=limits, requests=meters.http)
