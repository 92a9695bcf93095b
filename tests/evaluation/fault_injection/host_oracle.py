"""Who had the CPU while threads waited, worked out in the plainest way: one line, one wait, one run at a time.

Reads what `strata host record` writes. Shares nothing with the product but the words for interrupts; slow.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

PERF = re.compile(r"\s*.{1,64}?\s+-?\d+/-?\d+\s+\[(\d+)\]\s+(\d+)\.(\d{9}):\s+\w+:(\w+): ?(.*)")
TRACEFS = re.compile(r"\s*.{1,16}-\d+\s+\[(\d+)\]\s+\S+\s+(\d+)\.(\d{6}):\s+(\w+): ?(.*)")
SWITCH = re.compile(
    r"prev_comm=(.*) prev_pid=(\d+) prev_prio=\S+ prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+) "
)
WAKE = re.compile(r"comm=.* pid=(\d+) prio=\S+ target_cpu=(\d+)")
MOVE = re.compile(r"comm=.* pid=(\d+) prio=\S+ orig_cpu=\d+ dest_cpu=(\d+)")
FORK = re.compile(r"comm=.* pid=\d+ child_comm=.* child_pid=(\d+)")
NUMBER = re.compile(r"(?:irq|vec)=(\d+)(?: name=(.*))?")
SOFT = ("HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU")


@dataclass
class Thread:
    """One life of a thread id."""

    tid: int
    state: str = ""  # "", "runs", "sleeps", "waits"
    waits: list[tuple[int, int]] = field(default_factory=list)
    culprits: Counter[str] = field(default_factory=Counter)
    queued: list[tuple[int, int]] = field(default_factory=list)  # since when, on which CPU
    was_forked: bool = False


class Cpu:
    """What had one CPU: runs as (since, name), interrupts as (since, until, name)."""

    def __init__(self, start_ns: int) -> None:
        self.since, self.names = [start_ns], ["(unknown)"]
        self.open: dict[str, tuple[int, str]] = {}
        self.hard: list[tuple[int, int, str]] = []
        self.soft: list[tuple[int, int, str]] = []

    def interrupt(self, now: int, event: str, number: str) -> None:
        sort, _, way = event.replace("_handler", "").partition("_")
        begun = self.open.pop(sort, None)
        if way == "entry":
            self.open[sort] = now, number
        elif begun is not None and begun[1] == number:
            (self.hard if sort == "irq" else self.soft).append((begun[0], now, number))

    def between(self, start: int, end: int) -> Counter[str]:
        """Return who had it for how long [ns]; a hard interrupt goes before a soft one, that before a thread."""
        hard, soft = (_cut(spans, start, end) for spans in (self.hard, self.soft))
        edges = {start, end, *(t for span in (*hard, *soft) for t in span[:2])}
        first, last = bisect_right(self.since, start) - 1, bisect_right(self.since, end)
        edges.update(t for t in self.since[first + 1 : last] if start < t < end)
        held: Counter[str] = Counter()
        for a, b in pairwise(sorted(edges)):
            who = next((name for spans in (hard, soft) for s, e, name in spans if s <= a < e), None)
            held[who or self.names[bisect_right(self.since, a) - 1]] += b - a
        return held


def _cut(spans: list[tuple[int, int, str]], start: int, end: int) -> list[tuple[int, int, str]]:
    first = max(bisect_right(spans, (start, 0, "")) - 1, 0)
    found = []
    for begin, until, name in spans[first:]:
        if begin >= end:
            break
        if until > start:
            found.append((max(begin, start), min(until, end), name))
    return found


def explain(trace: Path) -> list[Thread]:
    """Return all threads that waited and then ran, with who had the CPU meanwhile [ns]."""
    rows = []
    for line in trace.read_bytes().decode("latin-1").splitlines():
        if found := PERF.match(line) or TRACEFS.match(line):
            cpu, seconds, fraction, event, rest = found.groups()
            rows.append((int(seconds) * 10**9 + int(fraction.ljust(9, "0")), int(cpu), event, rest))
    rows.sort(key=lambda row: row[0])
    cpus: dict[int, Cpu] = {}
    current: dict[int, Thread] = {}
    threads: list[Thread] = []
    done: list[tuple[Thread, int, list[tuple[int, int]]]] = []
    irq_names: dict[str, str] = {}

    def thread(tid: int) -> Thread:
        if tid not in current:
            threads.append(current.setdefault(tid, Thread(tid)))
        return current[tid]

    def begins(one: Thread, now: int, cpu: int) -> None:
        one.state, one.queued = "waits", [(now, cpu)]

    for now, cpu, event, rest in rows:
        if event == "sched_switch":
            prev, prev_tid, state, name, tid = SWITCH.match(rest).groups()  # type: ignore[union-attr]
            on = cpus.setdefault(cpu, Cpu(rows[0][0]))
            if len(on.names) == 1:
                on.names[0] = prev if int(prev_tid) else "(idle)"
            if int(prev_tid):
                left = thread(int(prev_tid))
                if state in ("R", "R+"):
                    begins(left, now, cpu)
                else:
                    left.state = "sleeps"
                if state[0] in "XZ":
                    left.state = "dead"
            on.since.append(now)
            on.names.append(name if int(tid) else "(idle)")
            if int(tid):
                comes = thread(int(tid))
                if comes.state == "waits":
                    comes.waits.append((comes.queued[0][0], now))
                    # Without a recorded move it waited where it then ran.
                    if len(comes.queued) == 1:
                        comes.queued = [(comes.queued[0][0], cpu)]
                    done.append((comes, now, comes.queued))
                comes.state = "runs"
        elif event in ("sched_wakeup", "sched_wakeup_new"):
            tid, target = WAKE.match(rest).groups()  # type: ignore[union-attr]
            if event == "sched_wakeup_new" and int(tid) in current and not current[int(tid)].was_forked:
                del current[int(tid)]
            woken = thread(int(tid))
            woken.was_forked = False
            if woken.state in ("", "sleeps"):
                begins(woken, now, int(target))
        elif event == "sched_migrate_task":
            tid, target = MOVE.match(rest).groups()  # type: ignore[union-attr]
            moved = thread(int(tid))
            if moved.state == "waits":
                moved.queued.append((now, int(target)))
        elif event == "sched_process_fork":
            child = int(FORK.match(rest)[1])  # type: ignore[index]
            current.pop(child, None)
            thread(child).was_forked = True
        elif event.startswith(("irq_handler_", "softirq_")):
            found = NUMBER.match(rest)
            assert found
            if found[2]:
                irq_names[f"irq {found[1]}"] = f"irq {found[1]} {found[2][:16]}"
            vector = int(found[1])
            soft = f"softirq {SOFT[vector] if vector < len(SOFT) else vector}"
            cpus.setdefault(cpu, Cpu(rows[0][0])).interrupt(
                now, event, soft if event.startswith("soft") else f"irq {found[1]}"
            )

    for one, until, parts in done:
        ends = [*(since for since, _ in parts[1:]), until]
        for (since, cpu), end in zip(parts, ends, strict=True):
            for name, ns in cpus[cpu].between(since, end).items() if cpu in cpus else [("(unknown)", end - since)]:
                one.culprits[irq_names.get(name, name)] += ns
    return [one for one in threads if one.waits]


Accounts = list[tuple[int, int, float, tuple[tuple[str, float], ...]]]


def accounts_of(what: Path | dict[str, Any]) -> Accounts:
    """Return what each thread waited, of a trace or a report: id, how often, how long, who had the CPU [ms]."""
    if isinstance(what, Path):
        return sorted(
            (
                one.tid,
                len(one.waits),
                _ms(sum(end - start for start, end in one.waits)),
                tuple(sorted((name, _ms(ns)) for name, ns in one.culprits.items() if ns)),
            )
            for one in explain(what)
        )
    return sorted(
        (
            one["tid"],
            one["waits"],
            one["wait_ms_total"],
            tuple(sorted((culprit["comm"], culprit["ms"]) for culprit in one["culprits"])),
        )
        for one in what["threads"]
        if one["waits"]
    )


def _ms(ns: int) -> float:
    return round(ns / 1e6, 6)
