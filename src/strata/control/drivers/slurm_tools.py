"""One Slurm cluster, asked through its own tools: what they are called with, and what their answers mean.

Output is asked for column by column (`-o`, `-O`), which means the same in all versions; the shape of `--json` has
changed from one to the next. Formats and states: squeue(1), sinfo(1), sbatch(1) of Slurm 22.05 to 25.05.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Final

from strata.errors import MissingPart, StrataError, UsageError

LATE_S: Final = 9.0
"""For one call; two of them, an observation, fit the deadline of a driver. A tool itself gives up after 9 s."""

TOOLS: Final = ("sbatch", "squeue", "scancel", "sinfo")

_WAITING: Final = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
_RUNNING: Final = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
_USABLE: Final = frozenset({"idle", "mix", "mixed", "alloc", "allocated", "comp", "completing", "plnd", "planned"})
"""Of a node that takes jobs, or will when those on it end; `resv` too for those with a reservation."""
_NODE_COLUMNS: Final = "NodeList:120,StateCompact:20,PartitionName:80,Gres:240,GresUsed:240,CPUsState:40"
_WIDTHS: Final = (120, 20, 80, 240, 240, 40)


class Unreachable(StrataError):
    """The cluster's controller does not answer: it may later."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job in the queue, or that left it a while ago (MinJobAge)."""

    id: str
    state: str
    reason: str
    folder: str

    @property
    def is_waiting(self) -> bool:
        """Whether it has not begun."""
        return self.state in _WAITING

    @property
    def is_running(self) -> bool:
        """Whether something of it may run."""
        return self.state in _RUNNING

    @property
    def has_ended_itself(self) -> bool:
        """Whether its script came to its end, so that what came of it is written or about to be seen."""
        return self.state == "COMPLETED"  # the script ends with 0 whatever the ranks do


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node that takes jobs. gres, gres_used: by name ("gpu", "gpu:a100"). idle_cpus: by Slurm's count."""

    name: str
    state: str
    partition: str
    gres: Mapping[str, int]
    gres_used: Mapping[str, int]
    idle_cpus: int


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    """The tools with one cluster's configuration. conf: SLURM_CONF, None for what the tools find themselves."""

    conf: Path | None = None

    def check(self) -> None:
        """Raise MissingPart without the tools, UsageError where the cluster does not let us in."""
        for tool in TOOLS:
            if shutil.which(tool) is None:
                raise MissingPart(f"Slurm's {tool} is not installed here", hint="apt install slurm-client")
        if self.conf is not None and not self.conf.is_file():
            raise UsageError(f"{self.conf}: no such slurm.conf", hint="driver: {kind: slurm, conf: FILE}")
        try:
            self._run("sinfo", "--noheader", "--format=%n")
        except Unreachable:
            return  # it is down: jobs wait until it is back
        except StrataError as error:
            raise UsageError(str(error), hint="sinfo, with the same SLURM_CONF: munge and slurm.conf") from error

    def submit(self, arguments: Iterable[str], environment: Mapping[str, str]) -> str:
        """Submit a job and return its id."""
        answer = self._run("sbatch", "--parsable", *arguments, environment=environment)
        return answer.strip().partition(";")[0]  # with federation ID;CLUSTER

    def jobs(self) -> list[SlurmJob]:
        """Return this user's jobs, those that ended lately too."""
        user = f"--user={getuser()}"
        answer = self._run("squeue", "--noheader", "--states=all", user, "--format=%i|%T|%r|%Z")
        return list(parse_jobs(answer))

    def nodes(self, partition: str | None) -> list[SlurmNode]:
        """Return each node of a partition, or of all, once: in the first partition that has it."""
        inside = [f"--partition={partition}"] if partition else []
        answer = self._run("sinfo", "--noheader", "--Node", f"--Format={_NODE_COLUMNS}", *inside)
        first: dict[str, SlurmNode] = {}
        for node in parse_nodes(answer):
            first.setdefault(node.name, node)
        return list(first.values())

    def name(self) -> str:
        """Return what the cluster calls itself."""
        match = re.search(r"^ClusterName\s*=\s*(\S+)", self._run("scontrol", "show", "config"), re.MULTILINE)
        return match[1] if match else "slurm"

    def environment(self) -> dict[str, str]:
        """Return ours for Slurm's tools: without what it set for a job that we may run in, or our own secret."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_") and k != "STRATA_TOKEN"}
        conf = self.conf or os.environ.get("SLURM_CONF")
        return {**own, "SLURM_CONF": str(conf)} if conf else own

    def signal(self, job: str) -> None:
        """Have a job's script stop its ranks."""
        self._cancel("--batch", "--signal=TERM", job)

    def cancel(self, job: str) -> None:
        """Take a job out of the queue."""
        self._cancel(job)

    def _cancel(self, *arguments: str) -> None:
        try:
            self._run("scancel", *arguments)
        except Unreachable:
            raise
        except StrataError as error:
            if not re.search("nvalid job id|already completed|already completing", str(error)):
                raise

    def _run(self, tool: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        try:
            done = subprocess.run(
                (tool, *arguments), env={**self.environment(), **(environment or {})}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=LATE_S, check=False,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise MissingPart(f"Slurm's {tool} is not installed here", hint="apt install slurm-client") from error
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{tool} has not answered in {LATE_S:g} s") from error
        if done.returncode:
            error_text = " ".join(done.stderr.split())[-300:] or f"exit code {done.returncode}"
            may_pass = re.search("nable to contact|imed out|onnection refused|Zero Bytes", error_text)
            raise (Unreachable if may_pass else StrataError)(f"{tool}: {error_text}")
        return done.stdout


def parse_jobs(text: str) -> Iterator[SlurmJob]:
    """Yield the jobs of `squeue --format=%i|%T|%r|%Z`; the folder, last, may have any letters."""
    for line in text.splitlines():
        columns = line.split("|", 3)
        if len(columns) == 4:
            yield SlurmJob(*columns)


def parse_nodes(text: str) -> Iterator[SlurmNode]:
    """Yield the nodes of `sinfo --Node --Format=...`, columns of fixed widths."""
    for line in text.splitlines():
        columns, start = [], 0
        for width in _WIDTHS:
            columns.append(line[start : start + width].strip())
            start += width
        name, state, partition, gres, used, cpus = columns
        counts = [int(part) if part.isdecimal() else 0 for part in cpus.split("/")]
        if name and len(counts) == 4:
            yield SlurmNode(name, state, partition, _gres(gres), _gres(used), idle_cpus=counts[1])


def is_usable(node: SlurmNode, *, has_reservation: bool = False) -> bool:
    """Whether a node takes jobs. A `*` says that it does not answer; other marks are of power saving and plans."""
    state = node.state.rstrip("~#!%$@^-+")
    return state in _USABLE or (has_reservation and state == "resv")


def _gres(text: str) -> dict[str, int]:
    """Return counts by name and by name with type: of `gpu:a100:4(S:0-1)`, gpu and gpu:a100 are 4."""
    counts: dict[str, int] = {}
    for entry in re.sub(r"\([^)]*\)", "", text).split(","):
        *names, count = entry.split(":")
        if names and count.isdecimal():
            for name in {names[0], ":".join(name for name in names if name)}:
                counts[name] = counts.get(name, 0) + int(count)
    return counts
