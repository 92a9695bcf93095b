"""The routes of the dashboard."""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote

from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from strata.api.fleets import fleet_data
from strata.api.inputs import JobLike
from strata.api.plans import plan
from strata.api.weighing import by_reward
from strata.api.whatif import whatif
from strata.control.jobfile import job_of, training_of
from strata.errors import StrataError, UsageError
from strata.files import bundled_names, parse_document
from strata.history import Entry
from strata.host.rollout.pictures import svg as histograms
from strata.host.rollout.report import RolloutReport
from strata.web.changes import Changes
from strata.web.downloads import Handler, downloads
from strata.web.following import followed
from strata.web.kept import of_this_version
from strata.web.pages import STATIC, render, style
from strata.web.search import OF_HOSTS, Search, rows_of
from strata.web.sources import Sources, known
from strata.workload.schema import BUNDLED_JOBS

T = TypeVar("T")
COOKIE: Final = "strata-token"
_SHOWN: Final = 200
_RECENT_S: Final = 3600.0
_DECIDED: Final = 30
_DECIDED_BEFORE: Final = 5
"""Decisions of *Now*: those of the last hour, else the last ones there were."""
_WHATIF_S: Final = 20.0
_FIT_S: Final = 10.0


def routes(sources: Sources, *, token: str = "") -> list[BaseRoute]:
    """Return the routes of the pages. token: what a browser must have shown once; empty where none is needed."""
    pages = _Pages(sources, token)
    paths: list[tuple[str, Handler]] = [
        ("/", pages.now),
        ("/now", pages.now_body),
        ("/events", pages.events),
        ("/fleet", pages.fleet),
        ("/plans", pages.plans),
        ("/plans/{id:int}", pages.plan),
        ("/fit", pages.fit),
        ("/plans/{id:int}/weighed", pages.weighed),
        ("/serving", pages.serving),
        ("/serving/now", pages.serving_body),
        ("/serving/requests/{id}", pages.request),
        ("/slices", pages.slices),
        ("/host", pages.host),
        ("/host/rollouts", pages.rollout),
        ("/jobs/{name}", pages.job),
        ("/jobs/{name}/now", pages.job_body),
        ("/decisions", pages.decisions),
        ("/decisions/of", pages.followed),
    ]
    paths += downloads(sources)
    all_routes: list[BaseRoute] = [Route(path, pages.guarded(handler), methods=["GET"]) for path, handler in paths]
    all_routes.append(Route("/fit", pages.guarded(pages.fit_own), methods=["POST"]))
    all_routes.append(Route("/plans/{id:int}/whatif", pages.guarded(pages.whatif), methods=["POST"]))
    all_routes.append(Route("/jobs/{name}/whatif", pages.guarded(pages.job_whatif), methods=["POST"]))
    all_routes.append(Route("/jobs", pages.guarded(pages.submit), methods=["POST"]))
    all_routes.append(Route("/jobs/{name}/cancel", pages.guarded(pages.cancel), methods=["POST"]))
    all_routes.append(Route("/login", _in_words(pages.login), methods=["GET", "POST"]))
    all_routes.append(Route("/static/strata.css", _style))
    all_routes.append(Mount("/static", StaticFiles(directory=STATIC)))
    return all_routes


