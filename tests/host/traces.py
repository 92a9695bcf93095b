"""Scheduler traces in a line each: `Text` writes what perf prints, times in milliseconds."""

from __future__ import annotations

from pathlib import Path

from strata.errors import MissingPart
from strata.host.record import tracefs
from strata.host.trace.events import Trace
from strata.host.trace.read import read_trace

IDLE = ("swapper", 0)
Thread = tuple[str, int]


def find() -> Path | None:
    """Return the kernel's tracing folder; None where the scheduler cannot be traced."""
    try:
        return tracefs.find()
    except MissingPart:
        return None


class Text:
    """Lines of `perf script`; a thread is (name, tid), and what each CPU runs is remembered."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running: dict[int, Thread] = {}

    def event(self, ms: float, cpu: int, event: str, fields: str, *, by: Thread | None = None) -> Text:
        comm, tid = by or self.running.get(cpu, IDLE)
        seconds, ns = divmod(round(ms * 1e6), 10**9)
        self.lines.append(
            f"{comm:>16s} {tid:5d}/{tid:<5d} [{cpu:03d}] {seconds:5d}.{ns:09d}: {event:>30s}: {fields}"
        )
        return self

    def switch(self, ms: float, cpu: int, prev: Thread, to: Thread, state: str = "S") -> Text:
        (a, a_tid), (b, b_tid) = ((f"swapper/{cpu}", 0) if thread == IDLE else thread for thread in (prev, to))
        self.event(
            ms, cpu, "sched:sched_switch",
            f"prev_comm={a} prev_pid={a_tid} prev_prio=120 prev_state={state} ==> "
            f"next_comm={b} next_pid={b_tid} next_prio=120",
            by=prev,
        )  # fmt: skip
        self.running[cpu] = to
        return self

    def wake(
        self,
        ms: float,
        cpu: int,
        thread: Thread,
        *,
        by: Thread = IDLE,
        kind: str = "wakeup",
        on: int | None = None,
    ) -> Text:
        """A wakeup that queues a thread on `cpu`, recorded there or `on` another."""
        fields = f"comm={thread[0]} pid={thread[1]} prio=120 target_cpu={cpu:03d}"
        return self.event(ms, cpu if on is None else on, f"sched:sched_{kind}", fields, by=by)

    def migrate(self, ms: float, thread: Thread, source: int, dest: int) -> Text:
        fields = f"comm={thread[0]} pid={thread[1]} prio=120 orig_cpu={source} dest_cpu={dest}"
        return self.event(ms, dest, "sched:sched_migrate_task", fields)

    def fork(self, ms: float, cpu: int, parent: Thread, child: Thread) -> Text:
        fields = f"comm={parent[0]} pid={parent[1]} child_comm={child[0]} child_pid={child[1]}"
        return self.event(ms, cpu, "sched:sched_process_fork", fields, by=parent)

    def exit(self, ms: float, cpu: int, thread: Thread) -> Text:
        fields = f"comm={thread[0]} pid={thread[1]} prio=120 group_dead=true"
        return self.event(ms, cpu, "sched:sched_process_exit", fields, by=thread)

    def yields(self, ms: float, cpu: int, thread: Thread) -> Text:
        return self.event(ms, cpu, "syscalls:sys_enter_sched_yield", "", by=thread)

    def irq(self, ms: float, until_ms: float, cpu: int, *, number: int = 36, name: str = "eth0") -> Text:
        self.event(ms, cpu, "irq:irq_handler_entry", f"irq={number} name={name}")
        return self.event(until_ms, cpu, "irq:irq_handler_exit", f"irq={number} ret=handled")

    def softirq(self, ms: float, until_ms: float, cpu: int, *, vector: int = 3, action: str = "NET_RX") -> Text:
        self.event(ms, cpu, "irq:softirq_entry", f"vec={vector} [action={action}]")
        return self.event(until_ms, cpu, "irq:softirq_exit", f"vec={vector} [action={action}]")

    def frequency(self, ms: float, cpu: int, khz: int) -> Text:
        return self.event(ms, cpu, "power:cpu_frequency", f"state={khz} cpu_id={cpu}")

    def raw(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines).encode()

    def trace(self, folder: Path) -> Trace:
        return read(self.raw(), folder)


def read(raw: bytes, folder: Path, **limits: int) -> Trace:
    """Read a trace of these bytes."""
    file = folder / "trace.txt"
    file.write_bytes(raw)
    return read_trace(file, **limits)


def lines(*texts: str) -> bytes:
    """Lines of text, each with its end."""
    return "".join(f"{text}\n" for text in texts).encode()
