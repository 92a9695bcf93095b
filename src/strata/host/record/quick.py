"""A reduced report from /proc alone: two snapshots of the threads, and what happened between them. Needs no right.

It tells how long each thread waited for a CPU and where interrupts landed; not who had the CPU meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from strata.host.machine.steal import Steal
from strata.host.threads.classify import Classified
from strata.host.threads.pools import stem
from strata.reasons import REASONS

WAIT_SHARE: Final = 0.05
"""Of the time, from which a wait is worth a note."""


Interrupt = Mapping[str, Any]
"""One of `snapshot.interrupts`."""


@dataclass(frozen=True, slots=True)
class ThreadDelta:
    """What a thread did between two snapshots. wait_ms: it could run and had no CPU."""

    thread: Classified
    run_ms: float
    wait_ms: float
    preempted: int
    wakeups: int

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        classified = self.thread
        return {
            "comm": classified.thread.name,
            "tid": classified.thread.tid,
            "pid": classified.thread.pid,
            "pool": classified.pool,
            "layer": classified.layer,
            "run_ms": round(self.run_ms, 3),
            "wait_ms": round(self.wait_ms, 3),
            "preempted": self.preempted,
            "wakeups": self.wakeups,
            "nice": classified.thread.nice,
            "cpus": len(classified.thread.cpus),
        }


@dataclass(frozen=True, slots=True)
class ThreadGroup:
    """Threads of one process with one name: how many, and how many CPUs' worth they wanted (ran or waited)."""

    process: str
    name: str
    threads: int
    wanted_cpus: float
    pid: int


@dataclass(frozen=True, slots=True)
class Quick:
    """The reduced report. interrupts: (name, CPU, a second), most first. notes: what to look at, in words."""

    seconds: float
    num_cpus: int
    changes: tuple[ThreadDelta, ...]
    pools: tuple[ThreadGroup, ...]
    interrupts: tuple[tuple[str, int, float], ...]
    notes: tuple[str, ...]
    num_born: int
    num_gone: int
    steal: Steal | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "seconds": round(self.seconds, 3),
            "cpus": self.num_cpus,
            "notes": list(self.notes),
            "threads": [change.to_dict() for change in self.changes],
            "pools": [{**asdict(pool), "wanted_cpus": round(pool.wanted_cpus, 3)} for pool in self.pools],
            "interrupts": [
                {"name": name, "cpu": cpu, "per_s": round(rate, 3)} for name, cpu, rate in self.interrupts
            ],
            "born": self.num_born,
            "gone": self.num_gone,
            "steal": self.steal.to_dict() if self.steal is not None else None,
        }


def compare(
    before: Sequence[Classified],
    after: Sequence[Classified],
    *,
    interrupts: tuple[Sequence[Interrupt], Sequence[Interrupt]] = ((), ()),
    seconds: float,
    num_cpus: int,
    steal: Steal | None = None,
) -> Quick:
    """Return what happened between two snapshots, `seconds` apart: critical threads first, then who waited."""
    old = {thread.thread.key: thread for thread in before}
    new = {thread.thread.key: thread for thread in after}
    changes = [_change(old[key], thread) for key, thread in new.items() if key in old]
    moved = [change for change in changes if change.run_ms or change.wait_ms or change.wakeups]
    moved.sort(key=lambda change: (change.thread.layer != "critical", -change.wait_ms, change.thread.thread.tid))
    pools = _pools(moved, seconds)
    rates = _rates(*interrupts, seconds)
    return Quick(
        seconds,
        num_cpus,
        tuple(moved),
        pools,
        rates,
        (*_notes(moved, pools, seconds, num_cpus), *_stolen(steal)),
        len(new.keys() - old.keys()),
        len(old.keys() - new.keys()),
        steal,
    )


def _change(old: Classified, new: Classified) -> ThreadDelta:
    a, b = old.thread, new.thread
    return ThreadDelta(
        new,
        1e3 * max(0.0, (b.run_s or 0.0) - (a.run_s or 0.0)),
        1e3 * max(0.0, (b.wait_s or 0.0) - (a.wait_s or 0.0)),
        b.num_preempted - a.num_preempted,
        b.num_wakeups - a.num_wakeups,
    )


def _pools(changes: Sequence[ThreadDelta], seconds: float) -> tuple[ThreadGroup, ...]:
    counts: Counter[tuple[str, str, int]] = Counter()
    wanted: dict[tuple[str, str, int], float] = {}
    for change in changes:
        thread = change.thread.thread
        key = thread.process, stem(thread.name), thread.pid
        counts[key] += 1
        wanted[key] = wanted.get(key, 0.0) + (change.run_ms + change.wait_ms) / (1e3 * seconds)
    pools = [
        ThreadGroup(process, name, counts[process, name, pid], wanted[process, name, pid], pid)
        for process, name, pid in counts
        if counts[process, name, pid] > 1
    ]
    return tuple(sorted(pools, key=lambda pool: -pool.wanted_cpus))


def _rates(
    before: Sequence[Interrupt], after: Sequence[Interrupt], seconds: float
) -> tuple[tuple[str, int, float], ...]:
    old = {irq["irq"]: irq["counts"] for irq in before}
    rates = [
        (f"{irq['irq']} {irq['name']}".strip(), int(cpu), (count - old.get(irq["irq"], {}).get(cpu, 0)) / seconds)
        for irq in after
        for cpu, count in irq["counts"].items()
    ]
    return tuple(sorted((rate for rate in rates if rate[2] > 0), key=lambda rate: -rate[2]))


def _notes(
    changes: Sequence[ThreadDelta], pools: Sequence[ThreadGroup], seconds: float, num_cpus: int
) -> list[str]:
    notes = []
    for change in changes:
        share, thread = change.wait_ms / (1e3 * seconds), change.thread.thread
        if change.thread.layer == "critical" and share >= WAIT_SHARE:
            notes.append(
                f"{thread.name} ({thread.tid}) was runnable but not running {share:.0%} of the time; preempted "
                f"{change.preempted:,} times. Who had it needs a trace: strata host record"
            )
        if len(thread.cpus) == 1 < num_cpus and share >= WAIT_SHARE:
            notes.append(
                f"{thread.name} ({thread.tid}) may run on CPU {thread.cpus[0]} only, and waited for it "
                f"{share:.0%} of the time: let it run elsewhere, or keep others off that CPU"
            )
    notes += [
        f"{pool.threads} threads {pool.name} of {pool.process} wanted {pool.wanted_cpus:.1f} CPUs of {num_cpus}: "
        f"a smaller pool waits less for itself (process {pool.pid})"
        for pool in pools
        if pool.wanted_cpus > num_cpus and pool.threads > num_cpus
    ]
    if changes and not any(change.thread.thread.wait_s is not None for change in changes):
        notes.append("this kernel counts no waits (no /proc/PID/schedstat): only preemptions are known")
    return notes


def _stolen(steal: Steal | None) -> list[str]:
    cpu, share = steal.worst if steal is not None else (-1, 0.0)
    if share < WAIT_SHARE:
        return []
    return [f"the hypervisor gave CPU {cpu} to others {share:.0%} of the time. {REASONS['steal-time'].remedy}"]
