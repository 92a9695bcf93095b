"""Every picture as SVG, and the JSON that it is drawn from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from strata.api.backends import by_events
from strata.api.fleets import fleet_data
from strata.api.loaded import of_plan
from strata.errors import StrataError, UsageError
from strata.files import Document
from strata.host.rollout.pictures import svg as histograms
from strata.pictures.heat import acu_map
from strata.pictures.page import pictures
from strata.pictures.wan import live_map
from strata.pictures.waterfall import waterfall
from strata.simulate.svg import svg
from strata.training.plan.planfile import best_plan
from strata.web.kept import of_this_version
from strata.web.sources import Live, Served, Sources

Handler = Callable[[Request], Awaitable[Response]]


def downloads(sources: Sources) -> list[tuple[str, Handler]]:
    """Return the addresses of files and what answers there; raises what the sources raise."""
    files = _Files(sources)
    return [
        ("/now/data.json", files.now_data),
        ("/now/links.svg", files.now_map),
        ("/fleet/data.json", files.fleet_data),
        ("/fleet/cluster.json", files.cluster_data),
        ("/fleet/cluster.svg", files.cluster_picture),
        ("/fleet/{name}.svg", files.fleet_picture),
        ("/plans/{id:int}/data.json", files.plan_data),
        ("/plans/{id:int}/timeline.svg", files.timeline),
        ("/plans/{id:int}/{name}.svg", files.plan_picture),
        ("/serving/data.json", files.served_data),
        ("/serving/waterfall.svg", files.served_waterfall),
        ("/serving/requests/{id}/data.json", files.request_data),
        ("/serving/requests/{id}/waterfall.svg", files.request_waterfall),
        ("/host/rollouts/data.json", files.rollout_data),
        ("/host/rollouts/histograms.svg", files.rollout_picture),
    ]


class _Files:
    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    async def now_data(self, request: Request) -> Response:
        live = await self._live()
        return JSONResponse({"jobs": live.jobs, "domains": live.domains, "links": live.links})

    async def now_map(self, request: Request) -> Response:
        live = await self._live()
        return _svg(live_map(live.domains, live.links, standalone=True))

    async def _live(self) -> Live:
        live = await run_in_threadpool(self.sources.live)
        if live.fault:
            raise StrataError(live.fault)
        return live

    async def fleet_data(self, request: Request) -> Response:
        return JSONResponse(await self._fleet(request))

    async def fleet_picture(self, request: Request) -> Response:
        return _picture(await self._fleet(request), request.path_params["name"])

    async def _fleet(self, request: Request) -> dict[str, Any]:
        name = self.sources.known_fleet(request.query_params.get("fleet", self.sources.fleet))
        if not name:
            raise UsageError("no fleet was named", hint="?fleet=aws10")
        return await run_in_threadpool(fleet_data, name)

    async def cluster_data(self, request: Request) -> Response:
        return JSONResponse(await self._cluster())

    async def cluster_picture(self, request: Request) -> Response:
        return _svg(acu_map(await self._cluster(), standalone=True))

    async def _cluster(self) -> list[dict[str, Any]]:
        cluster = await run_in_threadpool(self.sources.cluster_seen)
        if cluster is None:
            raise UsageError("there is no cluster to ask", hint="strata ui --kubeconfig FILE")
        return cluster.capacity

    async def plan_data(self, request: Request) -> Response:
        entry = await run_in_threadpool(self.sources.entry, request.path_params["id"])
        return JSONResponse(entry.decision)

    async def plan_picture(self, request: Request) -> Response:
        entry = await run_in_threadpool(self.sources.entry, request.path_params["id"])
        with of_this_version(entry):
            return _picture(entry.decision, request.path_params["name"])

    async def timeline(self, request: Request) -> Response:
        entry = await run_in_threadpool(self.sources.entry, request.path_params["id"])

        def draw() -> str:
            job = of_plan(best_plan(Document(f"decision {entry.id}", entry.decision, {})))
            timeline = by_events([job]).timeline
            assert timeline is not None
            return svg(timeline, title=f"{job.name}: one step")

        return _svg(await run_in_threadpool(draw))

    async def served_data(self, request: Request) -> Response:
        served = await self._served()
        return JSONResponse({"models": served.models, "requests": served.requests})

    async def served_waterfall(self, request: Request) -> Response:
        return _svg(waterfall((await self._served()).requests, standalone=True))

    async def _served(self) -> Served:
        served = await run_in_threadpool(self.sources.served)
        if served is None or served.fault:
            fault = served.fault if served else "there is no gateway to ask"
            raise UsageError(fault, hint="--gateway URL, of strata ui or strata up")
        return served

    async def request_data(self, request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(self.sources.request, request.path_params["id"]))

    async def request_waterfall(self, request: Request) -> Response:
        entry = await run_in_threadpool(self.sources.request, request.path_params["id"])
        return _svg(waterfall([entry], standalone=True))

    async def rollout_data(self, request: Request) -> Response:
        report = await run_in_threadpool(self.sources.rollout, request.query_params.get("name", ""))
        return JSONResponse(report.to_dict(with_ratios=True))

    async def rollout_picture(self, request: Request) -> Response:
        report = await run_in_threadpool(self.sources.rollout, request.query_params.get("name", ""))
        return _svg(histograms(report))


def _picture(data: dict[str, Any], name: str) -> Response:
    drawn = pictures(data)
    if name not in drawn:
        raise UsageError(f"there is no picture {name!r} here", hint=", ".join(drawn))
    return _svg(drawn[name](standalone=True))


def _svg(text: str) -> Response:
    return Response(text, media_type="image/svg+xml")
