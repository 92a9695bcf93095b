"""All troubles by some seeds, each recorded, reported and scored; on this kernel, or on the simulated one."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from strata.host.report import report_of
from strata.host.trace.read import read_trace
from strata.host.trouble.scenes import TRAINER, Trouble, scene
from strata.host.trouble.score import Outcome, Score, outcome_of, score
from strata.host.view import View, view_of


def simulated(seeds: int) -> Score:
    """Return how often the culprit is named in traces of the simulated kernel: the same each time."""
    outcomes = []
    with _trace_file() as trace:
        for seed in range(seeds):
            for trouble in Trouble:
                trial, text = scene(trouble, seed=seed)
                trace.write_bytes(text)
                outcomes.append(outcome_of(trial, report_of(_view(trace))))
    return score(outcomes)


def live(seeds: int, *, advance: Callable[[float], None]) -> Score:
    """Return how often the culprit is named on this kernel. Raises MissingPart where it cannot be traced."""
    from strata.host.trouble.live import REAL

    outcomes = []
    with _trace_file() as trace:
        for seed in range(seeds):
            for trouble in REAL:
                outcomes.append(live_trial(trouble, seed=seed, trace=trace))
                advance(len(outcomes) / (seeds * len(REAL)))
    return score(outcomes)


def live_trial(trouble: Trouble, *, seed: int, trace: Path) -> Outcome:
    """Return what a report says of one trouble on this kernel; leaves its trace."""
    from strata.host.trouble.live import record_trial

    trial = record_trial(trouble, seed=seed, trace=trace)
    view = _view(trace)
    shares = _shares(view, os.sched_getaffinity(0))
    culprit = sum(shares.get(name, 0.0) for name in trial.injected)
    others = sum(shares.values()) - culprit - shares.get(TRAINER, 0.0)
    return outcome_of(trial, report_of(view), others=others, culprit=culprit)


@contextmanager
def _trace_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "trace.txt"


def _view(trace: Path) -> View:
    return view_of(read_trace(trace), critical=(TRAINER,))


def _shares(view: View, cpus: Collection[int]) -> dict[str, float]:
    """Return each name's share of the time of some CPUs."""
    runs = view.runs
    ours = np.flatnonzero((runs.life >= 0) & np.isin(runs.cpus[runs.cpu], list(cpus)))
    shares: dict[str, float] = defaultdict(float)
    for life, ns in zip(runs.life[ours].tolist(), (runs.end_ns - runs.start_ns)[ours].tolist(), strict=True):
        shares[view.name(life)] += ns / (view.wall_ns * len(cpus))
    return shares
