"""All troubles by some seeds, each recorded, reported and scored; on this kernel, or on the simulated one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

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
    whole_ns = view.wall_ns * max(len(view.runs.cpus), 1)
    culprit = _ran_ns(view, trial.injected) / whole_ns
    others = int(view.ran_ns.sum()) / whole_ns - culprit - _ran_ns(view, {TRAINER}) / whole_ns
    return outcome_of(trial, report_of(view), others=others, culprit=culprit)


@contextmanager
def _trace_file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "trace.txt"


def _view(trace: Path) -> View:
    return view_of(read_trace(trace), critical=(TRAINER,))


def _ran_ns(view: View, names: Collection[str]) -> int:
    return sum(int(ns) for life, ns in enumerate(view.ran_ns.tolist()) if view.name(life) in names)
