"""Traces whose culprit is known, in all forms and under many names, through the command as its users call it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.evaluation.fault_injection.kernel import Operation, OperationKind, SimulatedKernel, Task

MS = 1_000_000
Hosts = Callable[[SimulatedKernel], None]


def steps(*, run_ms: float = 5.0, sleep_ms: float = 1.5, seed: int = 1) -> Iterator[Operation]:
    """Work, then wait for a device."""
    rng = random.Random(seed)
    while True:
        yield Operation(OperationKind.RUN, round(rng.uniform(0.8, 1.2) * run_ms * MS))
        yield Operation(OperationKind.SLEEP, round(rng.uniform(0.8, 1.2) * sleep_ms * MS))


def trainer(name: str, *, cpu: int | None = None, seed: int = 1) -> Hosts:
    """A loop that works and waits for its device."""
    cpus = frozenset() if cpu is None else frozenset({cpu})

    def start(kernel: SimulatedKernel) -> None:
        kernel.spawn(Task(name, steps(seed=seed), cpus))

    return start


def busy(*names: str, cpu: int | None = None) -> Hosts:
    """Loops that never sleep, of these names."""
    cpus = frozenset() if cpu is None else frozenset({cpu})

    def start(kernel: SimulatedKernel) -> None:
        for name in names:
            kernel.spawn(Task(name, iter([Operation(OperationKind.RUN, 10**12)]), cpus), at_ns=20 * MS)

    return start


def often(name: str, *, cpu: int, run_ms: float, sleep_ms: float) -> Hosts:
    """A thread that works now and then on one CPU."""

    def start(kernel: SimulatedKernel) -> None:
        program = steps(run_ms=run_ms, sleep_ms=sleep_ms, seed=7)
        kernel.spawn(Task(name, program, frozenset({cpu})), at_ns=20 * MS)

    return start


def perf(raw: str) -> str:
    return raw


def perf_default(raw: str) -> str:
    """As `perf script` prints without options: one id, microseconds."""
    return re.sub(r"^( *\S.*?) +(\d+)/\d+ +(\[\d+\] +\d+\.\d{6})\d{3}:", r"\1 \2 \3:", raw, flags=re.MULTILINE)


def tracefs(raw: str) -> str:
    """As the kernel's own tracing prints."""
    line = re.compile(r"^ *(\S.*?) +(\d+)/\d+ +(\[\d+\]) +(\d+\.\d{6})\d{3}: +\w+:(\w+): ?", re.MULTILINE)
    return "# tracer: nop\n#\n" + line.sub(r"\1-\2     \3 d..2.  \4: \5: ", raw)


HOSTS: dict[str, tuple[int, list[Hosts], str, str]] = {
    "a backup beside one trainer": (
        2,
        [trainer("pt_main_thread"), busy(*["restic"] * 4)],
        "pt_main_thread",
        "restic",
    ),
    "an agent that shares the trainer's CPU": (
        4,
        [trainer("trainer_main", cpu=2), often("node_exporter", cpu=2, run_ms=4, sleep_ms=3)],
        "trainer_main",
        "node_exporter",
    ),
    "one of four ranks beside a compiler": (
        4,
        [*(trainer(f"rank{i}", cpu=i, seed=i) for i in range(4)), busy("cc1plus", cpu=1)],
        "rank1",
        "cc1plus",
    ),
    "too many loaders": (2, [trainer("train"), busy(*["pt_data_worker"] * 9)], "train", "pt_data_worker"),
    "writeback by many kernel workers": (
        2,
        [trainer("trainer_main"), busy(*[f"kworker/u8:{i}" for i in range(6)])],
        "trainer_main",
        "kworker/u",
    ),
    "softirqs in their own thread": (
        2,
        [trainer("trainer_main", cpu=1), often("ksoftirqd/1", cpu=1, run_ms=3, sleep_ms=1)],
        "trainer_main",
        "ksoftirqd/1",
    ),
    "a threaded interrupt": (
        2,
        [trainer("megatron", cpu=0), often("irq/36-eth0", cpu=0, run_ms=2, sleep_ms=2)],
        "megatron",
        "irq/36-eth0",
    ),
    "names with spaces and arrows": (
        2,
        [trainer("trainer_main"), busy(*["a ==> b: c=1"] * 4)],
        "trainer_main",
        "a ==> b: c=1",
    ),
}
"""CPUs, who is there, who suffers, and by whom."""


def report(trace: Path, text: str) -> dict[str, Any]:
    trace.write_text(text)
    called = CliRunner().invoke(cli, ["host", "report", str(trace), "-o", "json"])
    assert called.exit_code == 0, called.output
    return json.loads(called.stdout)


@pytest.mark.parametrize("form", [perf, perf_default, tracefs])
@pytest.mark.parametrize("host", HOSTS)
def test_the_culprit_is_named_first_and_had_most_of_the_waits(host, form, tmp_path):
    num_cpus, there, victim, culprit = HOSTS[host]
    kernel = SimulatedKernel(num_cpus)
    for start in there:
        start(kernel)
    answer = report(tmp_path / "trace.txt", form(kernel.run(600 * MS).decode()))
    assert (answer["unparsed"], answer["lost"]) == (0, 0)
    first = answer["findings"][0]
    assert first["severity"] in ("warning", "error")
    assert (first["thread"], first["culprit"]) == (victim, culprit)
    assert culprit in first["evidence"] + first["what"]
    thread = next(one for one in answer["threads"] if one["comm"] == victim)
    assert thread["culprits"][0]["comm"].startswith(culprit)
    for one in answer["threads"]:
        assert sum(held["ms"] for held in one["culprits"]) == pytest.approx(one["wait_ms_total"], abs=1e-5)


def test_the_answer_has_the_keys_that_are_promised(tmp_path):
    kernel = SimulatedKernel(1)
    for start in (trainer("trainer_main"), busy("restic", "restic")):
        start(kernel)
    answer = report(tmp_path / "trace.txt", kernel.run(200 * MS).decode())
    assert {"events", "unparsed", "lost", "threads", "findings"} <= answer.keys()
    promised = {"comm", "tid", "waits", "wait_ms_total", "wait_ms_mean", "wait_ms_p99", "culprits"}
    assert all(promised <= one.keys() and one["waits"] >= 0 for one in answer["threads"])
    assert all(held.keys() == {"comm", "ms"} for one in answer["threads"] for held in one["culprits"])
    promised = {"token", "severity", "thread", "evidence", "cost_ms", "advice", "confidence"}
    assert all(promised <= one.keys() for one in answer["findings"])
    assert answer["findings"]
