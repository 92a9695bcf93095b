"""What ties a worker to its gateway: join, heartbeats, measure the way to the others, leave.

Whatever the gateway does, the worker goes on serving: an outage is waited out, a gateway that has forgotten it is
joined again. Only a refusal that waiting cannot change ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from strata.errors import UsageError
from strata.serving import wire
from strata.serving.worker.holder import Refused
from strata.serving.worker.links import HttpGateway, Unreachable
from strata.serving.worker.worker import Worker

log = logging.getLogger(__name__)

FIRST_WAIT_S: Final = 0.2
LONGEST_WAIT_S: Final = 5.0
PATIENT: Final = frozenset({408, 425, 429})
"""Client errors that are none: the gateway asks to come again."""


def wait_s(failures: int, longest_s: float) -> float:
    """Return how long to wait after so many failures in a row [s]: twice as long each time, up to a limit."""
    return min(FIRST_WAIT_S * 2.0 ** min(failures - 1, 16), LONGEST_WAIT_S, longest_s)


class Agent:
    """One life of a worker. `card` says who it is; its incarnation is larger than that of any earlier life.

    measure: takes addresses by node id, returns one-way latencies of those that answered [s]. usage: shares of its
    machine in use since the last heartbeat.
    """

    def __init__(
        self,
        card: wire.JoinMessage,
        gateway: HttpGateway,
        worker: Worker,
        *,
        measure: Callable[[Mapping[str, str]], Awaitable[Mapping[str, float]]],
        usage: Callable[[], Mapping[str, float]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.card, self.gateway, self.worker = card, gateway, worker
        self.peers: Mapping[str, str] = {}
        self.heartbeat_interval_s = LONGEST_WAIT_S
        self.is_joined = self.has_joined = False
        self._hop_s: dict[str, float] = {}
        self._measured: set[str] = set()
        self._has_new_peers, self._has_new_hops = asyncio.Event(), asyncio.Event()
        self._measure, self._usage, self._sleep = measure, usage, sleep

    async def run(self) -> None:
        """Join and send heartbeats until cancelled. Raises UsageError where the gateway refuses this worker."""
        failures = 0
        while True:
            failures = 0 if await self._turn() else failures + 1
            pause_s = wait_s(failures, self.heartbeat_interval_s) if failures else self.heartbeat_interval_s
            await self._pause(pause_s, self._has_new_hops)

    async def measure_forever(self) -> None:
        """Measure the way to the others, off the heartbeat's path: who cannot be reached delays nothing.

        The way to a new peer is measured and told at once: until then it is planned on as one between continents.
        """
        while True:
            if peers := dict(self.peers):
                hop_s = await self._measure(peers)
                self._hop_s.update(hop_s)
                if hop_s.keys() - self._measured:
                    self._has_new_hops.set()
                self._measured = peers.keys() & (self._measured | hop_s.keys())
            await self._pause(self.heartbeat_interval_s, self._has_new_peers)

    async def _pause(self, pause_s: float, news: asyncio.Event) -> None:
        """Sleep until there are news, and no longer than so."""
        ends = asyncio.ensure_future(self._sleep(pause_s)), asyncio.ensure_future(news.wait())
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        news.clear()

    async def loaded(self, version: int) -> None:
        """Tell the gateway that a plan's layers are ready; where it cannot be told, the next heartbeat does."""
        await self._tell(
            wire.LoadedMessage(node_id=self.card.node_id, incarnation=self.card.incarnation, version=version),
            "loaded",
        )

    async def leave(self) -> None:
        """Leave gracefully; a gateway that does not hear of it misses the heartbeats."""
        await self._tell(wire.LeaveMessage(node_id=self.card.node_id, incarnation=self.card.incarnation), "leave")

    async def _tell(self, message: wire.Message, path: str) -> None:
        try:
            await self.gateway.post(f"/nodes/{path}", message)
        except Unreachable as error:
            log.warning("%s", error)

    async def _turn(self) -> bool:
        """Join, or send a heartbeat where that is done; return whether the gateway heard it."""
        held = frozenset(self.worker.holder.plans)
        message = self._heartbeat() if self.is_joined else self.card
        try:
            answer = await self.gateway.post("/nodes/heartbeat" if self.is_joined else "/nodes/join", message)
        except Unreachable as error:
            log.warning("%s", error)
            return False
        if answer.status == 200:
            try:
                desired = wire.Desired.model_validate_json(answer.body)
            except ValueError as error:  # something else answers at its address
                log.warning("what answers at this address is not a gateway: %s", error)
                return False
            self.is_joined = self.has_joined = True
            self._heed(desired, held)
            return True
        # A name that was this worker's may be free again.
        may_return = self.has_joined and answer.code == "node-name-taken"
        if answer.status == 409 and answer.code in ("join-again", "node-stale"):
            self.is_joined = False
        elif not may_return and answer.status < 500 and answer.status not in PATIENT:
            detail = ": ".join(filter(None, (answer.code, answer.message)))
            detail = detail or answer.body[:200].decode(errors="replace")
            raise UsageError(
                f"the gateway refuses {self.card.node_id}: {answer.status} {detail}",
                hint="the gateway's --model (or --layers, --hidden, --seed) and node token, an --id of its own",
            )
        log.warning("the gateway answered %d %s", answer.status, answer.code)
        return False

    def _heartbeat(self) -> wire.HeartbeatMessage:
        hop_s, self._hop_s = self._hop_s, {}
        return wire.HeartbeatMessage(
            node_id=self.card.node_id,
            incarnation=self.card.incarnation,
            running=self.worker.running,
            loaded=self.worker.holder.loaded,
            hop_s=hop_s,
            samples=self.worker.take_samples(),
            is_stuck=self.worker.is_stuck(),
            usage=dict(self._usage()),
        )

    def _heed(self, desired: wire.Desired, held: frozenset[int]) -> None:
        """Load what is missing; let go what was held when the gateway was asked and is not wanted."""
        if desired.peers.keys() - self.peers.keys():
            self._has_new_peers.set()
        self.heartbeat_interval_s, self.peers = desired.heartbeat_interval_s, desired.peers
        for wanted in desired.ranges:
            try:
                self.worker.load(wanted)
            except Refused as refused:
                log.error("plan %d: %s", wanted.version, refused)
        for version in held - {wanted.version for wanted in desired.ranges}:
            self.worker.holder.release(version)
