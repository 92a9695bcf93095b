"""What a machine looked like while a trace was recorded on it: a JSON file beside the trace.

CPUs with cores, caches and NUMA nodes; interrupts and where they landed; accelerators and their processes; threads
with their pools; limits of their cgroups; pressure. A report made elsewhere, or later, knows the machine from it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from strata.errors import BadFile, Fault
from strata.files import read_text
from strata.fleet.local import cpu_list
from strata.host.machine import cpus as cpus_of
from strata.host.machine.cpus import Cpu, Cpus
from strata.host.machine.kernel import read_attribute
from strata.host.machine.steal import Steal
from strata.host.record.census import census_of
from strata.host.record.interpreter_holders import holding_of
from strata.host.record.sleep_sampler import sleeping_of
from strata.host.threads.classify import classify, only
from strata.host.threads.observe import observe
from strata.host.threads.processes import Census
from strata.host.threads.sleep_calls import SleepCall

FORM: Final = "strata-host-snapshot/1"
FEEDING: Final = ("kernel-launch", "comms-monitor")
"""Pools whose threads hold up an accelerator the moment they wait."""
LIMITS: Final = ("cpu.weight", "cpu.idle", "cpu.max", "cpuset.cpus.effective", "cpuset.mems.effective", "cpu.stat")


def beside(trace: Path) -> Path:
    """Return where the snapshot of a trace is."""
    return trace.with_name(f"{trace.name}.host.json")


def take(root: Path = Path("/"), *, pid: int | None = None) -> dict[str, Any]:
    """Read the machine below a root with proc and sys, as the JSON of the file. Nothing it lacks is an error.

    pid: only threads of this process and its descendants can be critical.
    """
    snapshot = observe(root)
    everyone = classify(snapshot)
    threads = everyone if pid is None else only(everyone, snapshot, pid)
    job = snapshot.tree(pid) if pid is not None else snapshot.processes.keys()
    return {
        "form": FORM,
        "kernel": os.uname().release,
        "epoch_ahead_ns": epoch_ahead_ns(),
        "cpus": [asdict(cpu) for cpu in cpus_of.probe(root / "sys").all],
        "irqs": interrupts(root),
        "gpus": [
            {"index": gpu.index, "address": gpu.address, "numa_node": gpu.node, "pids": sorted(gpu.pids)}
            for gpu in snapshot.gpus
        ],
        "threads": [
            {
                "tid": thread.thread.tid,
                "pid": thread.thread.pid,
                "name": thread.thread.name,
                "cgroup": thread.thread.cgroup,
                "pool": thread.pool,
                "layer": thread.layer,
                "nice": thread.thread.nice,
                "cpus": cpus_of.show(thread.thread.cpus),
            }
            for thread in threads
        ],
        # Not the first thread of a job as such: whether it is critical, its trace tells.
        "critical": [
            thread.thread.tid for thread in everyone if thread.pool in FEEDING and thread.thread.pid in job
        ],
        "cgroups": _limits(root, {thread.thread.cgroup for thread in threads if thread.layer != "rest"}),
        "pressure": read_attribute(root / "proc/pressure/cpu"),
    }


def epoch_ahead_ns() -> int:
    """Return how far this machine's epoch clock is ahead of its monotonic one, which traces are recorded by."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)


@dataclass(frozen=True, slots=True)
class MachineSnapshot:
    """What a report asks of a snapshot; without arguments: nothing is known of the machine.

    epoch_ahead_ns: how far the epoch's clock is ahead of the trace's. critical: threads that feed accelerators.
    steal: what a hypervisor took meanwhile. census: the processes there were. job: the one that was recorded.
    sleeping: how often threads were found asleep in which call; holding: how often they were found to have their
    interpreter, where. numbers: those in the trace of threads that have
    another where it was recorded, which all that is here is told in; none where they are the same. job_name: what
    the job is called, "" where it has no name.
    """

    cpus: Cpus | None = None
    epoch_ahead_ns: int = 0
    critical: tuple[int, ...] = ()
    steal: Steal | None = None
    census: Census = field(default_factory=Census)
    job: int | None = None
    sleeping: Mapping[int, Mapping[SleepCall, int]] = field(default_factory=dict)
    holding: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    numbers: Mapping[int, int] = field(default_factory=dict)
    job_name: str = ""

    def clock_offset_ns(self, given_s: float | None) -> int:
        """Return how far a profiler's clock is ahead of the trace's: as given, else by this machine's clocks."""
        return self.epoch_ahead_ns if given_s is None else round(given_s * 1e9)


def machine_of(trace: Path, *, is_here: bool) -> MachineSnapshot:
    """Return the machine of a trace: from the snapshot beside it, else this one if the trace `is_here`.

    Raises BadFile for a file that is not a snapshot.
    """
    path = beside(trace)
    if path.exists():
        return read(path)
    return MachineSnapshot(cpus_of.probe(), epoch_ahead_ns()) if is_here else MachineSnapshot()


def read(path: Path) -> MachineSnapshot:
    """Read a snapshot. Raises BadFile."""
    try:
        data = json.loads(read_text(path))
        if data["form"] != FORM:
            raise ValueError(f"its form is {data['form']!r}")
        cpus = Cpus(tuple(Cpu(**{**cpu, "core": tuple(cpu["core"])}) for cpu in data["cpus"]))
        critical = tuple(int(tid) for tid in data["critical"])
        stolen = Steal.of_dict(data["steal"]) if data.get("steal") else None
        census = census_of(data.get("census", []))
        job = int(data["pid"]) if data.get("pid") else None
        sleeping = sleeping_of(data.get("sleeping", []))
        holding = holding_of(data.get("holding", []))
        numbers = {int(number): int(here) for number, here in data.get("numbers", {}).items()}
        ahead_ns = int(data["epoch_ahead_ns"])
        name = str(data.get("job") or "")
        return MachineSnapshot(cpus, ahead_ns, critical, stolen, census, job, sleeping, holding, numbers, name)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadFile([Fault(str(path), f"not a snapshot of a host: {error}")], hint=f"rm {path}") from None


def interrupts(root: Path = Path("/")) -> list[dict[str, Any]]:
    """Return each numbered interrupt: its name, where it may land, and how often it did on each CPU since boot."""
    lines = read_attribute(root / "proc/interrupts").splitlines()
    columns = [int(word[3:]) for word in (lines[0].split() if lines else []) if re.fullmatch(r"CPU\d+", word)]
    irqs = []
    for line in lines[1:]:
        number, _, rest = line.partition(":")
        words = rest.split()
        counts = [int(word) for word in words[: len(columns)] if word.isdecimal()]
        if not number.strip().isdecimal() or len(counts) < len(columns):
            continue
        irq = int(number)
        allowed = cpu_list(read_attribute(root / f"proc/irq/{irq}/smp_affinity_list"))
        irqs.append(
            {
                "irq": irq,
                "name": words[-1] if len(words) > len(columns) else "",
                "cpus": cpus_of.show(allowed),
                "counts": {str(cpu): count for cpu, count in zip(columns, counts, strict=True) if count},
            }
        )
    return irqs


def _limits(root: Path, groups: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    by_group = {}
    for group in sorted(group for group in groups if group):
        folder = root / "sys/fs/cgroup" / group.lstrip("/")
        limits = {name: text for name in LIMITS if (text := read_attribute(folder / name))}
        if limits:
            by_group[group] = limits
    return by_group
