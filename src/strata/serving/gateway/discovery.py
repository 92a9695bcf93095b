"""Engines that a user named: which models they serve, and whether they still answer.

No engine joins by itself: a `Watcher` joins for one when it answers, and sends its heartbeats as long as it does.
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
LIFE: Final = 1
"""Incarnation of all engines: whoever watches one knows when it comes and goes."""
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


class Watcher:
    """Looks after one engine: joins for it while it answers, and sends its heartbeats.

    One that is not heard is evicted as any node is; one that broke a request off joins anew when it has answered
    one, which says more than that its address does.
    """

    def __init__(self, backend: Backend, node_id: str, driver: Driver, engines: Engines) -> None:
        self.backend, self.driver, self.engines = backend, driver, engines
        # What is not asked is not known: like rates for all engines, and memory for any request that has a slot.
        self.node = Node(
            node_id,
            compute_capability=1e14,
            memory_bandwidth_bytes_per_s=1e12,
            model=driver.name,
            trust=Trust.ASSUMED,
            slots=backend.slots,
            kv_tokens=backend.slots * CONTEXT_TOKENS,
        )
        self.is_joined = self._has_broken = False
        self._broken, self._num_heard = engines.broken[node_id], 0

    async def run(self) -> None:
        """Look after it until cancelled."""
        while True:
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    self.driver.core.config.heartbeat_interval_s if self.is_joined else RETRY_S
                ):
                    await self._broken.wait()

    async def look(self) -> None:
        """Look once; tell the scheduler where it lives."""
        node_id, engines = self.node.node_id, self.engines
        if self._broken.is_set():
            self._broken.clear()
            self.is_joined, self._has_broken = False, True
        before, self._num_heard = self._num_heard, engines.num_heard[node_id]
        running = self.driver.running_on(node_id)
        if self.is_joined and (running or self._num_heard != before):
            # Its requests say whether it lives: some engines answer nothing else meanwhile.
            self._post(Heartbeat(node_id, LIFE, running))
            return
        if self._has_broken and not await answers(
            self.backend, self.driver.name, engines.client, limit_s=engines.silence_s
        ):
            return
        if model := await model_of(self.backend, engines.client):
            self._has_broken = False
            (engines.continues.add if model.owner == CONTINUES else engines.continues.discard)(node_id)
            if self.is_joined:
                self._post(Heartbeat(node_id, LIFE, self.driver.running_on(node_id)))
            else:
                engines.urls[node_id] = self.backend.url
                self._post(Join(self.node, LIFE))

    def _post(self, event: Heartbeat | Join) -> None:
        instructions = self.driver.post(event)
        self.is_joined = not any(isinstance(instruction, RejectJoin) for instruction in instructions)


async def answers(backend: Backend, model: str, client: httpx.AsyncClient, *, limit_s: float) -> bool:
    """Return whether an engine answers a request for one token, with whatever: an error of its own is life too."""
    ask = {"model": model, "prompt": "a", "max_tokens": 1}
    timeout = httpx.Timeout(POLL_TIMEOUT_S, read=limit_s)
    try:
        answer = await client.post(f"{backend.url}/v1/completions", json=ask, timeout=timeout)
    except httpx.HTTPError as error:
        log.info("%s: %s: %s", backend.url, type(error).__name__, error)
        return False
    return answer.status_code < 500


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
