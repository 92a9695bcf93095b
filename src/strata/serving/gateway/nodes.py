"""Workers' side of the gateway: join, heartbeat, leave, loaded, as `wire.py` has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strata.decision import Trust
from strata.serving import wire
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.gateway import Gateway
from strata.serving.gateway.openai import ApiError
from strata.serving.live.events import Heartbeat, Join, Leave, Loaded
from strata.serving.live.instructions import Instruction, RejectJoin
from strata.serving.node import Node

PEERS: Final = 16
"""Addresses a heartbeat is answered with: in a large cluster the others come with later ones."""

Read = TypeVar("Read", bound=wire.Message)
Endpoint = Callable[[Request], Awaitable[Response]]


def routes(gateway: Gateway) -> list[Route]:
    """Return the endpoints."""
    return [
        Route("/nodes/join", _endpoint(gateway, wire.JoinMessage, _join), methods=["POST"]),
        Route("/nodes/heartbeat", _endpoint(gateway, wire.HeartbeatMessage, _heartbeat), methods=["POST"]),
        Route("/nodes/leave", _endpoint(gateway, wire.LeaveMessage, _leave), methods=["POST"]),
        Route("/nodes/loaded", _endpoint(gateway, wire.LoadedMessage, _loaded), methods=["POST"]),
    ]


def _endpoint(
    gateway: Gateway, kind: type[Read], handle: Callable[[Gateway, Driver, Read], wire.Desired | None]
) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        driver = gateway.workers
        if driver is None:
            raise ApiError(404, "this gateway does not accept workers", "no-workers")
        try:
            message = kind.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ApiError(422, f"{where}: {first['msg']}" if where else first["msg"], "invalid_value") from None
        answer = handle(gateway, driver, message)
        return Response(answer.model_dump_json() if answer else b"{}", media_type="application/json")

    return endpoint


def _join(gateway: Gateway, driver: Driver, message: wire.JoinMessage) -> wire.Desired:
    if message.model:
        raise ApiError(409, "whole engines cannot join: name them with --backend", "whole-engine")
    if gateway.fingerprint and message.fingerprint != gateway.fingerprint:
        raise ApiError(409, f"{message.node_id} hosts a different model than this gateway", "other-model")
    if not message.url.startswith(("http://", "https://")):
        raise ApiError(422, "url must begin with http:// or https://", "invalid_value", param="url")
    node = Node(
        message.node_id,
        message.compute_capability,
        message.memory_bytes,
        message.memory_bandwidth_bytes_per_s,
        message.region,
        message.url,
        trust=Trust.MEASURED,
    )
    _check(driver.post(Join(node, message.incarnation)))
    driver.backend_client.urls[message.node_id] = message.url.rstrip("/")
    return _desired(driver, message.node_id)


def _heartbeat(gateway: Gateway, driver: Driver, message: wire.HeartbeatMessage) -> wire.Desired:
    # An open stream says more than a heartbeat: what a worker is done with may still wait here for a slow client.
    running = driver.running_on(message.node_id).union(message.running)
    heartbeat = Heartbeat(
        message.node_id, message.incarnation, running, message.hop_s, message.samples, message.is_stuck
    )
    _check(driver.post(heartbeat))
    desired = _desired(driver, message.node_id)
    # A lost /nodes/loaded is made up for here; one that was heard is nothing new.
    for version in {wanted.version for wanted in desired.ranges}.intersection(message.loaded):
        driver.post(Loaded(message.node_id, message.incarnation, version))
    return desired


def _leave(gateway: Gateway, driver: Driver, message: wire.LeaveMessage) -> None:
    driver.post(Leave(message.node_id, message.incarnation))


def _loaded(gateway: Gateway, driver: Driver, message: wire.LoadedMessage) -> None:
    driver.post(Loaded(message.node_id, message.incarnation, message.version))


def _check(instructions: tuple[Instruction, ...]) -> None:
    for instruction in instructions:
        if isinstance(instruction, RejectJoin):
            raise ApiError(409, str(instruction.reason), instruction.reason.token)


def _desired(driver: Driver, node_id: str) -> wire.Desired:
    peers = sorted(driver.core.peers(node_id).items())
    if len(peers) > PEERS:
        driver.num_heartbeats += 1
        start = driver.num_heartbeats * PEERS % len(peers)
        peers = (peers + peers)[start : start + PEERS]
    return wire.Desired(
        ranges=tuple(
            wire.RangeMessage(version=version, first=first, end=end)
            for version, first, end in driver.core.desired(node_id)
        ),
        peers=dict(peers),
        heartbeat_interval_s=driver.core.config.heartbeat_interval_s,
    )
