"""Which CPUs each layer gets where the kernel cannot decide it at run time: whole cores, beside the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from strata.host.machine.cpus import Cpus
from strata.host.threads.classify import Classified
from strata.host.threads.pools import LayerName

LEAST_CORES: Final = 4
"""Below this no core can be spared: a job's own loaders would stall it."""
SUPPORT_SHARE: Final = 8
BUSY: Final = 0.05


@dataclass(frozen=True, slots=True)
class CpuSplit:
    """CPUs for critical threads alone, CPUs for all others, and those of them that support may use.

    Empty where the machine is too small to be split.
    """

    critical: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    support: tuple[int, ...] = ()

    def of(self, layer: LayerName) -> tuple[int, ...]:
        """Return the CPUs of a layer; empty for all there are."""
        if layer == "critical":
            return self.critical
        return self.support if layer == "support" else self.shared

    def why(self, layer: LayerName) -> str:
        """Return why a layer has its CPUs."""
        if layer == "critical":
            return "CPUs beside its GPUs that nobody else may use"
        return "a fixed number of CPUs" if layer == "support" else "all but those of critical threads"


def split(cpus: Cpus, threads: Sequence[Classified]) -> CpuSplit:
    """Return the CPUs of each layer.

    Critical threads get a core for each that is really busy, at least one for each node with GPUs, at most half of
    a node's; the first core of the machine, where most interrupts land, comes last.
    """
    busy = [thread for thread in threads if thread.layer == "critical" and thread.thread.busy >= BUSY]
    if len(cpus.cores) < LEAST_CORES or not any(thread.layer == "critical" for thread in threads):
        return CpuSplit()
    nodes = sorted({thread.node for thread in threads if thread.layer == "critical" and thread.node is not None})
    chosen: list[int] = []
    places: list[int | None] = [*nodes] or [None]
    for node in places:
        cores = [core for core in cpus.cores if node is None or core[0] in cpus.nodes.get(node, ())]
        wanted = sum(thread.node == node for thread in busy) if node is not None else len(busy)
        free = cores[1:] + cores[:1] if cores and cores[0] == cpus.cores[0] else cores
        for core in free[: max(1, min(wanted, len(cores) // 2))]:
            chosen += core
    shared = tuple(cpu for cpu in cpus.numbers if cpu not in chosen)
    fixed = max(1, len(cpus.numbers) // SUPPORT_SHARE)
    return CpuSplit(tuple(sorted(chosen)), shared, shared[-fixed:])
