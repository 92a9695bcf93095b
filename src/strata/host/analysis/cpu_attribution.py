"""Who had the CPU that a thread waited for: by occupancy over the wait, so that the shares sum to the wait.

Not "who came next": that may be a thread of the kernel that ran for a moment, before another kept the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Ints
from strata.host.analysis.culprit import Culprit
from strata.host.analysis.interrupts import Interrupts
from strata.host.analysis.intervals import overlaps, ranges
from strata.host.analysis.on_cpu_intervals import OnCpuIntervals
from strata.host.analysis.run_queue_delays import RunQueueDelays
from strata.host.trace.events import Names

IDLE_LABEL: Final = "(idle)"
"""Blamed where the CPU stood idle: it was waking up, or the kernel left the thread queued."""
UNKNOWN_LABEL: Final = "(unknown)"
"""Blamed where the trace does not say who ran: a CPU without any event."""
MOST_PAIRS: Final = 300_000_000
"""Of waits and runs at the same time, 10 million a second: N threads that all want to run at once make N²."""
MOST_SHARES: Final = 2_000_000
"""Of groups and culprits: two gigabytes on their way to JSON."""


@dataclass(frozen=True, slots=True)
class CpuAttribution:
    """Tells what occupied the CPU while threads waited, for as many waits as are asked for.

    A culprit is an index into `labels`: thread names, idle, unknown, interrupts, names with their process.
    `held_*`: interrupts, cut where runs end: sorted, as places (see `OnCpuIntervals.place`), each with the run
    that it interrupted.
    """

    labels: tuple[str, ...]
    delays: RunQueueDelays
    on_cpu: OnCpuIntervals
    run_culprit: NDArray[np.int32]
    held_start: Ints
    held_end: Ints
    held_run: Ints
    held_culprit: NDArray[np.int32]

    def by_culprit(self, waits: NDArray[np.intp]) -> dict[str, int]:
        """Return how long each culprit held the CPU during some waits [ns], longest first."""
        _, culprit, ns = self.shares(waits, np.zeros(len(waits), np.int64))
        return self.named(culprit, ns)

    def named(self, culprit: Ints, ns: Ints) -> dict[str, int]:
        """Return culprits by name, longest first."""
        held = sorted(zip(culprit.tolist(), ns.tolist(), strict=True), key=lambda item: (-item[1], item[0]))
        by_name: dict[str, int] = {}
        for index, length in held:
            by_name[self.labels[index]] = by_name.get(self.labels[index], 0) + length
        return by_name

    def shares(self, waits: NDArray[np.intp], group: Ints) -> tuple[Ints, Ints, Ints]:
        """Return how long each culprit held the CPU during each group of waits: group, culprit, ns, sorted.

        The shares of a group sum to its waits. Past MOST_PAIRS or MOST_SHARES the waits that are left are nobody's
        (unknown): the most important come first.
        """
        first, last = (np.searchsorted(self.delays.part_wait, waits, side=side) for side in ("left", "right"))
        part, which = ranges(first, last)
        key = group[which] * len(self.labels)
        cpu = self.delays.part_cpu[part]
        begin = self.on_cpu.place(cpu, self.delays.part_start_ns[part])
        end = self.on_cpu.place(cpu, self.delays.part_end_ns[part])
        missing = end - begin
        sums, num_pairs, num_shares = [], 0, 0
        for which_part, run, ns in overlaps(*self.on_cpu.places, begin, end):
            np.subtract.at(missing, which_part, ns)
            sums.append(_summed(key[which_part] + self.run_culprit[run], ns))
            num_pairs, num_shares = num_pairs + len(ns), num_shares + len(sums[-1][0])
            if num_pairs > MOST_PAIRS or num_shares > MOST_SHARES:
                break
        known = np.flatnonzero(missing < end - begin)
        for which_part, held, ns in overlaps(self.held_start, self.held_end, begin[known], end[known]):
            interrupted = self.run_culprit[self.held_run[held]]
            sums.append(_summed(key[known[which_part]] + self.held_culprit[held], ns))
            sums.append(_summed(key[known[which_part]] + interrupted, -ns))
        sums.append(_summed(key + self.labels.index(UNKNOWN_LABEL), missing))
        pair, ns = _summed(*(np.concatenate(column) for column in zip(*sums, strict=True)))
        return pair // len(self.labels), pair % len(self.labels), ns


def cpu_attribution_of(
    delays: RunQueueDelays,
    on_cpu: OnCpuIntervals,
    interrupts: Interrupts,
    names: Names,
    pid: NDArray[np.int32] | None = None,
) -> CpuAttribution:
    """Return what knows who occupied the CPU during every wait. `pid`: each thread's process, -1: not known."""
    labels: tuple[str, ...] = (
        *(names[i] for i in range(len(names))),
        IDLE_LABEL,
        UNKNOWN_LABEL,
        *interrupts.causes,
    )
    idle, unknown = len(names), len(names) + 1
    culprit = np.where(on_cpu.task < 0, idle, np.where(on_cpu.comm < 0, unknown, on_cpu.comm))
    if pid is not None and len(pid):
        of_run = np.where((on_cpu.task >= 0) & (on_cpu.comm >= 0), pid[np.maximum(on_cpu.task, 0)], -1)
        owned = np.flatnonzero(of_run >= 0)
        pairs, which = np.unique((of_run[owned].astype(np.int64) << 32) | on_cpu.comm[owned], return_inverse=True)
        culprit[owned] = len(labels) + which
        labels += tuple(Culprit(names[pair & 0xFFFFFFFF], pair >> 32) for pair in pairs.tolist())
    begin, end = (on_cpu.place(interrupts.cpu, at) for at in (interrupts.start_ns, interrupts.end_ns))
    start, stop = on_cpu.places
    pieces = [(held, run) for held, run, _ in overlaps(start, stop, begin, end)]
    held, run = (np.concatenate(column) for column in zip(*pieces, strict=True)) if pieces else (begin, begin)
    return CpuAttribution(
        labels,
        delays,
        on_cpu,
        culprit.astype(np.int32),
        np.maximum(begin[held], start[run]),
        np.minimum(end[held], stop[run]),
        run,
        (unknown + 1 + interrupts.cause[held]).astype(np.int32),
    )


def _summed(key: Ints, value: Ints) -> tuple[Ints, Ints]:
    """Return the sum of each key's values, sorted by key, without those of sum 0."""
    low, high = (int(key.min()), int(key.max())) if len(key) else (0, 0)
    if high - low < 4 * len(key):
        total = np.bincount(key - low, weights=value).astype(np.int64)  # whole numbers below 2**53 are exact
        keys = np.arange(low, low + len(total))
    else:
        keys, where = np.unique(key, return_inverse=True)
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, where, value)
    return keys[total != 0], total[total != 0]
