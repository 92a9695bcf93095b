"""The CPUs of this machine: which share a core, a last-level cache, a NUMA node, and how fast they may run.

References
----------
Linux Documentation/ABI: stable/sysfs-devices-system-cpu; Documentation/admin-guide/pm/cpufreq.rst.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from strata.fleet import local
from strata.host.machine.kernel import read_attribute


@dataclass(frozen=True, slots=True)
class Cpu:
    """One online CPU. `core`: the CPUs of its core, itself included; `llc`: counted from 0 over the machine.

    governor: "" where the kernel has no cpufreq; frequencies 0 there.
    """

    number: int
    node: int = 0
    llc: int = 0
    core: tuple[int, ...] = ()
    governor: str = ""
    floor_hz: float = 0.0
    top_hz: float = 0.0


@dataclass(frozen=True)
class Cpus:
    """All online CPUs, by number."""

    all: tuple[Cpu, ...]

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """Return the CPUs' numbers."""
        return tuple(cpu.number for cpu in self.all)

    @cached_property
    def nodes(self) -> Mapping[int, tuple[int, ...]]:
        """Return the CPUs of each NUMA node that has some."""
        return _grouped((cpu.node, cpu.number) for cpu in self.all)

    @cached_property
    def llcs(self) -> Mapping[int, tuple[int, ...]]:
        """Return the CPUs of each last-level cache."""
        return _grouped((cpu.llc, cpu.number) for cpu in self.all)

    @cached_property
    def cores(self) -> tuple[tuple[int, ...], ...]:
        """Return the CPUs of each core, in order of their first."""
        return tuple(dict.fromkeys(cpu.core or (cpu.number,) for cpu in self.all))

    @property
    def has_smt(self) -> bool:
        """Return whether any core has two CPUs."""
        return any(len(core) > 1 for core in self.cores)


def probe(root: Path = Path("/sys")) -> Cpus:
    """Read the online CPUs below a sysfs root. What the kernel does not show counts as one node and one cache."""
    folder = root / "devices/system/cpu"
    online = local.cpu_list(read_attribute(folder / "online")) or tuple(
        sorted(int(cpu_folder.name[3:]) for cpu_folder in folder.glob("cpu[0-9]*"))
    )
    node_of = {cpu: node for node, cpus in local.probe(root).cpus.items() for cpu in cpus}
    caches: dict[tuple[int, ...], int] = {}
    return Cpus(tuple(_cpu(folder / f"cpu{number}", number, node_of.get(number, 0), caches) for number in online))


def show(cpus: Iterable[int]) -> str:
    """Return CPUs as the kernel writes them: `0-3,8`."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _cpu(folder: Path, number: int, node: int, caches: dict[tuple[int, ...], int]) -> Cpu:
    shared: tuple[int, ...] = ()
    for index in sorted((folder / "cache").glob("index[0-9]*")):
        shared = (
            local.cpu_list(read_attribute(index / "shared_cpu_list")) or shared
        )  # the last one is the last level
    core = local.cpu_list(read_attribute(folder / "topology/core_cpus_list")) or local.cpu_list(
        read_attribute(folder / "topology/thread_siblings_list")
    )
    # Where no cache is shown, a NUMA node stands for one.
    llc = caches.setdefault(shared or (-1 - node,), len(caches))
    return Cpu(
        number,
        node,
        llc,
        core or (number,),
        read_attribute(folder / "cpufreq/scaling_governor"),
        _hz(folder / "cpufreq/scaling_min_freq"),
        # What the processor could, and what it may: a floor above that is refused.
        _hz(folder / "cpufreq/scaling_max_freq") or _hz(folder / "cpufreq/cpuinfo_max_freq"),
    )


def _hz(path: Path) -> float:
    text = read_attribute(path)
    return int(text) * 1e3 if text.isdecimal() else 0.0


def _grouped(pairs: Iterable[tuple[int, int]]) -> Mapping[int, tuple[int, ...]]:
    groups = groupby(sorted(pairs), key=itemgetter(0))
    return {key: tuple(cpu for _, cpu in group) for key, group in groups}
