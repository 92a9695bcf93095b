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
from strata.serving.gateway.engine_figures import TIMEOUT_S, VLLM, EngineFigures, figures_of, num_requests
from strata.serving.gateway.engines import Engines
from strata.serving.live.events import Event, Heartbeat, Join, Leave
from strata.serving.live.instructions import RejectJoin
from strata.serving.node import Node

log = logging.getLogger(__name__)

SLOTS: Final = 64
"""Requests at once on an engine, where neither it nor the user says (assumed)."""
CONTEXT_TOKENS: Final = 2**17
RETRY_S: Final = 1.0
CONTINUES: Final = (VLLM,)
"""Engines that go on with an answer of a chat, where they are told to (`continue_final_message`)."""
FASTER: Final = 1e4
"""An engine's rates are assumed to be a GPU's, and so much faster: what a prompt, a token and a neighbour cost is
only compared, and no goal for times that nobody measured binds."""


@dataclass(frozen=True, slots=True)
class Backend:
    """An engine's address; `model` and `slots` are asked for where the user did not say."""

    url: str
    model: str = ""
    slots: int = 0


def read_backend(text: str) -> Backend:
    """Read `URL[,model=NAME][,slots=N]`. Raises UsageError."""
    url, *rest = text.split(",")
    options = dict(part.partition("=")[::2] for part in rest)
    slots, model = options.pop("slots", ""), options.pop("model", "")
    is_count = slots.isascii() and slots.isdigit() and int(slots) > 0
    if options or not url.startswith(("http://", "https://")) or ("slots=" in text and not is_count):
        raise UsageError(
            f"--backend {text} is not URL[,model=NAME][,slots=N]",
            hint="--backend http://127.0.0.1:8001,model=my-model,slots=64",
        )
    return Backend(url.rstrip("/").removesuffix("/v1"), model, int(slots or 0))


class Model(NamedTuple):
    """What an engine says it serves, and who it says owns it."""

    name: str
    owner: str = ""


class Watcher:
    """Looks after one engine: joins for it while it answers, and sends its heartbeats.

    One that is not heard is evicted as any node is; one that broke a request off joins anew when it has answered
    one, which says more than that its address does. One that serves another model has left.
    """

    def __init__(self, backend: Backend, node_id: str, driver: Driver, engines: Engines) -> None:
        self.backend, self.node_id, self.driver, self.engines = backend, node_id, driver, engines
        self.is_joined = self._has_broken = False
        self._broken, self._heard_s = engines.broken[node_id], 0.0
        self._figures: EngineFigures | None = None
        self._life, self._owner = 0, ""

    async def run(self) -> None:
        """Look after it until it serves another model, where the user did not say which."""
        while await self.look() or self.backend.model:
            with suppress(TimeoutError):
                async with asyncio.timeout(
                    self.driver.core.config.heartbeat_interval_s if self.is_joined else RETRY_S
                ):
                    await self._broken.wait()

    async def look(self) -> bool:
        """Look once; tell the scheduler where it lives. Returns whether it serves the model, or did when heard."""
        node_id, engines = self.node_id, self.engines
        if self._broken.is_set():
            self._broken.clear()
            self.is_joined, self._has_broken = False, True
        before_s, self._heard_s = self._heard_s, engines.paces[node_id].heard_s
        if self.is_joined and (self.driver.running_on(node_id) or self._heard_s != before_s):
            # Its requests say whether it lives: some engines answer nothing else meanwhile.
            await self._beat()
            return True
        if self._has_broken and not await answers(
            self.backend, self.driver.name, engines.client, limit_s=engines.silence_s
        ):
            return True
        models = await models_of(self.backend, engines.client)
        model = next((model for model in models if model.name == self.driver.name), None)
        if model:
            self._has_broken, self._owner = False, model.owner
            (engines.continues.add if model.owner in CONTINUES else engines.continues.discard)(node_id)
            await (self._beat() if self.is_joined else self._join())
        elif models:
            log.warning(
                "%s serves %s, not %s", self.backend.url, ", ".join(m.name for m in models), self.driver.name
            )
            self._post(Leave(node_id, self._life))
            self.is_joined = False
        return model is not None or not models

    async def _join(self) -> None:
        engines, slots = self.engines, self.backend.slots
        figures = await figures_of(self.backend.url, self._owner, engines.client)
        if figures != self._figures:  # another life of it
            self._figures, self._life = figures, self._life + 1
        slots = slots or figures.slots or SLOTS
        # What is not known is assumed: memory for any request that has a slot.
        kv_tokens = figures.kv_tokens or slots * CONTEXT_TOKENS
        node = Node(
            self.node_id,
            compute_capability=1e14 * FASTER,
            memory_bandwidth_bytes_per_s=1e12 * FASTER,
            model=self.driver.name,
            trust=Trust.ASSUMED,
            slots=slots,
            kv_tokens=kv_tokens,
        )
        engines.urls[self.node_id], engines.kv_tokens[self.node_id] = self.backend.url, kv_tokens
        self._post(Join(node, self._life))

    async def _beat(self) -> None:
        count = await num_requests(self.backend.url, self._owner, self.engines.client)
        ours = self.driver.running_on(self.node_id)
        # One that asks for several answers is as many there.
        num_ours = sum(self.driver.streams[name].request.num_choices for name in ours)
        self._post(Heartbeat(self.node_id, self._life, ours, num_others=max(0, count - num_ours)))

    def _post(self, event: Event) -> None:
        instructions = self.driver.post(event)
        self.is_joined = not any(isinstance(instruction, RejectJoin) for instruction in instructions)


async def answers(backend: Backend, model: str, client: httpx.AsyncClient, *, limit_s: float) -> bool:
    """Return whether an engine answers a request for one token, with whatever: an error of its own is life too."""
    ask = {"model": model, "prompt": "a", "max_tokens": 1}
    timeout = httpx.Timeout(TIMEOUT_S, read=limit_s)
    try:
        answer = await client.post(f"{backend.url}/v1/completions", json=ask, timeout=timeout)
    except httpx.HTTPError as error:
        log.info("%s: %s: %s", backend.url, type(error).__name__, error)
        return False
    return answer.status_code < 500


async def models_of(backend: Backend, client: httpx.AsyncClient) -> list[Model]:
    """Return the models an engine says it serves; none where it does not answer."""
    try:
        answer = await client.get(f"{backend.url}/v1/models", timeout=TIMEOUT_S)
        answer.raise_for_status()
        return [Model(str(entry["id"]), str(entry.get("owned_by", ""))) for entry in answer.json()["data"]]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.info("%s: %s: %s", backend.url, type(error).__name__, error)
    return []
