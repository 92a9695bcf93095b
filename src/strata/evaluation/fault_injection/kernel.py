"""A small scheduler in simulated time that prints what `perf script` would: traces whose culprit is known.

Fair by virtual run time, as CFS and EEVDF: who ran least runs next, for a slice; a woken thread that is far enough
behind takes the CPU at once; idle CPUs take queued threads over. Weights, groups and NUMA are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from strata.simulate.event_clock import EventClock

SLICE_NS: Final = 3_000_000
WAKEUP_NS: Final = 1_000_000
"""A woken thread that ran so much less than the running one takes its CPU."""
SWITCH_NS: Final = 2_000
"""From a wakeup on an idle CPU to the switch."""
START_NS: Final = 10**12


class OperationKind(Enum):
    """What a thread does next."""

    RUN = "run"
    SLEEP = "sleep"
    BLOCK = "block"
    YIELD = "yield"
    WAKE = "wake"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Operation:
    """One act of a thread: `ns` of RUN and SLEEP, `task` whom it wakes or what it starts."""

    does: OperationKind
    ns: int = 0
    task: Task | None = None


@dataclass(eq=False, slots=True)
class Task:
    """A thread: its name, what it does, and on which CPUs it may run (none: all)."""

    name: str
    program: Iterator[Operation]
    cpus: frozenset[int] = frozenset()
    tid: int = 0
    virtual_ns: int = 0
    left_ns: int = 0
    cpu: int = 0
    is_asleep: bool = True


@dataclass(eq=False, slots=True)
class _Cpu:
    number: int
    task: Task | None = None
    queue: list[Task] = field(default_factory=list)
    since_ns: int = START_NS
    version: int = 0
    held_until_ns: int = 0
    floor_ns: int = 0


class SimulatedKernel:
    """Some CPUs. `spawn` threads and `interrupt` CPUs, then `run`."""

    def __init__(self, num_cpus: int) -> None:
        self._cpus = [_Cpu(number) for number in range(num_cpus)]
        self._clock = EventClock(START_NS)
        self._tid = 1000
        self._lines: list[tuple[int, str]] = []

    def spawn(self, task: Task, *, at_ns: int = 0) -> Task:
        """Start a thread."""
        self._name(task)
        task.cpu = self._allowed(task)[0].number
        self._after(at_ns, lambda: self._wake(task, "sched_wakeup_new"))
        return task

    def interrupt(self, cpu: int, *, at_ns: int, hard_ns: int, soft_ns: int) -> None:
        """Have a CPU handle a packet: an interrupt of eth0, then its softirq."""
        self._after(at_ns, lambda: self._interrupt(self._cpus[cpu], hard_ns, soft_ns))

    def run(self, length_ns: int) -> bytes:
        """Run for so long and return the trace."""
        end_ns = START_NS + length_ns
        while self._clock.step(end_ns):
            pass
        self._lines.sort(key=lambda line: line[0])
        return "".join(line for at, line in self._lines if at <= end_ns).encode()

    def _after(self, ns: int, event: Callable[[], None]) -> None:
        self._clock.at(self._clock.now + ns, event)

    def _name(self, task: Task) -> None:
        self._tid += 1
        task.tid = self._tid

    def _allowed(self, task: Task) -> list[_Cpu]:
        return [cpu for cpu in self._cpus if not task.cpus or cpu.number in task.cpus]

    def _wake(self, task: Task, event: str = "sched_wakeup", *, by: _Cpu | None = None) -> None:
        if not task.is_asleep:
            return
        task.is_asleep = False
        cpu = self._place(task)
        task.cpu = cpu.number
        # Sleep earns no more than half a slice before the others.
        task.virtual_ns = max(task.virtual_ns, cpu.floor_ns - SLICE_NS // 2)
        self._print(
            by or cpu, f"sched:{event}", f"comm={task.name} pid={task.tid} prio=120 target_cpu={cpu.number:03d}"
        )
        cpu.queue.append(task)
        if cpu.task is None:
            self._after(SWITCH_NS, lambda: self._pick(cpu) if cpu.task is None else None)
        elif self._charge(cpu) - task.virtual_ns > WAKEUP_NS:
            self._soon(cpu, self._preempt)

    def _place(self, task: Task) -> _Cpu:
        """Choose a CPU: the one it was on if that is idle, any idle one, else the shortest queue."""
        return min(
            self._allowed(task),
            key=lambda cpu: (len(cpu.queue) + (cpu.task is not None), cpu.number != task.cpu, cpu.number),
        )

    def _pick(self, cpu: _Cpu) -> None:
        """Switch to whoever ran least; take one over from the longest queue if there is none."""
        if not cpu.queue:
            donors = [(len(other.queue), -other.number, other) for other in self._cpus if other is not cpu]
            for _, _, other in sorted(donors, key=lambda donor: donor[:2], reverse=True):
                free = [task for task in other.queue if not task.cpus or cpu.number in task.cpus]
                if free:
                    self._move(free[0], other, cpu)
                    break
        to = min(cpu.queue, key=lambda task: (task.virtual_ns, task.tid), default=None)
        if to is None:
            return
        cpu.queue.remove(to)
        self._switch(cpu, None, to, "S")

    def _move(self, task: Task, source: _Cpu, to: _Cpu) -> None:
        source.queue.remove(task)
        task.virtual_ns += to.floor_ns - source.floor_ns
        task.cpu = to.number
        self._print(to, "sched:sched_migrate_task", f"comm={task.name} pid={task.tid} prio=120 "
                    f"orig_cpu={source.number} dest_cpu={to.number}")  # fmt: skip
        to.queue.append(task)

    def _switch(self, cpu: _Cpu, leaving: Task | None, to: Task | None, state: str) -> None:
        def identity(task: Task | None) -> tuple[str, int]:
            return (f"swapper/{cpu.number}", 0) if task is None else (task.name, task.tid)

        (prev, prev_tid), (coming, tid) = identity(leaving), identity(to)
        self._print(
            cpu, "sched:sched_switch",
            f"prev_comm={prev} prev_pid={prev_tid} prev_prio=120 prev_state={state if leaving else 'R'} ==> "
            f"next_comm={coming} next_pid={tid} next_prio=120",
        )  # fmt: skip
        cpu.task = to
        cpu.since_ns = max(self._clock.now, cpu.held_until_ns)
        cpu.version += 1
        if to is not None:
            to.cpu = cpu.number
            cpu.floor_ns = max(cpu.floor_ns, to.virtual_ns)
            self._arm(cpu)

    def _arm(self, cpu: _Cpu) -> None:
        """Come back when the thread is done with its act, or its slice is over."""
        assert cpu.task is not None
        version = cpu.version
        ns = cpu.since_ns - self._clock.now + min(cpu.task.left_ns, SLICE_NS)
        self._after(ns, lambda: self._due(cpu) if cpu.version == version else None)

    def _charge(self, cpu: _Cpu) -> int:
        """Book what the running thread ran; returns its virtual run time."""
        assert cpu.task is not None
        ran = max(self._clock.now - cpu.since_ns, 0)
        cpu.task.virtual_ns += ran
        cpu.task.left_ns -= ran
        cpu.since_ns = max(self._clock.now, cpu.since_ns)
        return cpu.task.virtual_ns

    def _due(self, cpu: _Cpu) -> None:
        task = cpu.task
        assert task is not None
        self._charge(cpu)
        if task.left_ns <= 0:
            self._act(cpu, task)
        else:
            self._preempt(cpu)

    def _act(self, cpu: _Cpu, task: Task) -> None:
        """Do what the thread does next, up to what takes time."""
        for act in task.program:
            if act.does is OperationKind.RUN:
                task.left_ns = act.ns
                cpu.version += 1
                self._arm(cpu)
                return
            if act.does is OperationKind.WAKE:
                assert act.task is not None
                self._wake(act.task, by=cpu)
            elif act.does is OperationKind.FORK:
                assert act.task is not None
                self._fork(cpu, task, act.task)
            elif act.does is OperationKind.YIELD:
                self._print(cpu, "syscalls:sys_enter_sched_yield", "")
                if cpu.queue:
                    self._leave(cpu, task, "R")
                    return
            else:
                task.is_asleep = True
                if act.does is OperationKind.SLEEP:
                    self._after(act.ns, lambda: self._wake(task))
                self._leave(cpu, task, "S")
                return
        self._print(cpu, "sched:sched_process_exit", f"comm={task.name} pid={task.tid} prio=120 group_dead=true")
        self._leave(cpu, task, "X")

    def _fork(self, cpu: _Cpu, parent: Task, child: Task) -> None:
        self._name(child)
        child.cpu = cpu.number
        self._print(
            cpu, "sched:sched_process_fork",
            f"comm={parent.name} pid={parent.tid} child_comm={child.name} child_pid={child.tid}",
        )  # fmt: skip
        self._wake(child, "sched_wakeup_new", by=cpu)

    def _leave(self, cpu: _Cpu, task: Task, state: str) -> None:
        to = min(cpu.queue, key=lambda queued: (queued.virtual_ns, queued.tid), default=None)
        if to is not None:
            cpu.queue.remove(to)
        if state == "R":
            cpu.queue.append(task)
        self._switch(cpu, task, to, state)
        if to is None:
            self._pick(cpu)

    def _preempt(self, cpu: _Cpu) -> None:
        """Let the next thread run if it ran less; the running one waits."""
        task = cpu.task
        if task is None:
            return
        virtual_ns = self._charge(cpu)
        if any(other.virtual_ns < virtual_ns for other in cpu.queue):
            self._leave(cpu, task, "R")
        else:
            cpu.version += 1
            self._arm(cpu)

    def _interrupt(self, cpu: _Cpu, hard_ns: int, soft_ns: int) -> None:
        if self._clock.now < cpu.held_until_ns:
            return
        if cpu.task is not None:
            self._charge(cpu)
        for ns, event, fields in (
            (0, "irq:irq_handler_entry", "irq=36 name=eth0"),
            (hard_ns, "irq:irq_handler_exit", "irq=36 ret=handled"),
            (hard_ns, "irq:softirq_entry", "vec=3 [action=NET_RX]"),
            (hard_ns + soft_ns, "irq:softirq_exit", "vec=3 [action=NET_RX]"),
        ):
            self._print(cpu, event, fields, at_ns=self._clock.now + ns)
        cpu.held_until_ns = self._clock.now + hard_ns + soft_ns
        if cpu.task is not None:
            cpu.since_ns = cpu.held_until_ns
            cpu.version += 1
            self._arm(cpu)

    def _soon(self, cpu: _Cpu, event: Callable[[_Cpu], None]) -> None:
        """Do it once no interrupt holds the CPU, and not inside of what is being done."""
        self._after(max(cpu.held_until_ns - self._clock.now, 0), lambda: event(cpu))

    def _print(self, cpu: _Cpu, event: str, fields: str, *, at_ns: int | None = None) -> None:
        at = self._clock.now if at_ns is None else at_ns
        name, tid = (f"swapper/{cpu.number}", 0) if cpu.task is None else (cpu.task.name, cpu.task.tid)
        seconds, ns = divmod(at, 10**9)
        head = f"{name:>16s} {tid:5d}/{tid:<5d} [{cpu.number:03d}] {seconds:5d}.{ns:09d}:"
        self._lines.append((at, f"{head} {event:>30s}: {fields}\n"))
