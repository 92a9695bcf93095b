"""What this kernel offers to a scheduling policy: cgroups, frequency, memory bandwidth, interrupts, sched_ext.

References
----------
Linux Documentation: admin-guide/cgroup-v2.rst, filesystems/resctrl.rst, core-api/irq/irq-affinity.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from strata.fleet.local import cpu_list


def read_attribute(path: Path) -> str:
    """Return what a file of procfs or sysfs says; "" for one that is not here, or not for us.

    Names of threads may hold any bytes: what is not UTF-8 stays visible as such.
    """
    try:
        return path.read_text(encoding="utf-8", errors="backslashreplace").strip()
    except OSError:
        return ""


def stat_fields(path: Path) -> list[str]:
    """Return the fields of a file `stat` behind the name, of which the 20th is the start; none where it has ended.

    The name may hold anything, also spaces and brackets.
    """
    text = read_attribute(path)
    fields = text[text.rfind(")") + 2 :].split()
    return fields if len(fields) >= 20 else []


def threads_in(process: Path) -> list[Path]:
    """Return the folders of a process's threads in procfs; none where it has ended.

    Not by a pattern: below Python 3.13 that raises where the process ends in the middle of it.
    """
    try:
        return [process / "task" / tid for tid in os.listdir(process / "task") if tid.isdecimal()]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class Kernel:
    """What can be asked of the kernel here, and in which state it is.

    cgroup_root: where cgroup v2 is mounted, "" where it is not. controllers: those it offers at its root.
    memory_nodes: NUMA nodes with memory. resctrl_domains: cache or memory ids whose bandwidth can be capped to
    a share; none where caps are absolute (AMD: 1/8 GB/s; mba_MBps: MB/s).
    has_bandwidth_monitor: whether resctrl counts memory traffic. irqs: movable interrupts and where they may land.
    """

    cgroup_root: str = ""
    controllers: frozenset[str] = frozenset()
    has_cpu_idle: bool = False
    memory_nodes: tuple[int, ...] = ()
    resctrl_domains: tuple[int, ...] = ()
    has_bandwidth_monitor: bool = False
    irqs: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    has_nvidia: bool = False


def probe(root: Path = Path("/")) -> Kernel:
    """Read what the kernel offers, below a root with proc and sys. What cannot be read is not offered."""
    cgroup = root / "sys/fs/cgroup"
    controllers = read_attribute(cgroup / "cgroup.controllers")
    resctrl = root / "sys/fs/resctrl"
    return Kernel(
        "/sys/fs/cgroup" if (cgroup / "cgroup.controllers").exists() else "",
        frozenset(controllers.split()),
        any(cgroup.glob("*/cpu.idle")),
        cpu_list(read_attribute(root / "sys/devices/system/node/has_memory")),
        _shared_bandwidth(_line(read_attribute(resctrl / "schemata"), "MB:")),
        any((resctrl / "mon_data").glob("*/mbm_total_bytes")),
        {
            int(folder.name): cpus
            for folder in sorted((root / "proc/irq").glob("[0-9]*"))
            if (cpus := cpu_list(read_attribute(folder / "smp_affinity_list")))
        },
        (root / "proc/driver/nvidia").exists(),
    )


def _shared_bandwidth(line: str) -> tuple[int, ...]:
    caps = {int(domain): int(cap) for domain, cap in re.findall(r"(\d+)=\s*(\d+)", line)}
    return tuple(caps) if all(cap <= 100 for cap in caps.values()) else ()


def _line(text: str, start: str) -> str:
    return next((line for line in text.splitlines() if line.strip().startswith(start)), "")
