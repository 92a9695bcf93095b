"""The agent alive: threads look and put what they found into one queue; one thread decides and publishes.

The decisions are `daemon.Agent`'s. Whatever ends a thread that should not end is raised again by `stop`, after
`on_end` was called: a node whose agent is half alive would look well for ever.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from strata.cluster.agent.daemon import Agent
from strata.cluster.agent.meters import AgentMetrics
from strata.cluster.agent.sources import (
    Collect,
    ask_tools,
    listen_for_xids,
    run_benchmarks,
    watch_errors,
    watch_presence,
)
from strata.cluster.agent.watch import DeviceFault
from strata.cluster.api.errors import ApiFailed
from strata.errors import StrataError
from strata.fleet import nvml
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Fingerprint
from strata.net.server import serve

log = logging.getLogger(__name__)

ALIVE_S: Final = 120.0
"""A deciding thread that was not seen for so long hangs: longer than two calls of the API server may take."""

_IDLE_S: Final = 10.0
_JOIN_S: Final = 3.0

Told = Callable[[Agent], None]
"""What a benchmark found, as a call that tells the agent; it may raise StrataError."""

Source = Callable[[], None]
"""Runs in a thread of its own until the runner is stopped, and gives it what it finds."""


class AgentRunner:
    """publish: makes the API server know a fingerprint; raises ApiFailed, or StrataError for what cannot be told.

    look: set when the tools should be asked at once. on_end: called by a thread that ends with an error.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        publish: Callable[[Fingerprint], None],
        meters: AgentMetrics,
        on_end: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent, self.meters, self.clock = agent, meters, clock
        self.look, self.stopped = threading.Event(), threading.Event()
        self.addresses: tuple[str, ...] = ()
        self.current: Fingerprint | None = None
        self._publish, self._on_end = publish, on_end
        self._events: queue.SimpleQueue[Collected | DeviceFault | Told | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._waiting: list[float] = []  # when faults came that are not published
        self._error: BaseException | None = None
        self._seen_s = clock()

    def put(self, event: Collected | DeviceFault | Told | None) -> None:
        """Take what was found; from any thread."""
        self._events.put(event)

    def start(self, *sources: Source) -> None:
        """Start the thread that decides, and one for each source."""
        for work in (*sources, self._decide):
            self._threads.append(threading.Thread(target=self._guarded, args=(work,), daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """End the threads, as far as they can be, and raise what ended one before."""
        self.stopped.set()
        self.look.set()
        self.put(None)
        for thread in self._threads:
            thread.join(_JOIN_S)  # one that a driver holds ends with the process
        if self._error is not None:
            raise self._error

    def is_alive(self) -> bool:
        """Whether the deciding thread does its work."""
        return self._error is None and self.clock() - self._seen_s < ALIVE_S

    def turn(self) -> None:
        """Wait until something happens or is due, take all that happened, publish what is due."""
        self._seen_s = self.clock()
        wait_s = min(_IDLE_S, max(0.0, self.agent.due_s(self._seen_s) - self._seen_s))
        try:
            self._take(self._events.get(timeout=wait_s))
            while True:
                self._take(self._events.get_nowait())
        except queue.Empty:
            pass
        now_s = self.clock()
        self.current = self.agent.now(now_s)
        if self.current is not None:
            self.meters.show(self.current)
            self.addresses = tuple(device.bus_id for device in self.current.devices if device.bus_id)
        due = self.agent.take(now_s)
        if due is not None:
            self._tell(due)

    def _take(self, event: Collected | DeviceFault | Told | None) -> None:
        if isinstance(event, Collected):
            self.agent.collected(event)
        elif isinstance(event, DeviceFault):
            self.meters.faults.labels(event.word or "unknown").inc()
            if self.agent.faulted(event):
                log.warning("fault %s of %s", event.word, event.device)
                self._waiting.append(event.at_s)
            self.look.set()
        elif event is not None:
            try:
                event(self.agent)
            except StrataError as error:
                log.warning("%s", error)

    def _tell(self, fingerprint: Fingerprint) -> None:
        try:
            self._publish(fingerprint)
        except StrataError as error:
            status, retry_after_s = 0, 0.0
            if isinstance(error, ApiFailed):
                status, retry_after_s = error.status, error.retry_after_s
            log.warning("not published: %s", error)
            self.meters.publications.labels(str(status)).inc()
            self.agent.failed(self.clock(), retry_after_s=retry_after_s)
            return
        now_s = self.clock()
        self.meters.publications.labels("200").inc()
        for since_s in self._waiting:
            self.meters.published_after.observe(now_s - since_s)
        self._waiting = []
        self.agent.published(now_s)

    def _decide(self) -> None:
        while not self.stopped.is_set():
            self.turn()

    def _guarded(self, work: Source) -> None:
        try:
            work()
        except BaseException as error:
            log.exception("a thread of the agent ends")
            self._error = self._error or error
            self._on_end()


def run(
    agent: Agent,
    listener: socket.socket,
    *,
    collect: Collect,
    publish: Callable[[Fingerprint], None],
    every_s: float,
    at_start: bool,
    probe_every_s: float | None,
    root: Path,
) -> None:
    """Run the agent and answer HTTP until SIGTERM or SIGINT. Raises what ended a thread."""
    from strata.cluster.health_pages import make_pages

    runner = AgentRunner(
        agent, publish=publish, meters=AgentMetrics(), on_end=partial(os.kill, os.getpid(), signal.SIGTERM)
    )
    meters, stopped, clock = runner.meters, runner.stopped, runner.clock

    def addresses() -> tuple[str, ...]:
        return runner.addresses

    sources = (
        partial(ask_tools, collect, took=meters.collection.observe, every_s=every_s, look=runner.look),
        partial(watch_errors, addresses, root=root),
        partial(watch_presence, addresses, root=root),
        partial(listen_for_xids, nvml.load),
    )
    benchmarks = partial(
        run_benchmarks,
        lambda: runner.current,
        runner.put,
        at_start=at_start,
        probe_every_s=probe_every_s,
        stopped=stopped,
        wall_clock=time.time,
    )
    runner.start(*(partial(source, runner.put, stopped=stopped, clock=clock) for source in sources), benchmarks)
    try:
        frame = make_pages(
            meters.render,
            requests=meters.http,
            unwell=lambda: "" if runner.is_alive() else "it hangs",
        )
        serve(frame, listener, drain_s=0.0)
    finally:
        runner.stop()
