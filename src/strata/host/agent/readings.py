"""What the kernel counts of the whole machine: pressure, stolen and interrupt time, pages from afar, bandwidth.

References
----------
Linux Documentation: accounting/psi.rst, filesystems/proc.rst (/proc/stat), admin-guide/numastat.rst,
filesystems/resctrl.rst, admin-guide/cgroup-v2.rst (cpu.stat), scheduler/sched-ext.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from strata.host.machine.kernel import read_attribute

_IRQ, _SOFTIRQ, _STEAL = 6, 7, 8
_PRESSURE: Final = ("cpu", "memory", "io", "irq")
_TOTAL: Final = re.compile(r"^(some|full) .*total=(\d+)$", re.MULTILINE)

Counts = Mapping[tuple[str, ...], float]
"""A count by the values of its labels."""


@dataclass(frozen=True, slots=True)
class MachineReading:
    """Counters since boot; empty where this kernel or machine does not count them.

    pressure_s: by resource and `some` or `full`. seconds: `steal`, `irq`, `softirq` of all CPUs. numa_pages: by
    node, and `numa_miss`, `numa_foreign` or `other_node`. memory_bytes: by resctrl domain, and `total` or `local`.
    scheduler: that of sched_ext, "" for the kernel's own.
    """

    pressure_s: Counts = field(default_factory=dict)
    seconds: Counts = field(default_factory=dict)
    numa_pages: Counts = field(default_factory=dict)
    memory_bytes: Counts = field(default_factory=dict)
    scheduler: str = ""


def read_machine(root: Path = Path("/")) -> MachineReading:
    """Read the counters below a root with proc and sys."""
    pressure: dict[tuple[str, ...], float] = {
        (resource, kind): int(total) / 1e6
        for resource in _PRESSURE
        for kind, total in _TOTAL.findall(read_attribute(root / "proc/pressure" / resource))
    }
    words = read_attribute(root / "proc/stat").partition("\n")[0].split()
    hz = os.sysconf("SC_CLK_TCK")
    seconds: dict[tuple[str, ...], float] = {}
    if len(words) > _STEAL and words[0] == "cpu":
        seconds = {
            (name,): int(words[column]) / hz
            for name, column in (("irq", _IRQ), ("softirq", _SOFTIRQ), ("steal", _STEAL))
        }
    return MachineReading(pressure, seconds, _numa(root), _bandwidth(root), _scheduler(root))


def _numa(root: Path) -> dict[tuple[str, ...], float]:
    pages: dict[tuple[str, ...], float] = {}
    for folder in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        for name, _, count in (line.partition(" ") for line in read_attribute(folder / "numastat").splitlines()):
            if name in ("numa_miss", "numa_foreign", "other_node") and count.strip().isdecimal():
                pages[folder.name[4:], name] = float(count)
    return pages


def _bandwidth(root: Path) -> dict[tuple[str, ...], float]:
    return {
        (file.parent.name, file.name.split("_")[1]): float(count)
        for file in sorted((root / "sys/fs/resctrl/mon_data").glob("*/mbm_*_bytes"))
        if (count := read_attribute(file)).isdecimal()
    }


def _scheduler(root: Path) -> str:
    folder = root / "sys/kernel/sched_ext"
    return read_attribute(folder / "root/ops") if read_attribute(folder / "state") == "enabled" else ""


def throttled_s(groups: Iterable[str], root: Path = Path("/")) -> dict[str, float]:
    """Return how long `cpu.max`, or the quota of cgroup v1, has held back each cgroup that has such a limit."""
    held = {}
    for group in groups:
        for base, name, unit in (
            ("sys/fs/cgroup", "throttled_usec", 1e6),
            ("sys/fs/cgroup/cpu", "throttled_time", 1e9),
        ):
            text = read_attribute(root / base / group.lstrip("/") / "cpu.stat")
            if match := re.search(rf"^{name} (\d+)$", text, re.MULTILINE):
                held[group] = int(match[1]) / unit
    return held
