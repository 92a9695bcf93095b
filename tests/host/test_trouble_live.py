"""Trouble on the kernel that runs here: reports name who was started to make it, and account for every wait."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from host_oracle import accounts_of
from strata.host.record.work import Work
from strata.host.report import report_of
from strata.host.trace.read import read_trace
from strata.host.trouble.live import record, record_trial
from strata.host.trouble.scenes import Trouble
from strata.host.trouble.score import Score, Trial
from strata.host.trouble.trials import live
from strata.host.view import view_of

SEEDS = 3


@pytest.fixture(scope="module")
def trials(tmp_path_factory) -> tuple[Score, Path]:
    """All troubles three times, a minute and more, and where their traces are."""
    if not os.environ.get("STRATA_REAL"):
        pytest.skip("a minute of trouble for the whole machine: `make test-real` makes it")
    folder = tmp_path_factory.mktemp("trials")

    def kept(trouble: Trouble, *, seed: int, trace: Path) -> Trial:
        trial = record_trial(trouble, seed=seed, trace=trace)
        shutil.copy(trace, folder / f"{trouble}-{seed}.txt")
        return trial

    return live(SEEDS, record=kept), folder


@pytest.mark.real("tracing")
def test_injected_culprits_are_named_on_a_real_kernel_and_no_one_of_a_quiet_one(trials):
    found = trials[0]
    assert set(found.skipped) <= {Trouble.IRQ_LOAD}, found.skipped  # which needs a network namespace
    if found.precision is not None and found.recall is not None:
        assert min(found.precision, found.recall) >= 0.95, found.to_dict()["missed"]
    made = {Trouble(one.trial.trouble) for one in found.outcomes} | {Trouble(one) for one in found.skipped}
    if left := set(Trouble) - made:
        pytest.skip(f"others had the CPUs: {', '.join(left)} not scored, {found.disturbed} trials disturbed")


@pytest.mark.real("tracing")
@pytest.mark.parametrize("trouble", list(Trouble))
def test_every_wait_of_a_real_trace_is_accounted_for_as_the_plainest_reader_does(trouble, trials):
    trace = trials[1] / f"{trouble}-0.txt"
    if not trace.exists():
        pytest.skip(f"{trouble}: {trials[0].skipped[trouble]}")
    report = report_of(view_of(read_trace(trace))).to_dict()
    assert report["lost"] == 0
    assert accounts_of(report) == accounts_of(trace)


@pytest.mark.real("tracing")
def test_waits_are_as_long_as_the_kernel_counts_them(tmp_path):
    # A process that says, at a time, how long it could run and had no CPU (schedstat of the kernel).
    says = (
        "import threading, time; from pathlib import Path\n"
        "for i in range(40): sum(range(300_000)); time.sleep(0.005)\n"
        "Path({answer!r}).write_text(f'{{threading.get_native_id()}} {{time.monotonic_ns()}} '\n"
        "    + Path('/proc/self/schedstat').read_text())"
    )
    answer, trace = tmp_path / "answer", tmp_path / "trace.txt"
    hogs = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(3)]
    try:
        record(Work(seconds=30, command=[sys.executable, "-S", "-c", says.format(answer=str(answer))]), trace)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    tid, until_ns, _, waited_ns, _ = map(int, answer.read_text().split())
    view = view_of(read_trace(trace))
    (life,) = np.flatnonzero(view.lives.tid == tid)
    waits = view.waits_by(int(life))
    waits = waits[view.waits.end_ns[waits] <= until_ns]
    assert waited_ns > 10_000_000
    assert int(view.waits.length_ns[waits].sum()) == pytest.approx(waited_ns, rel=0.02, abs=1e6)
