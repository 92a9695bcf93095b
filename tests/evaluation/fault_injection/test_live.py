"""Injected faults on the kernel that runs here: reports name the culprit, and account for every wait."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from strata.evaluation.fault_injection.live import record, record_trial
from strata.evaluation.fault_injection.scenarios import InjectedFault
from strata.evaluation.fault_injection.score import DiagnosisScore, Trial
from strata.evaluation.fault_injection.trials import live
from strata.host.analysis.report import report_of
from strata.host.analysis.view import TraceView
from strata.host.record.work import RecordedCommand
from strata.host.trace.read import read_trace
from tests.evaluation.fault_injection.host_oracle import accounts_of

SEEDS = 3


@pytest.fixture(scope="module")
def trials(tmp_path_factory) -> tuple[DiagnosisScore, Path]:
    """All faults three times, a minute and more, and where their traces are."""
    if not os.environ.get("STRATA_REAL"):
        pytest.skip("a minute of faults for the whole machine: `make test-real` makes it")
    folder = tmp_path_factory.mktemp("trials")

    def kept(fault: InjectedFault, *, seed: int, trace: Path) -> Trial:
        trial = record_trial(fault, seed=seed, trace=trace)
        shutil.copy(trace, folder / f"{fault}-{seed}.txt")
        return trial

    return live(SEEDS, record=kept), folder


@pytest.mark.real("tracing")
@pytest.mark.xdist_group("tracing")
def test_injected_culprits_are_named_on_a_real_kernel_and_no_one_of_a_quiet_one(trials):
    found = trials[0]
    assert set(found.skipped) <= {InjectedFault.IRQ_LOAD}, found.skipped  # which needs a network namespace
    if found.precision is not None and found.recall is not None:
        assert (found.precision, found.recall) == (1.0, 1.0), found.to_dict()["missed"]
    made = {InjectedFault(one.trial.fault) for one in found.outcomes} | {
        InjectedFault(one) for one in found.skipped
    }
    if left := set(InjectedFault) - made:
        pytest.skip(f"others had the CPUs: {', '.join(left)} not scored, {found.disturbed} trials disturbed")


@pytest.mark.real("tracing")
@pytest.mark.xdist_group("tracing")
@pytest.mark.parametrize("fault", list(InjectedFault))
def test_every_wait_of_a_real_trace_is_accounted_for_as_the_plainest_reader_does(fault, trials):
    trace = trials[1] / f"{fault}-0.txt"
    if not trace.exists():
        pytest.skip(f"{fault}: {trials[0].skipped[fault]}")
    report = report_of(TraceView(read_trace(trace))).to_dict()
    assert report["lost"] == 0
    assert accounts_of(report) == accounts_of(trace)


@pytest.mark.real("tracing")
@pytest.mark.xdist_group("tracing")
def test_waits_are_as_long_as_the_kernel_counts_them(tmp_path):
    # A process that says each turn how long it had no CPU until then: the kernel's schedstat, which has to be the
    # same before and after the clock is read.
    says = (
        "import json, threading, time; from pathlib import Path\n"
        "def waited(): return int(Path('/proc/self/schedstat').read_text().split()[1])\n"
        "def moment():\n"
        "    while True:\n"
        "        before, now_ns, after = waited(), time.monotonic_ns(), waited()\n"
        "        if before == after: return now_ns, after\n"
        "moments = [moment()]\n"
        "for i in range(40): sum(range(300_000)); time.sleep(0.005); moments.append(moment())\n"
        "Path({answer!r}).write_text(json.dumps([threading.get_native_id(), moments]))\n"
    )
    answer, trace = tmp_path / "answer", tmp_path / "trace.txt"
    hogs = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(3)]
    try:
        record(
            RecordedCommand(seconds=30, command=[sys.executable, "-S", "-c", says.format(answer=str(answer))]),
            trace,
        )
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    tid, moments = json.loads(answer.read_text())
    view = TraceView(read_trace(trace))
    (task,) = np.flatnonzero(view.tasks.tid == tid)
    of_it = view.waits_by(int(task))
    start_ns, end_ns = view.delays.start_ns[of_it], view.delays.end_ns[of_it]
    wrong = 0
    for (since_ns, before_ns), (until_ns, after_ns) in itertools.pairwise(moments):
        is_within = (start_ns >= since_ns) & (end_ns <= until_ns)
        wrong += abs(int(np.sum((end_ns - start_ns)[is_within])) - (after_ns - before_ns)) > 1_000_000
    assert moments[-1][1] - moments[0][1] > 10_000_000
    # A kernel may hide what happens while a thread runs that nobody may look into, as the agent of a virtual
    # machine: a wait that such a thread's end ends is missing.
    assert wrong <= 2
