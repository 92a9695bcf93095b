"""The worker over HTTP: what `wire` says, behind the node token, in the frame every server shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Final, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from strata.net.http import Frame, Limits, Realm, Upgraded, error_body, kind_of
from strata.net.metrics import CONTENT_TYPE, Counter, Registry, read_counter, read_gauge, render
from strata.net.not_served import REFUSALS
from strata.serving import wire
from strata.serving.hosted import HostedModel
from strata.serving.worker.holder import AttemptKey, Refused
from strata.serving.worker.steps import MODEL_HEADER, PATH, PROTOCOL
from strata.serving.worker.worker import Worker

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]

DONE: Final = 204
ACCEPTED: Final = 202

M = TypeVar("M", bound=wire.Message)


class WorkerFrame(Frame):
    """Takes part in chains until none runs through it any more: only what begins here is refused while it stops.

    on_drain: called once when the worker is told to stop.
    """

    worker: Worker
    on_drain: Callable[[], None]

    def drain(self) -> None:
        """Take no new attempt, and say so where that matters."""
        if not self.is_draining:
            self.on_drain()
        super().drain()

    async def idle(self) -> None:
        """Return when nothing runs here, and nobody may come for what ran."""
        await super().idle()
        while self.worker.running or self.worker.holder.parked:
            await asyncio.sleep(0.05)


def frame(worker: Worker, *, token: str, lifespan: Lifespan, on_drain: Callable[[], None]) -> WorkerFrame:
    """Return the worker as an ASGI application."""
    registry = Registry()
    requests = Counter("strata_worker_requests_total", "Answers by status.", ["code"], registry=registry)
    _gauges(registry, worker)
    made = WorkerFrame(
        Starlette(routes=_routes(worker, registry), lifespan=lifespan, exception_handlers=REFUSALS),
        realms=(Realm("/", token, drains=False), Realm("/generate", token), Realm("/healthz", drains=False)),
        limits=Limits(body_bytes=body_bytes(worker.model)),
        requests=requests,
    )
    made.worker, made.on_drain = worker, on_drain
    return made


def body_bytes(model: HostedModel) -> int:
    """Return the most bytes of a message or frame: a GenerateMessage of all positions, or their hidden states."""
    return model.max_positions * max(4 * model.info.hidden_size, 16) + 2**16


def _gauges(registry: Registry, worker: Worker) -> None:
    holder, stage, driver = worker.holder, worker.stage, worker.driver
    for name, text, read in (
        ("sequences", "Sequences that run now.", lambda: len(holder.sequences)),
        ("slots", "Sequences that may run at the same time.", lambda: holder.slots),
        ("kv_bytes", "Bytes of the KV cache that are reserved.", lambda: holder.kv_bytes),
        ("kv_capacity_bytes", "Bytes that the KV cache may take.", lambda: holder.kv_capacity_bytes),
        ("waiting", "Steps that wait for their turn.", lambda: stage.num_waiting),
    ):
        read_gauge(registry, f"strata_worker_{name}", text, (), _without_labels(read))
    read_gauge(
        registry,
        "strata_worker_layers",
        "Layers that are ready, by the version of their plan.",
        ("version",),
        lambda: {(str(v),): holder.plans[v].end - holder.plans[v].first for v in holder.loaded},
    )
    for name, text, read in (
        ("steps_total", "Steps that this worker ran.", lambda: stage.num_steps),
        ("tokens_total", "Tokens of attempts that this worker drives.", lambda: driver.num_tokens),
    ):
        read_counter(registry, f"strata_worker_{name}", text, (), _without_labels(read))


def _without_labels(read: Callable[[], float]) -> Callable[[], dict[tuple[str, ...], float]]:
    return lambda: {(): read()}


def _routes(worker: Worker, registry: Registry) -> list[Route]:
    async def load(message: wire.RangeMessage) -> Response:
        worker.load(message)
        return Response(status_code=ACCEPTED)

    async def release(message: wire.ReleaseMessage) -> Response:
        worker.holder.release(message.version)
        return Response(status_code=DONE)

    async def generate(message: wire.GenerateMessage) -> Response:
        return _Lines(_lines(worker, message), media_type="application/x-ndjson")

    async def abort(message: wire.AbortMessage) -> Response:
        worker.abort(AttemptKey(message.request_id, message.attempt), is_kept=message.is_kept)
        return Response(status_code=DONE)

    async def steps(request: Request) -> Response | Upgraded:
        protocol, fingerprint = request.headers.get("upgrade", ""), request.headers.get(MODEL_HEADER, "")
        if protocol != PROTOCOL:
            return _refusal(
                426, f"steps come by {PROTOCOL}, not {protocol!r}: this worker is another version of strata"
            )
        if fingerprint != worker.model.fingerprint:
            return _refusal(409, f"{worker.node_id} hosts a different model")
        return Upgraded(PROTOCOL, worker.incoming().connection)

    async def health(_request: Request) -> Response:
        loaded = list(worker.holder.loaded)
        return JSONResponse({"node_id": worker.node_id, "incarnation": worker.incarnation, "loaded": loaded})

    async def metrics(_request: Request) -> Response:
        return PlainTextResponse(render(registry), headers={"content-type": CONTENT_TYPE})

    return [
        Route("/load", _reads(wire.RangeMessage, load), methods=["POST"]),
        Route("/release", _reads(wire.ReleaseMessage, release), methods=["POST"]),
        Route("/generate", _reads(wire.GenerateMessage, generate), methods=["POST"]),
        Route("/abort", _reads(wire.AbortMessage, abort), methods=["POST"]),
        Route(PATH, steps, methods=["GET"]),
        Route("/healthz", health),
        Route("/metrics", metrics),
    ]


def _reads(kind: type[M], handle: Callable[[M], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that reads a message of one kind, or says what is wrong with it."""

    async def endpoint(request: Request) -> Response:
        try:
            message = kind.model_validate_json(await request.body())
        except ValueError as error:
            return _refusal(422, str(error))
        try:
            return await handle(message)
        except Refused as refused:
            return _refusal(409, str(refused))

    return endpoint


def _refusal(status: int, message: str) -> Response:
    body = error_body(message, kind=kind_of(status))
    return Response(body, status_code=status, media_type="application/json")


class _Lines(StreamingResponse):
    """Closes what it reads from when the client has gone, not when somebody collects it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all lines, as long as somebody reads them."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            assert isinstance(self.body_iterator, AsyncGenerator)
            await self.body_iterator.aclose()


async def _lines(worker: Worker, message: wire.GenerateMessage) -> AsyncGenerator[str, None]:
    async with aclosing(worker.generate(message)) as lines:
        async for line in lines:
            yield line.model_dump_json(exclude_none=True) + "\n"