class _Pages:
    def __init__(self, sources: Sources, token: str) -> None:
        self.sources, self.token = sources, token
        self.changes = Changes(sources.scheduler)

    def guarded(self, handler: Handler) -> Handler:
        """Let in who has the token."""

        async def answer(request: Request) -> Response:
            if self.token and not self._knows(request.cookies.get(COOKIE, "")):
                return RedirectResponse("/login", status_code=303)
            return await handler(request)

        return _in_words(answer)

    def _knows(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), self.token.encode())

    async def login(self, request: Request) -> Response:
        if request.method == "POST" and self._knows((await _form(request)).get("token", "")):
            response = RedirectResponse("/", status_code=303)
            is_tls = request.url.scheme == "https"
            response.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", secure=is_tls)
            return response
        return page("login.html", status=401 if request.method == "POST" else 200, place="/login")

    async def now(self, request: Request) -> Response:
        return page("now.html", place="/", **await self._now())

    async def now_body(self, request: Request) -> Response:
        return page("now_body.html", **await self._now())

    async def _now(self) -> dict[str, Any]:
        live = await run_in_threadpool(self.sources.live)
        entries, fault = await _kept(lambda: self.sources.entries(limit=_DECIDED))
        rows = Search().matches(rows_of(entries or [], live.decisions, []))
        recent = [row for row in rows if row.at_s >= time.time() - _RECENT_S]
        return {
            "live": live,
            "rows": recent[:_DECIDED] or rows[:_DECIDED_BEFORE],
            "is_recent": bool(recent),
            "scheduler": self.sources.scheduler.url,
            "fault": fault,
        }

    async def events(self, request: Request) -> Response:
        """Say that something has changed; what, the page asks for itself."""
        return StreamingResponse(self.changes.stream(), media_type="text/event-stream")

    async def job(self, request: Request) -> Response:
        return page("job.html", place="/", job=await self._job(request), fleet=self.sources.fleet)

    async def job_body(self, request: Request) -> Response:
        return page("job_body.html", job=await self._job(request))

    async def _job(self, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(self.sources.scheduler.job, request.path_params["name"])

    async def submit(self, request: Request) -> Response:
        """Hand in a job as it was written; a file that it names would be the server's, and is refused there."""
        document = parse_document("job", (await _form(request)).get("job", ""))
        piece = {"document": document.data, "texts": {}}
        name = await run_in_threadpool(self.sources.scheduler.submit, piece)
        return RedirectResponse(f"/jobs/{quote(name, safe='')}", status_code=303)

    async def cancel(self, request: Request) -> Response:
        name = request.path_params["name"]
        await run_in_threadpool(self.sources.scheduler.cancel, name)
        return RedirectResponse(f"/jobs/{quote(name, safe='')}", status_code=303)

    async def fleet(self, request: Request) -> Response:
        name = self.sources.known_fleet(request.query_params.get("fleet", self.sources.fleet))
        data = await run_in_threadpool(fleet_data, name) if name else None
        cluster = await run_in_threadpool(self.sources.cluster_seen)
        return page(
            "fleet.html",
            place="/fleet",
            name=name,
            data=data,
            cluster=cluster,
            fleets=self.sources.fleets(),
            jobs=bundled_names(BUNDLED_JOBS),
        )

    async def fit(self, request: Request) -> Response:
        fleet = self.sources.known_fleet(request.query_params.get("fleet", ""))
        job = known(request.query_params.get("job", ""), bundled_names(BUNDLED_JOBS))
        answer = await run_in_threadpool(lambda: plan(fleet, job, baselines=False, time_limit_s=_FIT_S))
        return page("fit.html", place="/fleet", data=answer.to_dict())

    async def fit_own(self, request: Request) -> Response:
        """Plan a job as it was written; a file that it names would be the server's, and is refused there."""
        form = await _form(request)
        fleet = self.sources.known_fleet(form.get("fleet", ""))
        document = parse_document("job", form.get("job", ""))
        training = training_of({"document": document.data})
        answer = await run_in_threadpool(lambda: plan(fleet, training, baselines=False, time_limit_s=_FIT_S))
        return page("fit.html", place="/fleet", data=answer.to_dict())

    async def plans(self, request: Request) -> Response:
        entries = await run_in_threadpool(lambda: self.sources.of_kind("training", limit=_SHOWN))
        return page("plans.html", place="/plans", title="Plans", entries=entries, served=None, fault="")

    async def serving(self, request: Request) -> Response:
        entries, fault = await self._of_kind("serving")
        served = await run_in_threadpool(self.sources.served)
        return page("plans.html", place="/serving", title="Serving", entries=entries, served=served, fault=fault)

    async def serving_body(self, request: Request) -> Response:
        return page("served.html", served=await run_in_threadpool(self.sources.served))

    async def request(self, request: Request) -> Response:
        return page("request.html", place="/serving", request=await self._request(request))

    async def _request(self, request: Request) -> dict[str, Any]:
        return await run_in_threadpool(self.sources.request, request.path_params["id"])

    async def host(self, request: Request) -> Response:
        rollouts, rollout_fault = await _kept(self.sources.rollouts)
        (entries, fault), (enforced, _) = [await self._of_kind(kind) for kind in OF_HOSTS]
        faults = [each for each in (fault, rollout_fault) if each]
        with of_this_version(entries[0]) if entries else nullcontext():
            return page(
                "host.html", place="/host", entries=entries[:20], enforced=enforced[:20], rollouts=rollouts or {},
                faults=faults,
            )  # fmt: skip

    async def rollout(self, request: Request) -> Response:
        report = await self._rollout(request)
        return page(
            "rollout.html",
            place="/host",
            report=report.to_dict(),
            picture=Markup(histograms(report, standalone=False)),
        )

    async def _rollout(self, request: Request) -> RolloutReport:
        return await run_in_threadpool(self.sources.rollout, request.query_params.get("name", ""))

    async def _of_kind(self, kind: str) -> tuple[list[Entry], str]:
        entries, fault = await _kept(lambda: self.sources.of_kind(kind, limit=_SHOWN))
        return entries or [], fault

    async def _entry(self, request: Request) -> Entry:
        return await run_in_threadpool(self.sources.entry, request.path_params["id"])

    async def plan(self, request: Request) -> Response:
        entry = await self._entry(request)
        place = {"training": "/plans", "serving": "/serving"}.get(entry.kind, "/host")
        of = "job" if entry.kind in OF_HOSTS else "name"
        with of_this_version(entry):
            return page("plan.html", place=place, entry=entry, followed_as=entry.decision.get(of, ""))

    async def weighed(self, request: Request) -> Response:
        entry = await self._entry(request)
        try:
            weights = [float(request.query_params.get(key, "0")) for key in ("time", "utilization", "money")]
        except ValueError:
            raise UsageError("weights are numbers", hint="?time=0.4&utilization=0.3&money=0.3") from None
        with of_this_version(entry):
            return page("weighed.html", plans=by_reward(entry.decision, weights)[:8], data=entry.decision)

    async def whatif(self, request: Request) -> Response:
        entry = await self._entry(request)
        with of_this_version(entry):
            inputs = entry.decision.get("inputs", {})
        if not {"fleet", "job"} <= inputs.keys():
            raise UsageError("this answer does not say which fleet and job it was made from")
        link = {"address": f"/plans/{entry.id}", "name": entry.decision["name"]}
        return await self._whatif(request, inputs["fleet"], inputs["job"], link)

    async def job_whatif(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not self.sources.fleet:
            raise UsageError(f"which fleet {name} would be planned on was not said", hint="strata ui FLEET")
        piece = await run_in_threadpool(self.sources.scheduler.piece, name)
        training = job_of(piece, 0.0).training
        return await self._whatif(
            request, self.sources.fleet, training, {"address": f"/jobs/{quote(name, safe='')}", "name": name}
        )

    async def _whatif(self, request: Request, fleet: str, job: JobLike, link: dict[str, str]) -> Response:
        settings = (await _form(request)).get("settings", "").split()
        if not settings:
            raise UsageError("nothing to change", hint="job.minimize=cost")
        data = await run_in_threadpool(lambda: whatif(fleet, job, *settings, time_limit_s=_WHATIF_S))
        return page("whatif.html", place="/plans", link=link, data=data, settings=settings)

    async def slices(self, request: Request) -> Response:
        uses, faults = await run_in_threadpool(self.sources.slices, os.environ)
        cluster = await run_in_threadpool(self.sources.cluster_seen)
        return page("slices.html", place="/slices", uses=uses, faults=faults, cluster=cluster)

    async def decisions(self, request: Request) -> Response:
        search = Search.of_query(request.query_params)
        live, fault = await _kept(self.sources.scheduler.decisions)
        cluster = await run_in_threadpool(self.sources.cluster_seen)
        entries, history_fault = await _kept(self.sources.entries)
        rows = rows_of(entries or [], live or [], cluster.claims if cluster else [])
        return page(
            "decisions.html",
            place="/decisions",
            search=search,
            rows=search.matches(rows)[:_SHOWN],
            tokens=sorted({reason["token"] for row in rows for reason in row.reasons}),
            faults=[
                *([f"The scheduler's are missing: {fault}"] if fault else []),
                *([f"Those of this machine are missing: {history_fault}"] if history_fault else []),
                *(cluster.faults if cluster else []),
            ],
        )

    async def followed(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        levels = await run_in_threadpool(followed, self.sources, name)
        return page("followed.html", place="/decisions", fleet=self.sources.fleet, **levels)


def _in_words(handler: Handler) -> Handler:
    """A fault becomes a page that says what and what to try."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except StrataError as error:
            is_missing = any(
                words in str(error) for words in ("no decision", "there is no", "no roll-out", "is unknown")
            )
            status = 404 if is_missing else 422
            return page("fault.html", status=status, lines=error.lines(), place=request.url.path)

    return answer


async def missing(request: Request, _: Exception) -> Response:
    """Answer for an address that no route has."""
    lines = [f"there is no page {request.url.path}", "try: one of those above"]
    return page("fault.html", status=404, lines=lines, place=request.url.path)


async def _style(_: Request) -> Response:
    return Response(style(), media_type="text/css")


def page(template: str, *, status: int = 200, **values: Any) -> Response:
    """Return a page as an answer."""
    return HTMLResponse(render(template, **values), status)


async def _kept(read: Callable[[], T]) -> tuple[T | None, str]:
    """Return what a source has and "", or None and why: other sources of the page are shown all the same."""
    try:
        return await run_in_threadpool(read), ""
    except StrataError as error:
        return None, "; ".join(error.lines())


async def _form(request: Request) -> dict[str, str]:
    text = (await request.body()).decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, max_num_fields=8))
    except ValueError as error:
        raise UsageError(f"this is no form of ours: {error}") from None
