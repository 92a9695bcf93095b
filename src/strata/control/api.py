"""HTTP and JSON under /v1, on the frame that every server of ours shares; `openapi.json` says what there is."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from strata import __version__
from strata.control.daemon import Daemon
from strata.control.state import JobPhase
from strata.control.views import decisions_view, domains_view, job_view, jobs_view, links_view, prospects_view
from strata.errors import StrataError, UsageError
from strata.net.browser import LOCAL_NAMES, SameOrigin
from strata.net.http import Frame, Limits, Realm, error_body
from strata.net.metrics import CONTENT_TYPE, Counter, Registry, read_counter, read_gauge, render
from strata.net.not_served import REFUSALS

_BODY_BYTES: Final = 16 * 2**20
_BEAT_S: Final = 15.0
_MOST_DECISIONS: Final = 1000
_MOST_LINES: Final = 1000
_OVER: Final = object()
_LOOK_S: Final = 0.2
"""Between two looks for new lines of logs that are followed."""

_IN_PATH, _IN_QUERY = re.compile(r"{(\w+)}"), re.compile(r"\?(\w+)=")

PATHS: Final = {
    "/v1/jobs": {
        "get": "All jobs.",
        "post": "Submit a job: {document, texts}. 201 once it is on disk; ?strict=1 refuses one nobody can hold.",
    },
    "/v1/jobs/{name}": {"get": "One job, its attempts and decisions.", "delete": "Cancel it."},
    "/v1/jobs/{name}/piece": {"get": "It as it was submitted: {document, texts}."},
    "/v1/jobs/{name}/prospects": {"get": "Why it could never run on this fleet, and what would help."},
    "/v1/jobs/{name}/logs": {"get": "What its ranks wrote, of the newest attempt; ?follow=1 until it is over."},
    "/v1/domains": {"get": "Domains as their drivers saw them last."},
    "/v1/domains/{name}/drain": {"post": "Start nothing new here and move away what runs.", "delete": "Undo it."},
    "/v1/decisions": {"get": "The newest decisions about any job, newest first: ?limit=200, 1000 at most."},
    "/v1/links": {"get": "What is believed of every link."},
    "/v1/events": {"get": "Server-sent events: all jobs, whenever one has changed."},
}


def build(
    daemon: Daemon, *, token: str = "", hosts: Collection[str] = LOCAL_NAMES, pages: Sequence[BaseRoute] = ()
) -> Frame:
    """Return the API of a daemon.

    token: what clients must show; empty where they need none, and then `hosts` are the names it answers to. pages:
    routes beside the API's, which see to the token themselves.
    """
    registry = Registry()
    requests = Counter("strata_http_requests", "Answers by status.", ["status"], registry=registry)
    _metrics(daemon, registry)
    api = _Api(daemon, registry)
    routes = [
        Route("/v1/jobs", api.view(jobs_view), methods=["GET"]),
        Route("/v1/jobs", api.submit, methods=["POST"]),
        Route("/v1/jobs/{name}", api.view(job_view), methods=["GET"]),
        Route("/v1/jobs/{name}", api.cancel, methods=["DELETE"]),
        Route("/v1/jobs/{name}/piece", api.view(lambda daemon, name: daemon.store.piece(name)), methods=["GET"]),
        Route("/v1/jobs/{name}/prospects", api.view(prospects_view), methods=["GET"]),
        Route("/v1/jobs/{name}/logs", api.logs, methods=["GET"]),
        Route("/v1/domains", api.view(domains_view), methods=["GET"]),
        Route("/v1/domains/{name:path}/drain", api.drain, methods=["POST", "DELETE"]),
        Route("/v1/decisions", api.decisions, methods=["GET"]),
        Route("/v1/links", api.view(links_view), methods=["GET"]),
        Route("/v1/events", api.events, methods=["GET"]),
        Route("/v1/openapi.json", api.openapi, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
        Route("/healthz", api.health, methods=["GET"]),
        *pages,
    ]
    app = Starlette(routes=routes, exception_handlers={StrataError: _refused, **REFUSALS})
    guarded = SameOrigin(app, hosts=() if token else hosts)
    realms = [Realm("/", "" if pages else token), Realm("/v1", token), Realm("/metrics", token)]
    realms += [Realm("/healthz"), Realm("/v1/events", token, drains=False), Realm("/events", drains=False)]
    frame = Frame(guarded, realms=realms, limits=Limits(body_bytes=_BODY_BYTES), requests=requests)
    api.is_stopping = lambda: frame.is_draining
    return frame


class _Api:
    def __init__(self, daemon: Daemon, registry: Registry) -> None:
        self.daemon, self.registry = daemon, registry
        self.is_stopping: Callable[[], bool] = lambda: False

    def view(self, look: Callable[..., Any]) -> Callable[[Request], Awaitable[Response]]:
        async def shown(request: Request) -> Response:
            return JSONResponse(await run_in_threadpool(look, self.daemon, *request.path_params.values()))

        return shown

    async def submit(self, request: Request) -> Response:
        try:
            piece = json.loads(await request.body())
        except (ValueError, RecursionError) as error:  # RecursionError: a hundred thousand brackets
            raise UsageError(f"not JSON: {error}") from None
        if not isinstance(piece, dict):
            raise UsageError("a job is {document: {...}, texts: {...}}")
        is_strict = request.query_params.get("strict") == "1"
        spec = await run_in_threadpool(lambda: self.daemon.submit(piece, is_strict=is_strict))
        return JSONResponse({"name": spec.name}, status_code=201)

    async def cancel(self, request: Request) -> Response:
        await run_in_threadpool(self.daemon.cancel, request.path_params["name"])
        return JSONResponse({}, status_code=202)

    async def logs(self, request: Request) -> Response:
        name, is_followed = request.path_params["name"], request.query_params.get("follow") == "1"
        view = await run_in_threadpool(job_view, self.daemon, name)
        if not view["attempts"]:
            return PlainTextResponse("")
        attempt, drivers = view["attempts"][-1], self.daemon.drivers
        logs = {
            domain: drivers[domain].logs(attempt["id"], follow=is_followed)
            for domain in attempt["parts"]
            if domain in drivers
        }

        async def stream() -> AsyncIterator[str]:
            while logs and not (is_followed and self.is_stopping()):
                is_over = attempt["id"] not in self.daemon.snapshot.attempts  # of a part that never began, too
                if lines := await run_in_threadpool(_written, logs):
                    yield lines
                elif is_over:
                    return
                else:
                    await asyncio.sleep(_LOOK_S)

        return StreamingResponse(stream(), media_type="text/plain; charset=utf-8")

    async def drain(self, request: Request) -> Response:
        name, is_drained = request.path_params["name"], request.method == "POST"
        await run_in_threadpool(lambda: self.daemon.drain(name, is_drained=is_drained))
        return JSONResponse({}, status_code=202)

    async def decisions(self, request: Request) -> Response:
        text = request.query_params.get("limit", "200")
        if not text.isascii() or not text.isdigit():
            raise UsageError(f"limit={text} is not a number", hint="?limit=200")
        limit = min(int(text), _MOST_DECISIONS)
        return JSONResponse(await run_in_threadpool(lambda: decisions_view(self.daemon, limit=limit)))

    async def events(self, request: Request) -> Response:
        async def stream() -> AsyncIterator[str]:
            loop, changed = asyncio.get_running_loop(), asyncio.Event()
            # No thread waits for a reader: it would hold up other readers, and the end of the server.
            with self.daemon.watched(lambda: loop.call_soon_threadsafe(changed.set)):
                while not await request.is_disconnected():
                    changed.clear()
                    yield f"event: jobs\ndata: {json.dumps(await run_in_threadpool(jobs_view, self.daemon))}\n\n"
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), _BEAT_S)

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def openapi(self, _: Request) -> Response:
        paths = {
            path: {
                method: {
                    "summary": text,
                    "parameters": [
                        {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}}
                        for where, names in (("path", _IN_PATH.findall(path)), ("query", _IN_QUERY.findall(text)))
                        for name in names
                    ],
                    "responses": {"default": {"description": "JSON, or an error with its reason"}},
                }
                for method, text in methods.items()
            }
            for path, methods in PATHS.items()
        }
        return JSONResponse({
            "openapi": "3.1.0", "info": {"title": "strata", "version": __version__}, "paths": paths,
        })  # fmt: skip

    async def metrics(self, _: Request) -> Response:
        return PlainTextResponse(render(self.registry), media_type=CONTENT_TYPE)

    async def health(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, StrataError)
    status = 404 if "there is no" in str(error) else 409 if "already" in str(error) else 422
    if "the disk is full" in str(error):
        status = 507
    message = "\n".join(error.lines())
    return Response(error_body(message, kind="invalid_request_error"), status, media_type="application/json")


def _written(logs: dict[str, Iterator[str | None]]) -> str:
    """Return what the ranks of each domain wrote since the last look; a log that is over leaves `logs`."""
    written = []
    for domain, log in list(logs.items()):
        for _ in range(_MOST_LINES):
            line = next(log, _OVER)
            if line is _OVER:
                del logs[domain]
            if line is None or line is _OVER:
                break
            written.append(f"{domain}: {line}\n")
    return "".join(written)


def _metrics(daemon: Daemon, registry: Registry) -> None:
    def by_phase() -> dict[tuple[str, ...], float]:
        counts: dict[tuple[str, ...], float] = {}
        for job in daemon.store.jobs():
            phase = (job.state.get("phase", str(JobPhase.QUEUED)),)
            counts[phase] = counts.get(phase, 0.0) + 1
        return counts

    def links(value: Callable[[Any], float]) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {pair: value(estimate) for pair, estimate in daemon.snapshot.links.items()}

    read_gauge(registry, "strata_jobs", "Jobs by phase.", ["phase"], by_phase)
    read_gauge(
        registry, "strata_link_factor", "Level of a link, a share of nominal.", ["source", "dest"],
        links(lambda estimate: float(estimate.factor)),
    )  # fmt: skip
    read_gauge(
        registry, "strata_domain_is_silent", "Whether a domain's driver does not answer.", ["domain"],
        lambda: {(d.name,): float(d.silent_since_s is not None) for d in daemon.snapshot.domains.values()},
    )  # fmt: skip
    read_counter(registry, "strata_turns", "Turns of the loop.", [], lambda: {(): float(daemon.turns)})
