"""Reports account for every wait as the plainest reader does: on simulated faults, and on the sample trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from strata.evaluation.fault_injection.scenarios import InjectedFault, scenario
from strata.host.analysis.report import report_of
from strata.host.analysis.view import TraceView
from strata.host.trace.read import read_trace
from tests import SHARED
from tests.evaluation.fault_injection.host_oracle import accounts_of
from tests.host.traces import IDLE, Text

SAMPLES = SHARED / "data" / "host_samples"


def both(trace: Path) -> tuple[object, object]:
    return accounts_of(report_of(TraceView(read_trace(trace))).to_dict()), accounts_of(trace)


@pytest.mark.parametrize("fault", list(InjectedFault))
def test_simulated_traces_are_accounted_for(fault, tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_bytes(scenario(fault, seed=5)[1])
    ours, plain = both(trace)
    assert ours == plain
    assert ours


def test_the_sample_trace_is_accounted_for():
    trace = SAMPLES / "perf_script_sched.txt"
    if not trace.exists():
        pytest.skip("needs ../shared/data/host_samples/perf_script_sched.txt")
    ours, plain = both(trace)
    assert ours == plain


def test_one_id_used_by_a_hundred_short_processes_is_accounted_for_one_by_one(tmp_path):
    parent, trainer, text = ("make", 40), ("trainer_main", 11), Text()
    text.switch(0, 0, IDLE, parent)
    for step in range(100):
        now, child = 10.0 * step, (f"cc{step % 3}", 50)
        text.fork(now + 1, 0, parent, ("make", 50)).wake(now + 1.1, 0, ("make", 50), by=parent, kind="wakeup_new")
        text.wake(now + 1.5, 0, trainer, by=parent).switch(now + 2, 0, parent, ("make", 50), "R")
        text.irq(now + 2.5, now + 2.7, 0).switch(now + 3, 0, ("make", 50), trainer, "R")
        text.switch(now + 4, 0, trainer, child).softirq(now + 4.2, now + 4.6, 0).exit(now + 5, 0, child)
        text.switch(now + 5, 0, child, parent, "X")
    trace = tmp_path / "trace.txt"
    trace.write_text("\n".join(text.lines) + "\n")
    ours, plain = both(trace)
    assert ours == plain
    assert len(ours) == 102  # type: ignore[arg-type]
