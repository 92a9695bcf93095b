"""Time that a hypervisor gave to others while a CPU of ours had work: no trace of this machine shows it.

References
----------
proc(5), /proc/stat: the eighth figure of each CPU, in ticks of USER_HZ; Linux Documentation/virt/kvm/x86/msr.rst.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata.host.machine.kernel import read_attribute

COLUMN = 8


@dataclass(frozen=True, slots=True)
class Steal:
    """What was taken from each CPU [s] within some seconds."""

    seconds: float
    by_cpu_s: Mapping[int, float]

    @property
    def worst(self) -> tuple[int, float]:
        """Return the CPU from which most was taken, and its share of the time; (-1, 0) for none."""
        cpu = max(self.by_cpu_s, key=self.by_cpu_s.__getitem__, default=-1)
        return cpu, self.by_cpu_s.get(cpu, 0.0) / max(self.seconds, 1e-9)

    @property
    def share(self) -> float:
        """Return the share of all CPUs' time."""
        return sum(self.by_cpu_s.values()) / max(self.seconds * len(self.by_cpu_s), 1e-9)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {"seconds": round(self.seconds, 3), "by_cpu_s": {str(cpu): s for cpu, s in self.by_cpu_s.items()}}

    @classmethod
    def of_dict(cls, data: Mapping[str, Any]) -> Steal:
        """Read the JSON form. Raises KeyError, TypeError, ValueError."""
        return cls(float(data["seconds"]), {int(cpu): float(s) for cpu, s in data["by_cpu_s"].items()})


def ticks(root: Path = Path("/")) -> dict[int, int]:
    """Return how much was taken from each CPU since boot, in ticks; nothing where the kernel does not count it."""
    ticks = {}
    for words in (line.split() for line in read_attribute(root / "proc/stat").splitlines()):
        if words and words[0].startswith("cpu") and words[0][3:].isdecimal() and len(words) > COLUMN:
            ticks[int(words[0][3:])] = int(words[COLUMN])
    return ticks


def between(before: Mapping[int, int], after: Mapping[int, int], *, seconds: float) -> Steal:
    """Return what was taken between two readings of `ticks`."""
    hz = os.sysconf("SC_CLK_TCK")
    return Steal(seconds, {cpu: max(after[cpu] - before[cpu], 0) / hz for cpu in after if cpu in before})
