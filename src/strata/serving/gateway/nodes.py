"""Workers' side of the gateway: join, heartbeat, leave, loaded, as `wire.py` has them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import httpx
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from strata.decision import Trust
from strata.serving import wire
from strata.serving.gateway.access import NodeAccess
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.gateway import Gateway
from strata.serving.gateway.openai import ApiError
from strata.serving.live.events import Heartbeat, Join, Leave, Loaded
from strata.serving.live.instructions import Instruction, RejectJoin
from strata.serving.node import Node

PEERS: Final = 16
"""Addresses a heartbeat is answered with: in a large cluster the others come with later ones."""

ASK_S: Final = 2.0
"""For a worker to say whether it still lives."""

Read = TypeVar("Read", bound=wire.Message)
Endpoint = Callable[[Request], Awaitable[Response]]


def routes(gateway: Gateway, access: NodeAccess) -> list[Route]:
    """Return the endpoints."""
    return [
        Route("/nodes/join", _endpoint(gateway, access, wire.JoinMessage, _join), methods=["POST"]),
        Route("/nodes/heartbeat", _endpoint(gateway, access, wire.HeartbeatMessage, _heartbeat), methods=["POST"]),
        Route("/nodes/leave", _endpoint(gateway, access, wire.LeaveMessage, _leave), methods=["POST"]),
        Route("/nodes/loaded", _endpoint(gateway, access, wire.LoadedMessage, _loaded), methods=["POST"]),
    ]


def _endpoint(
    gateway: Gateway,
    access: NodeAccess,
    kind: type[Read],
    handle: Callable[[Gateway, Driver, Read], wire.Desired | None],
) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        driver = gateway.workers
        if driver is None:
            raise ApiError(404, "this gateway does not accept workers", "no-workers")
        access.check_request(request)
        try:
            message = kind.model_validate_json(await request.body())
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ApiError(422, f"{where}: {first['msg']}" if where else first["msg"], "invalid_value") from None
        if isinstance(message, wire.JoinMessage):
            await access.check_url(message.url, request)
            await _end_former_life(driver, message)
        answer = handle(gateway, driver, message)
        return Response(answer.model_dump_json() if answer else b"{}", media_type="application/json")

    return endpoint


async def _end_former_life(driver: Driver, message: wire.JoinMessage) -> None:
    """Let a node that is known from another life go, unless it lives: then the name is taken.

    Which of two started later is not asked: a clock may be set back, and anybody may claim any number.
    """
    client, node_id = driver.backend_client, message.node_id
    known = driver.core.incarnation(node_id)
    if known is None or known == message.incarnation:
        return
    if await is_alive(client.client, client.urls.get(node_id, ""), node_id, known):
        problem = f"another worker is called {node_id} and answers: give this one an --id of its own"
        raise ApiError(409, problem, "node-name-taken", param="node_id")
    if driver.core.incarnation(node_id) == known:
        driver.post(Leave(node_id, known))


async def is_alive(client: httpx.AsyncClient, url: str, node_id: str, incarnation: int) -> bool:
    """Return whether a worker answers at an address in the life that it joined in."""
    try:
        answer = (await client.get(f"{url}/healthz", timeout=ASK_S)).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return False
    return isinstance(answer, dict) and (answer.get("node_id"), answer.get("incarnation")) == (
        node_id,
        incarnation,
    )


def _join(gateway: Gateway, driver: Driver, message: wire.JoinMessage) -> wire.Desired:
    if message.model:
        raise ApiError(409, "whole engines cannot join: name them with --backend", "whole-engine")
    if gateway.fingerprint and message.fingerprint != gateway.fingerprint:
        raise ApiError(409, f"{message.node_id} hosts a different model than this gateway", "other-model")
    node = Node(
        message.node_id,
        message.compute_capability,
        message.memory_bytes,
        message.memory_bandwidth_bytes_per_s,
        message.region,
        message.url,
        trust=Trust.MEASURED,
        step_sequences=message.step_sequences or math.inf,
    )
    gateway.drivers.setdefault(driver.name, driver)
    _check(driver.post(Join(node, message.incarnation, message.samples)))
    driver.backend_client.urls[message.node_id] = message.url.rstrip("/")
    return _desired(driver, message.node_id)


def _heartbeat(gateway: Gateway, driver: Driver, message: wire.HeartbeatMessage) -> wire.Desired:
    # An open stream says more than a heartbeat: what a worker is done with may still wait here for a slow client.
    running = driver.running_on(message.node_id).union(message.running)
    heartbeat = Heartbeat(
        message.node_id,
        message.incarnation,
        running,
        message.hop_s,
        message.samples,
        message.is_stuck,
        usage=message.usage,
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
