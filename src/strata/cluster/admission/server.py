"""The webhook's server: reviews in, answers out, whatever somebody posts.

    POST /mutate   AdmissionReview of admission.k8s.io/v1
    GET /healthz, /readyz, /metrics

`review.answer` decides; nothing here knows what it is about but how it came out, for the metrics.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from strata.cluster.admission.certs import CertificatePair
from strata.cluster.admission.keeper import LOOK_S, show
from strata.cluster.api.kinds import Object
from strata.cluster.health_pages import REALMS, page_routes
from strata.errors import StrataError
from strata.net.http import Frame, Limits, Realm, error_body, kind_of
from strata.net.metrics import SECONDS, Counter, Histogram, Registry, render
from strata.net.not_served import REFUSALS

log = logging.getLogger(__name__)

LIMITS: Final = Limits(body_bytes=3 * 2**20, answer_s=10.0, body_s=10.0)
"""etcd holds no object above 1.5 MiB; a review of an update would have two."""

_AGAIN_S: Final = 5.0
"""When certificates are asked for again after that failed."""


class WebhookMetrics:
    """What the webhook counts."""

    def __init__(self) -> None:
        self.registry = new = Registry()
        self.has_certificate = False
        self.requests = Counter("strata_http_requests_total", "HTTP requests by status.", ["code"], registry=new)
        self.reviews = Counter(
            "strata_admission_reviews_total", "Reviews by kind and outcome.", ["kind", "outcome"], registry=new
        )
        self.seconds = Histogram(
            "strata_admission_seconds",
            "From a review's last byte to its answer.",
            ["kind"],
            buckets=SECONDS,
            registry=new,
        )
        self.renewals = Counter(
            "strata_webhook_certificate_loads_total", "Certificates loaded, the first among them.", registry=new
        )


def make_frame(
    answer: Callable[[Object], Object],
    *,
    unready: Callable[[], str] = lambda: "",
    meters: WebhookMetrics | None = None,
    tls: ssl.SSLContext | None = None,
    look: Callable[[], CertificatePair] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Frame:
    """Return the server's application.

    answer: from a review to the review that answers it; it raises StrataError for what is no review of ours.
    unready: why no reviews should come here yet, empty if they may. look: the certificate to show, asked every
    `LOOK_S` in a thread and loaded into `tls`; what it raises is logged, and it is asked again.
    """
    meters = meters or WebhookMetrics()

    async def mutate(request: Request) -> Response:
        body = await request.body()
        if why := unready():
            # What is not seen yet would count as not there.
            return _refused(503, f"not ready: {why}")
        started = clock()
        try:
            review = _review(body)
            reply = await asyncio.to_thread(answer, review)  # it may wait for the cache, and health checks may not
        except StrataError as error:
            return _refused(400, str(error))
        kind = _kind(review)
        meters.reviews.labels(kind, outcome(reply)).inc()
        meters.seconds.labels(kind).observe(clock() - started)
        return JSONResponse(reply)

    def unshown() -> str:
        return unready() or ("there is no certificate yet" if look and not meters.has_certificate else "")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if tls is None or look is None:
            yield
            return
        renewing = asyncio.create_task(_renew(tls, look, meters))
        try:
            yield
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing

    routes = [
        Route("/mutate", mutate, methods=["POST"]),
        *page_routes(lambda: render(meters.registry), unready=unshown),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers=REFUSALS)
    return Frame(app, realms=[Realm("/"), *REALMS], limits=LIMITS, requests=meters.requests)


async def _renew(tls: ssl.SSLContext, look: Callable[[], CertificatePair], meters: WebhookMetrics) -> None:
    shown: CertificatePair | None = None
    while True:
        try:
            pair = await asyncio.to_thread(look)
            if pair != shown:
                show(tls, pair)  # in the loop that accepts connections
                shown = pair
                meters.renewals.inc()
                meters.has_certificate = True
                log.info("a certificate was loaded")
        except StrataError as error:
            log.error("certificates: %s", error)
            await asyncio.sleep(_AGAIN_S)
        else:
            await asyncio.sleep(LOOK_S)


def _review(body: bytes) -> Object:
    try:
        review = json.loads(body)
    except (ValueError, RecursionError):
        raise StrataError("the body is not JSON") from None
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or review.get("kind") != "AdmissionReview":
        raise StrataError("the body is not an AdmissionReview with a request")
    if review.get("apiVersion") != "admission.k8s.io/v1":
        raise StrataError("only AdmissionReviews of admission.k8s.io/v1 are answered here")
    if not isinstance(request.get("kind", {}), dict):
        raise StrataError("request.kind should be a mapping")
    uid = request.get("uid")
    if not isinstance(uid, str) or not 0 < len(uid) <= 128:
        raise StrataError("the request has no uid")
    return review  # type: ignore[no-any-return]


_KINDS: Final = frozenset({"Pod", "Job", "JobSet", "TrainJob", "PyTorchJob", "RayJob"})


def _kind(review: Object) -> str:
    """Return a review's kind for a label: one of few, whatever is posted."""
    name = review["request"].get("kind", {}).get("kind")
    return name if isinstance(name, str) and name in _KINDS else "other"


def outcome(review: Object) -> str:
    """Return how a review was answered: denied, gated, changed or unchanged."""
    response = review["response"]
    if not response["allowed"]:
        return "denied"
    patch: list[dict[str, Any]] = json.loads(base64.b64decode(response.get("patch", "W10=")))
    if any("schedulingGates" in operation["path"] and operation["op"] == "add" for operation in patch):
        return "gated"
    return "changed" if patch else "unchanged"


def _refused(status: int, message: str) -> Response:
    return Response(error_body(message, kind=kind_of(status)), status_code=status, media_type="application/json")
