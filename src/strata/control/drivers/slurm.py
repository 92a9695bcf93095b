"""Domains that are Slurm clusters, or partitions of one: a part is a job, and a folder that its nodes see.

The folder says what to run and what came of it, the queue what waits and runs. A job is ours by its working
directory, so that a submit whose answer was lost is found again, and another scheduler's jobs are not ours.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import unquote

from strata.control.drivers.launch import RANKS, Workplace, launch_of, safe, search_path
from strata.control.drivers.part import KEPT_S, PartFolder
from strata.control.drivers.slurm_script import MARGIN_S, Scripts
from strata.control.drivers.slurm_tools import SlurmCluster, SlurmJob, SlurmNode, is_usable
from strata.control.state import DomainSeen, PartPhase, PartSeen, Start
from strata.files import write_json, write_text
from strata.fleet.schema import SlurmEntry

_FOLLOW_S: Final = 5.0
_TELL_S: Final = 10.0
"""From one signal to the next, where the first had no effect."""
_MOST_GRACE_S: Final = 65_535  # --signal takes no more


@dataclass(frozen=True, slots=True)
class SlurmDriver:
    """A domain of jobs in a cluster. entry: what the fleet file says; its `conf` is absolute."""

    domain: str
    workplace: Workplace
    entry: SlurmEntry
    every_s: ClassVar[float] = 5.0
    lost_after_s: ClassVar[float] = 24 * every_s  # controllers are restarted now and then

    @property
    def cluster(self) -> SlurmCluster:
        """The cluster's tools."""
        return SlurmCluster(Path(self.entry.conf) if self.entry.conf else None)

    def check(self) -> None:
        """Raise MissingPart or UsageError where no job can be submitted from here."""
        self.cluster.check()

    def observe(self, now_s: float) -> DomainSeen:
        """Return the devices of nodes that take jobs, less those of other people's jobs, and all our parts."""
        folders = list(self._folders())  # before the queue is read: a job that is submitted later is not missed
        nodes = self.cluster.nodes(self.entry.partition)
        # A second job of a part, which ends at once, does not hide the one that runs.
        jobs = {job.folder: job for job in sorted(self.cluster.jobs(), key=lambda job: job.is_running)}
        ours = [jobs[str(path)] for path in folders if str(path) in jobs]
        parts = [seen for path in folders if (seen := self._seen(path, jobs.get(str(path))))]
        running = [path for path in folders if str(path) in jobs and jobs[str(path)].is_running]
        devices = self._devices(nodes, sum(len(PartFolder(path).request()["ranks"]) for path in running))
        transfers = tuple(transfer for path in running for transfer in PartFolder(path).transfers())
        waiting = sum(job.is_waiting for job in ours)
        return DomainSeen(self.domain, now_s, devices, tuple(parts), queue=waiting, transfers=transfers)

    def start(self, start: Start) -> None:
        """Submit the part's job. Does nothing where it was, or was stopped."""
        part = self._part(start.attempt.id)
        if self._job_id(part) is not None:
            return
        launch = launch_of(start, self.workplace, part.path)
        scripts = self._scripts(start, part.path, launch.environments)
        wanted = {
            "attempt": start.attempt.id,
            "steps": start.spec.steps,
            "checkpoints": str(self.workplace.checkpoints(start.spec.name)) if start.spec.can_resume else None,
            "ranks": sorted(launch.environments),
        }
        if not part.ask(wanted, {RANKS: launch.ranks_json}):
            return
        # What was submitted before we were killed is in the queue.
        job = next((job.id for job in self.cluster.jobs() if job.folder == str(part.path)), None)
        if job is None:
            write_text(part.path / "batch.sh", scripts.batch())
            write_text(part.path / "rank.sh", scripts.rank())
            path = search_path(os.environ.get("PATH", os.defpath))
            job = self.cluster.submit(self._arguments(start, part, launch.nodes), {"PATH": path})
        write_json(part.path / "job.json", {"job": job})

    def stop(self, attempt: str, *, grace_s: float) -> None:
        """Ask a part to end; its script has it killed after the grace. One that waits leaves the queue."""
        part = self._part(attempt)
        part.stop(grace_s)
        job = self._job_id(part)
        signalled = part.path / "signalled"
        if job is None or (signalled.exists() and time.time() - signalled.stat().st_mtime < _TELL_S):
            return
        if part.end() is None:
            self.cluster.signal(job)
        elif not part.has_begun:
            self.cluster.cancel(job)
        signalled.touch()

    def logs(self, attempt: str, *, follow: bool = False) -> Iterator[str | None]:
        """Yield what the ranks of a part wrote; None where a log that is followed has nothing new."""
        part = self._part(attempt)
        asked_s, is_live = 0.0, follow

        def goes_on() -> bool:
            nonlocal asked_s, is_live
            if is_live and time.monotonic() - asked_s > _FOLLOW_S:
                jobs = [job for job in self.cluster.jobs() if job.folder == str(part.path)]
                asked_s, is_live = time.monotonic(), any(job.is_waiting or job.is_running for job in jobs)
            return is_live and part.end() is None

        return part.lines(goes_on)

    def _arguments(self, start: Start, part: PartFolder, nodes: Sequence[Sequence[int]]) -> list[str]:
        """Return the options of sbatch, its script last; nodes: the ranks of each."""
        most = max(map(len, nodes))
        grace = min(_MOST_GRACE_S, round(start.spec.grace_s) + MARGIN_S)
        options = [
            f"--job-name=strata-{safe(start.attempt.id)}",
            f"--chdir={part.path}",
            f"--output={part.path / 'log'}",
            "--open-mode=append",
            "--no-requeue",  # the scheduler makes another attempt
            f"--nodes={len(nodes)}",
            f"--ntasks={sum(map(len, nodes))}",
            f"--ntasks-per-node={most}",
            f"--signal=B:TERM@{grace}",
        ]
        if self.entry.gres:
            options.append(f"--gres={self.entry.gres}:{most}")
        if self.entry.partition:
            options.append(f"--partition={self.entry.partition}")
        return [*options, *self.entry.options, str(part.path / "batch.sh")]

    def _scripts(self, start: Start, folder: Path, environments: Mapping[int, Mapping[str, str]]) -> Scripts:
        own = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONUNBUFFERED": "1"}
        own["PATH"] = search_path(os.environ.get("PATH", os.defpath))
        if self.entry.interface:
            own |= {"GLOO_SOCKET_IFNAME": self.entry.interface, "NCCL_SOCKET_IFNAME": self.entry.interface}
        each = [{**own, **environments[rank]} for rank in sorted(environments)]
        names = start.attempt.plan.domains
        parts = {name: self.workplace.part(name, start.attempt.id) for name in names}
        head = parts[names[0]] if "MASTER_ADDR" not in each[0] else None
        others = [part for name, part in parts.items() if name != self.domain]
        return Scripts(folder, start.spec.command, each, start.spec.grace_s, tuple(others), head)

    def _devices(self, nodes: Iterable[SlurmNode], ours: int) -> int:
        domain = next(domain for domain in self.workplace.fleet.domains if domain.name == self.domain)
        has_reservation = any(option.startswith("--reservation") for option in self.entry.options)
        free = 0
        for node in nodes:
            if not is_usable(node, has_reservation=has_reservation):
                continue
            if self.entry.gres:
                free += node.gres.get(self.entry.gres, 0) - node.gres_used.get(self.entry.gres, 0)
            else:
                free += min(domain.devices_per_node, node.idle_cpus)
        return min(domain.num_devices, free + ours)

    def _seen(self, path: Path, job: SlurmJob | None) -> PartSeen | None:
        part = PartFolder(path)
        attempt = unquote(path.name)
        end = part.end()
        if end is not None and end["at_s"] < time.time() - KEPT_S:
            return None
        state = "" if job is None else f"Slurm job {job.id} is {job.state}"
        if end is not None or part.has_begun:
            # Files of a job that ended itself may be seen a little later than its state.
            is_running = job is not None and (job.is_running or job.is_waiting or job.has_ended_itself)
            seen = part.seen(attempt, is_running=is_running)
            if seen is not None and seen.phase is PartPhase.LOST:
                return replace(seen, message=state or "its Slurm job is gone")
            return seen
        if job is not None and (job.is_waiting or job.is_running):
            return PartSeen(attempt, PartPhase.WAITING, message=f"{state} ({job.reason})")
        if self._job_id(part) is None:
            return None
        return PartSeen(attempt, PartPhase.LOST, message=f"{state or 'its Slurm job is gone'}; it never began")

    def _job_id(self, part: PartFolder) -> str | None:
        with suppress(FileNotFoundError):
            data: dict[str, Any] = json.loads((part.path / "job.json").read_text(encoding="utf-8"))
            return str(data["job"])
        return None

    def _part(self, attempt: str) -> PartFolder:
        return PartFolder(self.workplace.part(self.domain, attempt))

    def _folders(self) -> Iterator[Path]:
        folder = self.workplace.domain(self.domain)
        if folder.is_dir():
            yield from (path for path in folder.iterdir() if path.is_dir())
