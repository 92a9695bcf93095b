"""The scheduler as it runs, store and threads and all, on drivers that do nothing: memory, and submit to start."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from strata.control.core import Scheduler
from strata.control.daemon import Daemon, Sites
from strata.control.state import DomainSeen, LinkSeen, PartPhase, PartSeen, Start
from strata.control.store import Store
from strata.fleet.fleet import Domain, Fleet

EACH: Final = 20
"""Measurements of a link that come together in a turn of the memory's bench."""

_MOST_S: Final = 60.0


class IdleDriver:
    """A domain whose parts run from the moment they are started until they are stopped, and do nothing."""

    every_s: ClassVar[float] = 1.0
    lost_after_s: ClassVar[float] = 60.0

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._phases: dict[str, PartPhase] = {}
        self.started = threading.Event()

    def observe(self, now_s: float) -> DomainSeen:
        """Return all parts."""
        parts = tuple(PartSeen(id_, phase) for id_, phase in tuple(self._phases.items()))
        return DomainSeen(self._domain.name, now_s, self._domain.num_devices, parts)

    def start(self, start: Start) -> None:
        """Have it run."""
        self._phases.setdefault(start.attempt.id, PartPhase.RUNNING)
        self.started.set()

    def stop(self, attempt: str, *, grace_s: float) -> None:
        """Have it ended at once."""
        self._phases[attempt] = PartPhase.ENDED

    def logs(self, attempt: str, *, follow: bool = False) -> Iterator[str]:
        """Yield nothing: nothing is written."""
        return iter(())


def memory(fleet: Fleet, scheduler: Scheduler, observations: int) -> dict[str, Any]:
    """Feed a daemon so many observations of links and domains; return how it and its store grew after a tenth."""
    rng, clock = np.random.default_rng(0), _Clock()
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "s.db") as store:
        daemon = Daemon(store, scheduler, Sites(fleet, {}), clock=clock)
        turns = -(-observations // (EACH * len(fleet.links)))
        for turn in range(turns):
            for _ in range(EACH):
                clock.now_s += 1.0
                for pair, link in fleet.links.items():
                    rate = link.bandwidth_bytes_per_s * rng.uniform(0.7, 1.3)
                    daemon.see(LinkSeen(*pair, clock.now_s, rate))
            for domain in fleet.domains:
                daemon.see(DomainSeen(domain.name, clock.now_s, domain.num_devices))
            daemon.turn()
            if turn == turns // 10:
                first = _resident_bytes(), _size_bytes(Path(folder))
        grown, kept = _resident_bytes() - first[0], _size_bytes(Path(folder))
    return {
        "observations": turns * EACH * len(fleet.links), "grown_bytes": grown, "store_bytes": kept,
        "store_grown_bytes": kept - first[1],
    }  # fmt: skip


def submit_to_start(fleet: Fleet, scheduler: Scheduler, piece: Mapping[str, Any], jobs: int) -> dict[str, Any]:
    """Submit jobs one after another to a daemon that runs, each once the one before was started; return the waits.

    From the call of submit, which ends with the job on disk, until a driver is asked to start it. Planning is left
    out: the scheduler has the plans.
    """
    drivers = {domain.name: IdleDriver(domain) for domain in fleet.domains}
    waits, began = [], threading.Event()
    for driver in drivers.values():
        driver.started = began
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "s.db") as store:
        daemon = Daemon(store, scheduler, Sites(fleet, drivers))
        loop = threading.Thread(target=daemon.run, daemon=True)
        loop.start()
        while len(daemon.snapshot.domains) < len(drivers) or daemon.turns < 2:
            time.sleep(0.01)
        for number in range(jobs):
            began.clear()
            begun_s = time.perf_counter()
            daemon.submit({**piece, "document": {**piece["document"], "name": f"job{number}"}})
            began.wait(_MOST_S)
            waits.append(time.perf_counter() - begun_s)
            daemon.cancel(f"job{number}")  # so that there is room for the next
        daemon.stop()
        loop.join()
    return {"jobs": jobs, "p50_s": float(np.percentile(waits, 50)), "p99_s": float(np.percentile(waits, 99))}


class _Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _resident_bytes() -> int:
    """Return what is resident of this process (proc(5), statm's second number, in pages)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())
