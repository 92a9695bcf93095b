"""One worker, all but its sockets: loads layers, takes part in chains, drives its own, and tidies up after all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from strata.clock import Clock
from strata.serving.hosted import HostedModel
from strata.serving.tasks import TaskSet
from strata.serving.wire import FaultMessage, GenerateLine, GenerateMessage, RangeMessage, StepSample
from strata.serving.worker.drive import STEP_LIMIT_S, ChainDriver
from strata.serving.worker.holder import PARKED_S, AttemptKey, Holder, StageMaker
from strata.serving.worker.incoming import Incoming
from strata.serving.worker.peers import Links
from strata.serving.worker.stage import StageRunner

log = logging.getLogger(__name__)

SLOTS: Final = 256
"""Sequences at once at most; memory ends most pools before."""

LEASE_S: Final = 60.0
"""A sequence that has not moved for so long gives up what it holds: its reader has stopped, or it is an orphan."""


class Worker:
    """Everything a node does. `on_loaded` is told of plans whose layers are ready.

    in_thread: what the thread that runs layers does first.
    """

    def __init__(
        self,
        node_id: str,
        model: HostedModel,
        maker: StageMaker,
        *,
        memory_bytes: float,
        peers: Links,
        clock: Clock,
        slots: int = SLOTS,
        step_limit_s: float = STEP_LIMIT_S,
        lease_s: float = LEASE_S,
        in_thread: Callable[[], None] = lambda: None,
    ) -> None:
        self.node_id, self.model, self.maker, self.peers = node_id, model, maker, peers
        self.holder = Holder(model, maker, memory_bytes=memory_bytes, slots=slots)
        self.driver = ChainDriver(step_limit_s=step_limit_s)
        self.incarnation = 0  # the process's to say
        self.on_loaded: Callable[[int], Awaitable[None]] = _nobody
        self._clock, self._lease_s, self._step_limit_s = clock, lease_s, step_limit_s
        self._pulse: tuple[float, Future[None]] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="layers", initializer=in_thread)
        self.tasks = TaskSet()
        self.stage = StageRunner(
            node_id,
            self.holder,
            peers=peers,
            executor=self._executor,
            clock=clock,
            deliver=self.driver.deliver,
        )

    @property
    def running(self) -> tuple[str, ...]:
        """Requests that hold something here."""
        keys = self.holder.sequences.keys() | self.driver.driven.keys()
        return tuple(sorted({key.request_id for key in keys}))

    def is_stuck(self) -> bool:
        """Return whether the thread that runs layers has not come free for longer than a step may take.

        To be asked at every heartbeat: each asks the thread for a sign of life where it has given the last.
        """
        if self._pulse is None or self._pulse[1].done():
            self._pulse = self._clock(), self._executor.submit(lambda: None)
        return self._clock() - self._pulse[0] > self._step_limit_s

    def take_samples(self) -> tuple[StepSample, ...]:
        """Return what was measured since the last call."""
        samples = self.stage.samples  # the thread that computes goes on adding to them
        return tuple(samples.popleft() for _ in range(len(samples)))

    def load(self, wanted: RangeMessage) -> None:
        """Have layers loaded beside those that serve. Raises Refused where they do not fit."""
        missing = self.holder.open(wanted.version, wanted.first, wanted.end)
        if missing is not None:
            self.tasks.start(self._load(wanted.version, missing))

    async def _load(self, version: int, missing: tuple[int, ...]) -> None:
        try:
            made = await asyncio.to_thread(lambda: {number: self.maker.layer(number) for number in missing})
        except Exception:
            log.exception("the layers of plan %d cannot be made", version)
            self.holder.release(version)  # the answer to the next heartbeat asks for them again
            return
        if self.holder.close(version, made):
            log.info("plan %d: %d layers made, ready", version, len(made))
            await self.on_loaded(version)

    def generate(self, message: GenerateMessage) -> AsyncGenerator[GenerateLine, None]:
        """Drive an attempt; however it ends, the other workers of its route free what they hold of it."""
        return self.driver.generate(self.stage, message)

    def incoming(self) -> Incoming:
        """Return what takes steps from another worker's connection."""
        return Incoming(self.stage, frame_bytes=self.peers.frame_bytes, frame_s=self._step_limit_s)

    def abort(self, key: AttemptKey, *, is_kept: bool = False) -> None:
        """Stop an attempt and free what it holds, here and at the workers after; or have all keep it a while."""
        if key in self.driver.driven:
            self.driver.abort(key, is_kept=is_kept)
        elif is_kept:
            self.stage.park(key)
        else:
            self.stage.stop(key)

    def expire(self) -> list[AttemptKey]:
        """End what has not moved, and tell where it came from; return it. End what waits for hung layers."""
        self.stage.fail_late(self._clock() - self._step_limit_s, self._step_limit_s)
        self.holder.drop(self._clock() - PARKED_S)
        idle = self.holder.idle(self._clock() - self._lease_s, self.driver.driven)
        for key in idle:
            error = f"{self.node_id}: no step came for {self._lease_s:g} s"
            self.stage.fail(key, FaultMessage(error=error))
        return idle

    async def expire_forever(self) -> None:
        """End what does not move as long as the worker lives."""
        while True:
            await asyncio.sleep(min(self._lease_s, self._step_limit_s, PARKED_S) / 4)
            for key in self.expire():
                log.warning("attempt %d of %s did not move for %g s", key.attempt, key.request_id, self._lease_s)

    async def close(self) -> None:
        """Break off what is still running in the background."""
        await self.tasks.close()
        self.stage.close()
        await self.peers.close()
        self._executor.shutdown(wait=True, cancel_futures=True)


async def _nobody(version: int) -> None:
    """Tell nobody."""
