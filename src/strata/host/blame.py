"""Who had the CPU that a thread waited for: by occupancy over the wait, so that the shares sum to the wait.

Not "who came next": that may be a thread of the kernel that ran for a moment, before another kept the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.host.interrupts import Interrupts
from strata.host.runs import Runs
from strata.host.trace.events import Ints, Names
from strata.host.waits import Waits

IDLE_LABEL: Final = "(idle)"
"""Blamed where the CPU stood idle: it was waking up, or the kernel left the thread queued."""
FEW: Final = 50
"""Pairs that are added up faster one by one: a fork storm has thousands of threads of one wait each."""
UNKNOWN_LABEL: Final = "(unknown)"
"""Blamed where the trace does not say who ran: a CPU without any event."""


@dataclass(frozen=True, slots=True)
class Blame:
    """What occupied the CPU while threads waited [ns]: one value a pair of a wait and a culprit, sorted by wait.

    A culprit is an index into `labels`: thread names, interrupts, idle, unknown. The values of a wait sum to it.
    """

    labels: tuple[str, ...]
    wait: NDArray[np.int64]
    culprit: NDArray[np.int32]
    ns: Ints

    def by_culprit(self, waits: NDArray[np.intp]) -> dict[str, int]:
        """Return how long each culprit held the CPU during some waits (sorted indices) [ns], longest first."""
        if not len(waits):
            return {}
        first, last = np.searchsorted(self.wait, [waits[0], waits[-1] + 1])
        chosen = np.zeros(waits[-1] + 1 - waits[0], bool)
        chosen[waits - waits[0]] = True
        is_one = chosen[self.wait[first:last] - waits[0]]
        culprit, ns = self.culprit[first:last][is_one], self.ns[first:last][is_one]
        if len(culprit) <= FEW:
            held: dict[int, int] = {}
            for one, length in zip(culprit.tolist(), ns.tolist(), strict=True):
                held[one] = held.get(one, 0) + length
        else:
            some, where = np.unique(culprit, return_inverse=True)
            total = np.zeros(len(some), np.int64)
            np.add.at(total, where, ns)
            held = dict(zip(some.tolist(), total.tolist(), strict=True))
        return {self.labels[one]: held[one] for one in sorted(held, key=lambda one: (-held[one], one))}


def blame_of(waits: Waits, runs: Runs, interrupts: Interrupts, names: Names) -> Blame:
    """Return who occupied the CPU during every wait."""
    labels = [*(names[i] for i in range(len(names))), IDLE_LABEL, UNKNOWN_LABEL, *interrupts.causes]
    idle, unknown = len(names), len(names) + 1
    label = np.where(runs.life < 0, idle, np.where(runs.comm < 0, unknown, runs.comm))
    waiting, culprits, spans = [], [], []

    def add(wait: NDArray[np.int64], culprit: NDArray[np.int64], ns: Ints) -> None:
        pairs, where = np.unique(wait * len(labels) + culprit, return_inverse=True)
        total = np.zeros(len(pairs), np.int64)
        np.add.at(total, where, ns)
        waiting.append(pairs // len(labels))
        culprits.append(pairs % len(labels))
        spans.append(total)

    covered = np.zeros(len(waits), np.int64)
    cpu, start, end = waits.part_cpu, waits.part_start_ns, waits.part_end_ns
    for part, run, from_ns, until_ns in runs.during(cpu, start, end):
        held = interrupts.within(runs, cpu[part], from_ns, until_ns)
        wait = waits.part_wait[part]
        np.add.at(covered, wait, until_ns - from_ns)
        add(wait, label[run], until_ns - from_ns - held)
        for cause in range(len(interrupts.causes)):
            of_cause = interrupts.within(runs, cpu[part], from_ns, until_ns, cause=cause)
            some = np.flatnonzero(of_cause)
            add(wait[some], np.full(len(some), unknown + 1 + cause, np.int64), of_cause[some])
    missing = waits.length_ns - covered
    some = np.flatnonzero(missing > 0)
    add(some, np.full(len(some), unknown, np.int64), missing[some])
    wait, culprit, ns = (np.concatenate(parts) for parts in (waiting, culprits, spans))
    order = np.argsort(wait, kind="stable")
    order = order[ns[order] > 0]
    return Blame(tuple(labels), wait[order], culprit[order].astype(np.int32), ns[order])
