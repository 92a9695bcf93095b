"""All faults by some seeds, each recorded, reported and scored; on this kernel, or on the simulated one."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from strata.evaluation.fault_injection.live import FaultMissing, record_trial
from strata.evaluation.fault_injection.scenarios import InjectedFault, scenario
from strata.evaluation.fault_injection.score import DiagnosisScore, Trial, TrialOutcome, outcome_of, score
from strata.host.analysis.report import report_of
from strata.host.analysis.view import TraceView
from strata.host.trace.read import read_trace

Recorder = Callable[..., Trial]
"""Makes a fault and records it: `record_trial`."""
TRIES: Final = 2
"""Of a trial that others disturb; then it is left out of the score, and counted."""


def simulated(seeds: int) -> DiagnosisScore:
    """Return how often the culprit is named in traces of the simulated kernel: the same each time."""
    outcomes = []
    with _trace_file() as trace:
        for seed in range(seeds):
            for fault in InjectedFault:
                trial, text = scenario(fault, seed=seed)
                trace.write_bytes(text)
                outcomes.append(outcome_of(trial, report_of(_view(trace, trial))))
    return score(outcomes)


def live(
    seeds: int, *, advance: Callable[[float], None] = lambda _done: None, record: Recorder = record_trial
) -> DiagnosisScore:
    """Return how often the culprit is named on this kernel, where it can be told who it was.

    A trial in which someone else had the CPUs for longer than the culprit is made again, `TRIES` times at most. A
    fault that cannot be made here is left out, and said. Raises MissingPart where the kernel cannot be traced.
    """
    outcomes: list[TrialOutcome] = []
    skipped: dict[str, str] = {}
    with _trace_file() as trace:
        for done in range(seeds * len(InjectedFault)):
            seed, fault = done // len(InjectedFault), list(InjectedFault)[done % len(InjectedFault)]
            if fault not in skipped:
                try:
                    outcomes.append(live_trial(fault, seed=seed, trace=trace, record=record))
                except FaultMissing as error:
                    skipped[fault] = str(error)
            advance((done + 1) / (seeds * len(InjectedFault)))
    return score(outcomes, skipped=skipped)


def live_trial(fault: InjectedFault, *, seed: int, trace: Path, record: Recorder = record_trial) -> TrialOutcome:
    """Return what a report says of one fault on this kernel; leaves its trace.

    Raises MissingPart where it cannot be traced, FaultMissing where the fault cannot be made.
    """
    for tries in range(1, TRIES + 1):
        trial = record(fault, seed=seed, trace=trace)
        view = _view(trace, trial)
        shares = _shares(view, trial.trainer)
        culprit = max((shares.pop(name, 0.0) for name in trial.injected), default=0.0)
        shares.pop(trial.trainer, None)
        outcome = outcome_of(
            trial, report_of(view), others=max(shares.values(), default=0.0), culprit=culprit, tries=tries
        )
        if not outcome.is_disturbed:
            break
    return outcome


@contextmanager
def _trace_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "trace.txt"


def _view(trace: Path, trial: Trial) -> TraceView:
    return TraceView(read_trace(trace), critical=(trial.trainer,), steal=trial.steal)


def _shares(view: TraceView, trainer: str) -> dict[str, float]:
    """Return who had the CPUs that the trainer ran on or waited for, for which share of the time.

    Threads and interrupts.
    """
    runs, waits, interrupts = view.on_cpu, view.delays, view.interrupts
    trainers = [task for task in range(len(view.tasks)) if view.name(task) == trainer]
    lengths_ns = runs.end_ns - runs.start_ns
    is_trainer = np.isin(runs.task, trainers)
    there_ns = np.bincount(runs.cpu[is_trainer], weights=lengths_ns[is_trainer], minlength=len(runs.cpus))
    queued = np.isin(waits.task[waits.part_wait], trainers) & (waits.part_cpu >= 0)
    np.add.at(there_ns, waits.part_cpu[queued], (waits.part_end_ns - waits.part_start_ns)[queued])
    # Not where it was born, before it went to the CPU it is pinned to.
    cpus = np.flatnonzero(there_ns >= 0.1 * there_ns.sum())
    all_ns = view.wall_ns * max(len(cpus), 1)
    shares: dict[str, float] = defaultdict(float)
    ours = np.flatnonzero((runs.task >= 0) & np.isin(runs.cpu, cpus))
    for task, ns in zip(runs.task[ours].tolist(), lengths_ns[ours].tolist(), strict=True):
        shares[view.name(task)] += ns / all_ns
    ours = np.flatnonzero(np.isin(interrupts.cpu, cpus))
    held_ns = (interrupts.end_ns - interrupts.start_ns)[ours]
    for cause, ns in zip(interrupts.cause[ours].tolist(), held_ns.tolist(), strict=True):
        shares[interrupts.causes[cause]] += ns / all_ns
    return shares
