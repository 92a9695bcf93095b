"""Domains on this machine: processes, in a network namespace of their own where the fleet names one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

from strata.control.drivers import devices
from strata.control.drivers.launch import RANKS, Workplace, launch_of, safe, search_path
from strata.control.drivers.part import KEPT_S, PartFolder
from strata.control.state import DomainSeen, PartPhase, PartSeen, Start
from strata.errors import StrataError
from strata.fleet.fleet import Domain


@dataclass(frozen=True, slots=True)
class LocalDriver:
    """A domain of processes. namespace: of `ip netns`; interface: the device in it that torch's gloo shall use."""

    domain: str
    workplace: Workplace
    namespace: str | None = None
    interface: str | None = None
    every_s: ClassVar[float] = 1.0
    lost_after_s: ClassVar[float] = 12 * every_s

    def observe(self, now_s: float) -> DomainSeen:
        """Return every part that has begun here."""
        self._check()
        parts = [seen for path in self._folders() if (seen := self._seen(path))]
        running = [self._part(part.attempt) for part in parts if part.phase is PartPhase.RUNNING]
        transfers = tuple(transfer for part in running for transfer in part.transfers())
        return DomainSeen(self.domain, now_s, self._entry.num_devices, tuple(parts), transfers=transfers)

    def start(self, start: Start) -> None:
        """Run the part in a process that outlives us. Does nothing where it has begun, or was stopped."""
        self._check()
        with self._alone():  # devices are given to one part at a time
            self._start(start)

    def _start(self, start: Start) -> None:
        part = self._part(start.attempt.id)
        launch = launch_of(start, self.workplace, part.path)
        if any("MASTER_ADDR" not in environment for environment in launch.environments.values()):
            head = start.attempt.plan.domains[0]
            raise StrataError(f"{self.domain}: rank 0 is in {head}, whose driver needs an `address` for that")
        given = devices.free(
            self._entry.num_devices, len(launch.environments), taken=self._taken(start.attempt.id),
            wanted=start.attempt.devices.get(self.domain, ()),
        )  # fmt: skip
        if given is None:
            return  # what holds them is on its way out: we are asked again
        # As torchrun does: by default every rank would take all cores for its own.
        own = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONUNBUFFERED": "1"}
        own["PATH"] = search_path(os.environ.get("PATH", os.defpath))
        if self.interface:
            own |= {"GLOO_SOCKET_IFNAME": self.interface, "NCCL_SOCKET_IFNAME": self.interface}
        vendor = self._entry.accelerator.vendor
        seen = devices.visible(launch.environments, launch.nodes, given, vendor=vendor, ours=os.environ)
        wanted = {
            "attempt": start.attempt.id,
            "steps": start.spec.steps,
            "checkpoints": str(self.workplace.checkpoints(start.spec.name)) if start.spec.can_resume else None,
            "command": list(start.spec.command),
            "devices": given,
            "environments": [{**own, **environment} for environment in seen],
        }
        if part.ask(wanted, {RANKS: launch.ranks_json}):
            inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
            runner = [*inside, sys.executable, "-m", "strata.control.drivers.runner", str(part.path)]
            done = subprocess.run(runner, capture_output=True, text=True, check=False, start_new_session=True)
            if done.returncode:
                raise StrataError(f"{self.domain}: nothing can be started: {done.stderr.strip()[-300:]}")

    def stop(self, attempt: str, *, grace_s: float) -> None:
        """Ask a part to end, and have it killed after the grace."""
        self._part(attempt).stop(grace_s)

    def logs(self, attempt: str, *, follow: bool = False) -> Iterator[str | None]:
        """Yield what the ranks of a part wrote; None where a log that is followed has nothing new."""
        part = self._part(attempt)
        return part.lines(lambda: follow and not part.is_over())

    @property
    def _entry(self) -> Domain:
        return next(domain for domain in self.workplace.fleet.domains if domain.name == self.domain)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        folder = self.workplace.domain(self.domain)
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder.with_name(f"{folder.name}.lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _taken(self, besides: str) -> set[int]:
        """Return the devices of the parts that run, or may begin at any time."""
        parts = (PartFolder(path) for path in self._folders() if path.name != safe(besides))
        return {device for part in parts if not part.is_over() for device in part.devices()}

    def _check(self) -> None:
        if self.namespace and not Path("/run/netns", self.namespace).exists():
            raise StrataError(f"{self.domain}: the network namespace {self.namespace} is gone")

    def _part(self, attempt: str) -> PartFolder:
        return PartFolder(self.workplace.part(self.domain, attempt))

    def _folders(self) -> Iterator[Path]:
        folder = self.workplace.domain(self.domain)
        if folder.is_dir():
            yield from (path for path in folder.iterdir() if path.is_dir())

    def _seen(self, path: Path) -> PartSeen | None:
        part = PartFolder(path)
        end = part.end()
        if end is not None and end["at_s"] < time.time() - KEPT_S:
            return None
        if end is None and not part.has_begun:
            return None  # asked first: one that begins while we look would have nobody yet, as one that is lost
        return part.seen(unquote(path.name), is_running=part.is_held())
