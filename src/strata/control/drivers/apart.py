"""A driver in a thread of its own: what hangs in one domain holds nobody else up.

A call that is not back by its deadline is reported as silence and left behind with its thread; another goes on.
What it does late is harmless, for drivers do nothing twice; what it returns late is dropped. A part that cannot be
started in a domain that can be seen is a failure of that part alone: all else there runs on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from strata.clock import Clock
from strata.control.driver import Driver
from strata.control.state import DomainSeen, DomainSilent, Observation, PartPhase, PartSeen, Start, Stop

log = logging.getLogger(__name__)

MOST_LEFT_BEHIND: Final = 3
"""Threads that hang in one driver before no further one is tried."""


class Apart:
    """Observes a domain every `every_s` and carries out what it is given, in turn; `report` gets what is seen."""

    def __init__(
        self, domain: str, driver: Driver, report: Callable[[Observation], None], *, clock: Clock,
        every_s: float, deadline_s: float,
    ) -> None:  # fmt: skip
        self.domain, self.driver, self._report, self._clock = domain, driver, report, clock
        self._every_s, self._deadline_s = every_s, deadline_s
        self._work: queue.Queue[Start | Stop | None] = queue.Queue()
        self._waiting: set[tuple[str, str]] = set()
        self._refused: dict[str, tuple[float, str]] = {}  # attempts: since when they cannot be started, and why
        self._lock = threading.Lock()
        self._turn = 0
        self._busy_since_s: float | None = None
        self._stuck: list[threading.Thread] = []
        self._thread = self._begin()

    def carry_out(self, action: Start | Stop) -> None:
        """Have an action done soon; one that waits to be done already is not added again."""
        with self._lock:
            if _key(action) in self._waiting:
                return
            self._waiting.add(_key(action))
        self._work.put(action)

    def check(self) -> None:
        """Leave a call behind that is over its deadline: to be called now and then."""
        since_s = self._busy_since_s
        if since_s is None or self._clock() - since_s < self._deadline_s:
            return
        self._report(self._silent(f"no answer in {self._deadline_s:g} s"))
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) < MOST_LEFT_BEHIND:
            self._stuck.append(self._thread)
            self._thread = self._begin()

    def close(self) -> None:
        """Begin nothing more."""
        self._turn += 1
        self._work.put(None)

    def join(self, most_s: float) -> None:
        """Wait for a call that is still under way, but not for one that hangs."""
        self._thread.join(most_s)

    def _begin(self) -> threading.Thread:
        self._turn += 1
        self._busy_since_s = None
        thread = threading.Thread(target=self._run, args=(self._turn,), daemon=True, name=f"driver {self.domain}")
        thread.start()
        return thread

    def _run(self, turn: int) -> None:
        next_s = self._clock()
        while turn == self._turn:
            action: Start | Stop | None = None
            late_s = self._clock() - next_s
            if late_s <= self._every_s:  # else a look first: long actions would make a domain seem silent
                with suppress(queue.Empty):
                    action = self._work.get(timeout=max(0.0, -late_s))
            if turn != self._turn:
                if action is not None:
                    self._work.put(action)  # for the thread that took over
                return
            if action is not None:
                with self._lock:
                    self._waiting.discard(_key(action))
            self._busy_since_s = self._clock()
            try:
                seen = self._call(action)
            except Exception as error:  # a driver may fail in any way: the scheduler says so and goes on
                if turn != self._turn:
                    return
                log.warning("%s: %s", self.domain, error)
                seen, words = None, str(error) or repr(error)
                if action is None:
                    seen = self._silent(words)
                else:
                    self._refused.setdefault(_key(action)[1], (self._clock(), words))
            if turn != self._turn:
                return
            self._busy_since_s = None
            if seen is not None:
                self._report(seen)
                next_s = self._clock() + self._every_s

    def _silent(self, message: str) -> DomainSilent:
        return DomainSilent(self.domain, self._clock(), message, self.driver.lost_after_s)

    def _call(self, action: Start | Stop | None) -> Observation | None:
        match action:
            case Start():
                self.driver.start(action)
                self._refused.pop(action.attempt.id, None)
            case Stop():
                self.driver.stop(action.attempt, grace_s=action.grace_s)
            case None:
                return self._with_refused(self.driver.observe(self._clock()))
        return None

    def _with_refused(self, seen: DomainSeen) -> DomainSeen:
        """Return what was seen, with those failed that could not be started for as long as silence lasts."""
        known, since_s = {part.attempt for part in seen.parts}, self._clock() - self.driver.lost_after_s
        refused = {id_: item for id_, item in self._refused.items() if id_ not in known}
        self._refused = {id_: item for id_, item in refused.items() if item[0] > since_s}
        failed = (PartSeen(i, PartPhase.FAILED, message=refused[i][1]) for i in refused.keys() - self._refused)
        return replace(seen, parts=(*seen.parts, *failed))


def _key(action: Start | Stop) -> tuple[str, str]:
    return type(action).__name__, action.attempt.id if isinstance(action, Start) else action.attempt
