"""Engines that a user named: which models they serve, and whether they still answer.

No engine joins by itself: `watch` joins for one when it answers, and sends its heartbeats as long as it does.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import httpx

from strata.decision import Trust
from strata.errors import UsageError
from strata.serving.gateway.driver import Driver
from strata.serving.gateway.engines import POLL_TIMEOUT_S, Engines
from strata.serving.live.events import Heartbeat, Join
from strata.serving.live.instructions import RejectJoin
from strata.serving.node import Node

log = logging.getLogger(__name__)

SLOTS: Final = 64
"""Requests at once on an engine, where the user says nothing (assumed)."""
CONTEXT_TOKENS: Final = 2**17
RETRY_S: Final = 1.0
CONTINUES: Final = "vllm"
"""What engines call the owner of their models that go on with an answer of a chat, where they are told to
(`continue_final_message` of vLLM's chat API; read in its documentation, not run here)."""


@dataclass(frozen=True, slots=True)
class Backend:
    """An engine's address; `model` is asked for where the user did not say."""

    url: str
    model: str = ""
    slots: int = SLOTS


def read_backend(text: str) -> Backend:
    """Read `URL[,model=NAME][,slots=N]`. Raises UsageError."""
    url, *rest = text.split(",")
    options = dict(part.partition("=")[::2] for part in rest)
    slots = options.pop("slots", str(SLOTS))
    model = options.pop("model", "")
    if options or not url.startswith(("http://", "https://")) or not slots.isdigit() or not int(slots):
        raise UsageError(
            f"--backend {text} is not URL[,model=NAME][,slots=N]",
            hint="--backend http://127.0.0.1:8001,model=my-model,slots=64",
        )
    return Backend(url.rstrip("/").removesuffix("/v1"), model, int(slots))


class Model(NamedTuple):
    """What an engine says it serves, and who it says owns it."""

    name: str
    owner: str = ""


async def watch(backend: Backend, node_id: str, driver: Driver, engines: Engines) -> None:
    """Join an engine while it answers, and send its heartbeats; runs until cancelled.

    One that is not heard is evicted as any node is; one that broke a request off joins anew when it answers.
    """
    incarnation, is_joined, broken = 0, False, engines.broken[node_id]
    # What is not asked is not known: like rates for all engines, and memory for any request that has a slot.
    node = Node(
        node_id,
        compute_capability=1e14,
        memory_bandwidth_bytes_per_s=1e12,
        model=driver.name,
        trust=Trust.ASSUMED,
        slots=backend.slots,
        kv_tokens=backend.slots * CONTEXT_TOKENS,
    )
    while True:
        if broken.is_set():
            broken.clear()
            is_joined = False
        if model := await model_of(backend, engines.client):
            (engines.continues.add if model.owner == CONTINUES else engines.continues.discard)(node_id)
            if is_joined:
                instructions = driver.post(Heartbeat(node_id, incarnation, driver.running_on(node_id)))
            else:
                incarnation += 1
                driver.backend_client.urls[node_id] = backend.url
                instructions = driver.post(Join(node, incarnation))
            is_joined = not any(isinstance(instruction, RejectJoin) for instruction in instructions)
        with suppress(TimeoutError):
            async with asyncio.timeout(driver.core.config.heartbeat_interval_s if is_joined else RETRY_S):
                await broken.wait()


async def model_of(backend: Backend, client: httpx.AsyncClient) -> Model | None:
    """Return the first model an engine says it serves; None where it does not answer, or serves none."""
    try:
        answer = await client.get(f"{backend.url}/v1/models", timeout=POLL_TIMEOUT_S)
        answer.raise_for_status()
        for entry in answer.json()["data"]:
            return Model(str(entry["id"]), str(entry.get("owned_by", "")))
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.info("%s: %s: %s", backend.url, type(error).__name__, error)
    return None
