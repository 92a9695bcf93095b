"""The scheduler in real time: a clock, the store, drivers apart, and the one loop between them.

Every turn takes what users want and what drivers saw, lets `core` decide, writes the outcome down, and only
then has it carried out. Killed anywhere, the next daemon finds the snapshot as it was written, sees at its drivers
what runs, and goes on: nothing is started twice, for drivers know what they started.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from strata.clock import Clock
from strata.control.choosing import JobDecision
from strata.control.core import Outcome, Scheduler
from strata.control.driver import Driver
from strata.control.drivers.apart import Apart
from strata.control.drivers.launch import safe
from strata.control.jobfile import job_of
from strata.control.passive import Transfers, corroborated
from strata.control.prospects import refusals
from strata.control.state import (
    DomainSeen,
    DomainSilent,
    JobSpec,
    LinkSeen,
    Observation,
    Probe,
    Snapshot,
    Start,
    Stop,
)
from strata.control.store import Kept, Store
from strata.control.watch import Watch
from strata.decision import Reason
from strata.errors import StrataError, UsageError
from strata.fleet.fleet import Fleet

log = logging.getLogger(__name__)

TURN_S: Final = 1.0
DEADLINE_S: Final = 20.0
"""For one call of a driver: a slow API server answers within it, a hung one does not."""

END_S: Final = 10.0
"""For calls that are under way at the end: what they start is then known to the domain."""


def steady_clock(wall: Clock = time.time, monotonic: Clock = time.monotonic) -> Clock:
    """Return Unix seconds that never go back, though somebody sets the machine's clock."""
    offset = wall() - monotonic()
    return lambda: offset + monotonic()


def not_before(kept: Snapshot, clock: Clock) -> Clock:
    """Return a clock that goes on from what was kept, where the machine's was set back while we were down."""
    times = [job.decided_s or 0.0 for job in kept.jobs.values()]
    times += [part.seen_s for attempt in kept.attempts.values() for part in attempt.parts.values()]
    times += [estimate.seen_s or 0.0 for estimate in kept.links.values()]
    behind_s = max(0.0, max(times, default=0.0) - clock())
    return lambda: clock() + behind_s


@dataclass(frozen=True, eq=False, slots=True)
class Sites:
    """What a fleet file gives: nominal domains and links, what runs work in them, what measures a link.

    close: ends what measures; called once other sites have taken over.
    """

    fleet: Fleet
    drivers: Mapping[str, Driver]
    probe: Callable[[Probe], LinkSeen | None] | None = None
    close: Callable[[], None] = lambda: None


