"""Which job and rank a process is of: what strata's control loop, torchrun or Slurm told it, else its cgroup.

References
----------
proc(5): /proc/PID/environ. Variables: strata's launchers (STRATA_JOB, STRATA_PROGRESS), torchrun (RANK), Slurm.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.host.machine.cgroups import cgroup_of
from strata.host.machine.kernel import read_attribute
from strata.host.threads.processes import is_contained, job_of

ENVIRON_BYTES: Final = 2**17
"""What is read of a process's variables, at most."""
TAIL_BYTES: Final = 4096
"""What is read of a progress file: its last lines."""
LONGEST: Final = 64
"""Characters of a label: a job may call itself anything."""
PATH_MAX: Final = 4096
"""Bytes of a path that the kernel opens (linux/limits.h)."""
_JOB: Final = ("STRATA_JOB", "SLURM_JOB_ID")
_RANK: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


@dataclass(frozen=True, slots=True)
class JobIdentity:
    """job: "" for what is of none. rank: "" where there is none. progress: the file in which it tells steps."""

    job: str = ""
    rank: str = ""
    progress: str = ""


def identity_of(environment: Mapping[str, str], cgroup: str) -> JobIdentity:
    """Return the job of a process by its variables, else the pod, container or batch job of its cgroup."""
    named = next((environment[name] for name in _JOB if environment.get(name)), "")
    job = named or (job_of(cgroup) if is_contained(cgroup) else "")
    rank = next((environment[name] for name in _RANK if environment.get(name, "").isdecimal()), "")
    label = "".join(letter if letter.isprintable() else "?" for letter in job)[:LONGEST]
    progress = environment.get("STRATA_PROGRESS", "")
    # What the kernel would not open is not kept either: a process's variables may be as long as it likes.
    return JobIdentity(label, rank[:LONGEST] if label else "", progress if len(progress) < PATH_MAX else "")


def job_name(pid: int, root: Path = Path("/")) -> str:
    """Return the job of a process that runs; "" for what is of none, and where that is hidden."""
    folder = root / "proc" / str(pid)
    return identity_of(environment_of(folder), cgroup_of(read_attribute(folder / "cgroup"), root)).job


def environment_of(folder: Path) -> dict[str, str]:
    """Return a process's variables as it was started with them; none where they are hidden."""
    try:
        descriptor = os.open(folder / "environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        raw = os.read(descriptor, ENVIRON_BYTES)
    except OSError:
        return {}
    finally:
        os.close(descriptor)
    pairs = (entry.partition(b"=") for entry in raw.split(b"\0"))
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs}


def step_of(folder: Path, progress: str) -> int | None:
    """Return the last step that a process's program reported; None where it reports none.

    The path is the program's word: only an ordinary file is read, and of that the end.
    """
    if not progress.startswith("/"):
        return None
    try:
        descriptor = os.open(
            f"{folder}/root{progress}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        raw = os.pread(descriptor, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
    finally:
        os.close(descriptor)
    for line in reversed(raw.splitlines()):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):  # cut off, or another message
            continue
        if isinstance(step, int):
            return step
    return None
