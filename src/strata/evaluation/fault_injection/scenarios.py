"""Training hosts with one fault each, for the simulated kernel: a trainer, loaders, and the culprit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from strata.evaluation.fault_injection.kernel import Operation, OperationKind, SimulatedKernel, Task
from strata.evaluation.fault_injection.score import TRAINER, Trial

LENGTH_NS: Final = 500_000_000
CULPRITS: Final = ("cc1plus", "ffmpeg", "java", "node", "stress", "backup-agent", "python3", "indexer")
"""What noise is called; a seed draws one."""
_MS: Final = 1_000_000
_US: Final = 1_000


class InjectedFault(StrEnum):
    """What is wrong."""

    QUIET = "quiet"
    CPU_HOGS = "cpu-hogs"
    FORK_STORM = "fork-storm"
    YIELD_STORM = "yield-storm"
    PIPE_STORM = "pipe-storm"
    PINNED_HOG = "pinned-hog"
    IRQ_LOAD = "irq-load"


INTERRUPTS: Final = frozenset({"irq 36 eth0", "softirq NET_RX"})
"""How a report may call what the simulated network card does."""


def scenario(fault: InjectedFault, *, seed: int) -> tuple[Trial, bytes]:
    """Return what was done, and half a second of its trace; the same seed gives the same trace."""
    rng = random.Random(f"{fault} {seed}")
    num_cpus = rng.choice((2, 4, 8))
    kernel = SimulatedKernel(num_cpus)
    pin = frozenset({rng.randrange(num_cpus)}) if fault is InjectedFault.PINNED_HOG else frozenset[int]()
    kernel.spawn(Task(TRAINER, _steps(rng), pin))
    for i in range(num_cpus // 2):
        kernel.spawn(Task("pt_data_worker", _steps(rng, run_us=400, sleep_us=4000)), at_ns=rng.randrange(_MS) + i)
    # Often the first on the trainer's CPU, and gone at once: whoever blames "who came next" blames this one.
    kernel.spawn(Task("telemetry", _steps(rng, run_us=30, sleep_us=1000)), at_ns=rng.randrange(_MS))
    culprit = rng.choice(CULPRITS)
    _inject(kernel, fault, culprit, pin, rng, num_cpus)
    injected = {InjectedFault.QUIET: frozenset[str](), InjectedFault.IRQ_LOAD: INTERRUPTS}.get(
        fault, frozenset({culprit})
    )
    return Trial(fault, seed, injected), kernel.run(LENGTH_NS)


def _inject(
    kernel: SimulatedKernel,
    fault: InjectedFault,
    culprit: str,
    pin: frozenset[int],
    rng: random.Random,
    num_cpus: int,
) -> None:
    at_ns = 20 * _MS
    match fault:
        case InjectedFault.CPU_HOGS:
            for _ in range(num_cpus * rng.choice((1, 2, 3)) + 1):
                kernel.spawn(Task(culprit, _hog()), at_ns=at_ns)
        case InjectedFault.PINNED_HOG:
            kernel.spawn(Task(culprit, _hog(), pin), at_ns=at_ns)
        case InjectedFault.FORK_STORM:
            for _ in range(num_cpus):
                kernel.spawn(Task(culprit, _forks(culprit, rng)), at_ns=at_ns)
        case InjectedFault.YIELD_STORM:
            for _ in range(2 * num_cpus):
                kernel.spawn(Task(culprit, _yields(rng)), at_ns=at_ns)
        case InjectedFault.PIPE_STORM:
            for _ in range(2 * num_cpus):
                left, right = Task(culprit, iter(())), Task(culprit, iter(()))
                left.program, right.program = _pipe(right, rng), _pipe(left, rng)
                kernel.spawn(left, at_ns=at_ns)
                kernel.spawn(right, at_ns=at_ns + 1)
        case InjectedFault.IRQ_LOAD:
            gap_ns = rng.randrange(400, 1000) * _US
            for cpu in range(num_cpus):
                for at in range(at_ns, LENGTH_NS, gap_ns):
                    kernel.interrupt(cpu, at_ns=at + rng.randrange(50 * _US), hard_ns=5 * _US, soft_ns=gap_ns // 4)
        case InjectedFault.QUIET:
            pass


def _steps(rng: random.Random, *, run_us: int = 5000, sleep_us: int = 1500) -> Iterator[Operation]:
    """A loop that works, then waits for its device."""
    while True:
        yield Operation(OperationKind.RUN, int(rng.uniform(0.8, 1.2) * run_us * _US))
        yield Operation(OperationKind.SLEEP, int(rng.uniform(0.8, 1.2) * sleep_us * _US))


def _hog() -> Iterator[Operation]:
    while True:
        yield Operation(OperationKind.RUN, 1000 * _MS)


def _yields(rng: random.Random) -> Iterator[Operation]:
    while True:
        yield Operation(OperationKind.RUN, rng.randrange(100, 200) * _US)
        yield Operation(OperationKind.YIELD)


def _pipe(other: Task, rng: random.Random) -> Iterator[Operation]:
    while True:
        yield Operation(OperationKind.RUN, rng.randrange(100, 200) * _US)
        yield Operation(OperationKind.WAKE, task=other)
        yield Operation(OperationKind.BLOCK)


def _forks(name: str, rng: random.Random) -> Iterator[Operation]:
    while True:
        yield Operation(OperationKind.RUN, rng.randrange(200, 400) * _US)
        yield Operation(
            OperationKind.FORK,
            task=Task(name, iter((Operation(OperationKind.RUN, rng.randrange(400, 1500) * _US),))),
        )
        yield Operation(OperationKind.SLEEP, rng.randrange(200, 600) * _US)