class Daemon:
    """One running scheduler. Methods other than `run` may be called from any thread."""

    def __init__(
        self, store: Store, scheduler: Scheduler, sites: Sites, *, reread: Callable[[], Sites] | None = None,
        probe_every_s: float = 5.0, clock: Clock | None = None, turn_s: float = TURN_S,
        deadline_s: float = DEADLINE_S,
    ) -> None:  # fmt: skip
        kept = store.load(sites.fleet, runs_on=(), now_s=0.0)
        self.store, self.scheduler, self.clock = store, scheduler, not_before(kept, clock or steady_clock())
        self.turns = 0
        self._turn_s, self._deadline_s, self._probe_every_s = turn_s, deadline_s, probe_every_s
        self._reread, self._is_edited = reread, False
        self._seen: list[Observation] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._is_over = threading.Event()
        self._watchers: list[Callable[[], object]] = []
        self._apart: dict[str, Apart] = {}
        self._close: Callable[[], None] = lambda: None
        self.snapshot = kept
        self._work_on(sites)

    def _work_on(self, sites: Sites) -> None:
        """Take up what was kept, on these sites. Raises UsageError where one that runs something is missing."""
        snapshot = self.store.load(sites.fleet, runs_on=tuple(sites.drivers), now_s=self.clock())
        for attempt in snapshot.live:
            for name in set(attempt.parts) - sites.drivers.keys():
                raise UsageError(
                    f"{name} runs a part of {attempt.job} and is not among the domains that have a driver",
                    hint=f"put it back, strata drain {name}, and take it out when nothing runs there",
                )
        for apart in self._apart.values():
            apart.close()
        with self._lock:  # what was seen of the fleet before is seen again, as far as it is there
            self._seen, self.drivers = [], dict(sites.drivers)
        # Domains stay as they were seen last: who holds devices that are gone is told when they are seen next.
        known = {name: view for name, view in self.snapshot.domains.items() if name in snapshot.domains}
        self.snapshot, self._probe = replace(snapshot, domains={**snapshot.domains, **known}), sites.probe
        before, self._close = self._close, sites.close
        before()
        self._transfers = Transfers(sites.fleet, every_s=self._probe_every_s)
        self._apart = {
            name: Apart(
                name, driver, self.see, clock=self.clock, every_s=driver.every_s, deadline_s=self._deadline_s
            )
            for name, driver in sites.drivers.items()
        }

    def reload(self) -> None:
        """Have the fleet read again before the next turn; one that cannot be used is said to be, and left."""
        self._is_edited = True
        self._wake.set()

    def submit(self, piece: Mapping[str, Any], *, is_strict: bool = False) -> JobSpec:
        """Keep a job; once this returns it is not lost. Raises BadFile and UsageError.

        is_strict: refuse one that could not run if every device were free; else it waits for another fleet.
        """
        spec = job_of(piece, self.clock())
        if "/" in spec.name or not spec.name.isprintable() or len(safe(spec.name)) > 200:
            hint = "no slash, nothing that cannot be printed, at most 200 bytes"
            raise UsageError(f"name {spec.name[:40]!r} cannot be that of a folder and of a page", hint=hint)
        if is_strict and (reasons := self.refusals(spec)):
            why = "; ".join(map(str, reasons))  # the first names the job
            raise UsageError(why, hint="without --strict it is queued for another fleet")
        self.store.submit(spec, piece)
        self._wake.set()
        return spec

    def refusals(self, spec: JobSpec) -> tuple[Reason, ...]:
        """Return why a job could never run here, and what would help; empty where it could."""
        fleet = self.snapshot.fleet
        candidates = self.scheduler.plans(fleet, spec)
        return refusals(fleet, spec, candidates, clock=time.perf_counter)

    def cancel(self, job: str) -> None:
        """End a job. Raises UsageError where there is none of the name."""
        if job not in self.store.names():
            raise UsageError(f"there is no job {job!r}", hint="strata jobs")
        self._request("cancel", job)

    def drain(self, domain: str, *, is_drained: bool = True) -> None:
        """Start nothing new in a domain and move away what runs there, or undo it. Raises UsageError."""
        if domain not in self.drivers:
            raise UsageError(f"there is no domain {domain!r} that runs work", hint=", ".join(sorted(self.drivers)))
        self._request("drain" if is_drained else "undrain", domain)

    def see(self, observation: Observation) -> None:
        """Take in what a driver or a probe saw."""
        with self._lock:
            if isinstance(observation, DomainSeen | DomainSilent) and observation.domain not in self.drivers:
                return
            self._seen.append(observation)
            if isinstance(observation, DomainSeen):
                if self._is_news(observation):
                    self._wake.set()
                self._transfers.take_in(observation.transfers, self.clock())
                self._seen += self._transfers.seen(self.clock())

    def _is_news(self, seen: DomainSeen) -> bool:
        """Whether a part began or ended: what follows need not wait for the next turn."""
        attempts = self.snapshot.attempts
        known = (
            (attempts[part.attempt].parts.get(seen.domain), part)
            for part in seen.parts
            if part.attempt in attempts
        )
        return any(before is not None and before.phase is not part.phase for before, part in known)

    def run(self) -> None:
        """Turn until `stop`."""
        prober = threading.Thread(target=self._watch_links, daemon=True, name="probes")
        prober.start()
        try:
            while not self._is_over.is_set():
                try:
                    self.turn()
                except StrataError as error:  # a full disk, a locked store: nothing was done, so nothing is lost
                    log.error("%s; trying again", error)
                self._wake.wait(self._turn_s)
                self._wake.clear()
        finally:
            self._is_over.set()
            for apart in self._apart.values():
                apart.close()
            for apart in self._apart.values():
                apart.join(END_S)
            prober.join()

    def stop(self) -> None:
        """End `run` soon. What was started runs on."""
        self._is_over.set()
        self._wake.set()

    def turn(self) -> Outcome:
        """Take in, decide, write down, carry out. Raises StrataError where it cannot be written."""
        if self._is_edited and self._reread is not None:
            self._is_edited = False
            try:
                self._work_on(self._reread())
                log.info("the fleet was read again: %s", ", ".join(self.drivers))
            except StrataError as error:
                log.error("%s; the fleet stays as it was", "; ".join(error.lines()))
        for apart in self._apart.values():
            apart.check()
        newest, requests = self.store.inbox()
        with self._lock:
            seen, self._seen = self._seen, []
        before = self.snapshot
        try:
            outcome = self.scheduler.step(replace(before, inbox=(*requests, *seen)), self.clock())
            decisions = [Kept(d.at_s, d.job, plain_decision(d)) for d in outcome.decisions]
            self.store.save(before, outcome.snapshot, dealt_with=newest, decisions=decisions)
        except BaseException:
            with self._lock:
                self._seen = [*seen, *self._seen]
            raise
        self.snapshot = outcome.snapshot
        for action in outcome.actions:
            if isinstance(action, (Start, Stop)) and action.domain in self._apart:
                self._apart[action.domain].carry_out(action)
        self.turns += 1
        if _differs(before, outcome.snapshot):
            for watcher in list(self._watchers):
                watcher()
        return outcome

    @contextmanager
    def watched(self, watcher: Callable[[], object]) -> Iterator[None]:
        """Meanwhile call `watcher`, which may not wait, after every pass that changed something."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    def _request(self, kind: str, name: str) -> None:
        self.store.request(kind, name)
        self._wake.set()

    def _watch_links(self) -> None:
        """Probe every link once in `probe_every_s`, also those that nobody uses."""
        watch = Watch(every_s=self._probe_every_s)
        while (probe := self._probe) is not None and not self._is_over.is_set():
            links = self.scheduler.probes(self.snapshot.fleet)
            watch.keep(
                ((p.source, p.dest) for p in links if {p.source, p.dest} <= self.drivers.keys()), self.clock()
            )
            pair, due_s = watch.next() or (None, self.clock() + self._probe_every_s)
            wait_s = due_s - self.clock()
            if pair is None or wait_s > 0:
                self._is_over.wait(min(wait_s, self._probe_every_s))
                continue
            watch.begun(pair, self.clock())
            if not self._transfers.covers(pair, self.clock()):
                seen = corroborated(partial(probe, Probe(*pair)), self.snapshot)
                if seen is not None and probe is self._probe:  # else the fleet was read again meanwhile
                    self.see(replace(seen, at_s=self.clock()))


def plain_decision(decision: JobDecision) -> dict[str, Any]:
    """Return the JSON form of a decision: the chosen plan, the reasons, and the others with theirs."""
    made = decision.decision
    return {
        "choice": None if made.choice is None else made.choice.to_dict(),
        "step_time_s": decision.step_time_s,
        "reasons": [reason.to_dict() for reason in made.reasons],
        "alternatives": [other.to_dict() for other in made.alternatives],
        "trust": str(made.trust),
    }


def _differs(before: Snapshot, after: Snapshot) -> bool:
    return (before.jobs, before.attempts) != (after.jobs, after.attempts)
