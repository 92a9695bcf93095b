"""What a trace says, for people and as JSON: threads with their waits and culprits, findings, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Floats
from strata.decision import Reason
from strata.host.analysis.culprit import as_culprit, by_name
from strata.host.analysis.findings import cpu_time, crowds, gaps, gpu_idle, peers, placement, sleeping, waits
from strata.host.analysis.findings.finding import (
    WARNING_SHARE,
    Finding,
    Severity,
    in_words,
    main_culprit,
    predicted_gain,
    process_of,
    share_of,
    without,
)
from strata.host.analysis.findings.gpu_idle import idleness
from strata.host.analysis.pool_lanes import pool_lanes, pool_of
from strata.host.analysis.run_queue_delays import switch_outs
from strata.host.analysis.sleeps import Sleeps, sleeps_of
from strata.host.analysis.view import TraceView
from strata.host.threads.processes import Process

MOST_CULPRITS: Final = 50
"""Names that are listed for a thread; of a storm of 20,000 threads each met all others."""
MOST_PROCESSES: Final = 20
MOST_SLEEPERS: Final = 64
DETECTORS: Final[tuple[Callable[[TraceView], Iterator[Finding]], ...]] = (
    waits.delayed,
    gpu_idle.find,
    waits.preempted,
    cpu_time.interrupted,
    cpu_time.stolen,
    cpu_time.throttled,
    placement.moved,
    waits.yielding,
    crowds.oversubscribed,
    crowds.fork_storms,
    placement.beside_idle_cpus,
    cpu_time.slowed,
    peers.straggling,
    peers.woken_late,
    waits.starved,
    sleeping.find,
    gaps.find,
)
"""In this order where findings matter alike."""


def findings_of(view: TraceView) -> tuple[Finding, ...]:
    """Return all findings: the most severe first, among these whose culprit alone cost most.

    So one thief of 300 ms comes before 400 ms that many others had between them.
    """
    findings = [finding for find in DETECTORS for finding in find(view)]
    return tuple(
        sorted(
            findings,
            key=lambda finding: (
                -finding.severity.rank,
                -finding.cost_ms * finding.culprit_share * finding.confidence,
            ),
        )
    )


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """How one thread waited. The mean and the percentile are of waits that were over; `unfinished` is the rest.

    `task` is the thread's index in the view: ids and names may come twice.
    """

    task: int
    comm: str
    tid: int
    is_critical: bool
    waits: int
    wait_ms_total: float
    wait_ms_mean: float
    wait_ms_p99: float
    unfinished_ms: float
    run_ms: float
    culprits: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form. Culprits sum to `wait_ms_total`."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "task"}
        return {
            **{name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()},
            "culprits": [_shown(name, held) for name, held in self._by_name()],
        }

    def _by_name(self) -> list[tuple[str, list[tuple[int | None, float]]]]:
        names = sorted(by_name(self.culprits).items(), key=lambda item: -sum(ms for _, ms in item[1]))
        if len(names) > MOST_CULPRITS:
            left = sum(ms for _, held in names[MOST_CULPRITS - 1 :] for _, ms in held)
            names = [*names[: MOST_CULPRITS - 1], ("(others)", [(None, left)])]
        return names


def _shown(name: str, held: list[tuple[int | None, float]]) -> dict[str, Any]:
    known = sorted(((pid, ms) for pid, ms in held if pid is not None), key=lambda item: -item[1])
    processes = [{"pid": pid, "ms": round(ms, 6)} for pid, ms in known[:MOST_PROCESSES]]
    total = {"comm": name, "ms": round(sum(ms for _, ms in held), 6)}
    return {**total, "processes": processes} if processes else total


@dataclass(frozen=True, slots=True)
class TraceReport:
    """A diagnosed trace. num_threads: those that ran or waited, of which `threads` may have the first only.

    job: what the job that was recorded is called, "" where that is not known.
    """

    view: TraceView
    num_threads: int
    threads: tuple[ThreadReport, ...]
    findings: tuple[Finding, ...]
    job: str = ""

    def worst(self) -> Severity | None:
        """Return the highest severity found; None for no finding."""
        return max((finding.severity for finding in self.findings), key=lambda finding: finding.rank, default=None)

    def sleeps(self) -> tuple[Sleeps, ...]:
        """Return why critical threads slept, those that did."""
        of_all = (sleeps_of(self.view, thread.task) for thread in self.threads if thread.is_critical)
        return tuple(slept for slept in islice(of_all, MOST_SLEEPERS) if slept.ms)

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        trace = self.view.trace
        return {
            "job": self.job,
            "events": trace.num_events,
            "unparsed": trace.unparsed,
            "lost": trace.lost,
            "wall_ms": self.view.wall_ns / 1e6,
            "cpus": len(self.view.on_cpu.cpus),
            "switch_outs": switch_outs(trace, self.view.tasks, self.view.on_cpu),
            "gpu": gpu.to_dict() if (gpu := idleness(self.view)) else None,
            "verdict": verdict(self),
            "findings": [_finding(finding, trace.start_ns) for finding in self.findings],
            "lanes": pool_lanes(self.view),
            "sleeps": [slept.to_dict() for slept in self.sleeps()],
            "num_threads": self.num_threads,
            "processes": [{**process.to_dict(), "job": process.job} for process in self._processes()],
            "threads": [thread.to_dict() for thread in self.threads],
        }

    def _processes(self) -> list[Process]:
        """Return the processes that had the CPU while critical threads waited."""
        pids = {
            as_culprit(label).pid for thread in self.threads if thread.is_critical for label in thread.culprits
        }
        known = self.view.census.processes
        return [known[pid] for pid in sorted(pid for pid in pids if pid is not None) if pid in known]


def _finding(finding: Finding, start_ns: int) -> dict[str, Any]:
    gain, trust = predicted_gain(finding) or (None, None)
    gains = {"predicted_gain": None if gain is None else round(gain, 4), "gain_trust": trust and str(trust)}
    worst = [round((at_ns - start_ns) / 1e6, 3) for at_ns in finding.span_ns] if finding.span_ns else None
    pool = pool_of(finding.thread) if finding.thread else None
    return {**finding.to_dict(), "pool": pool, "worst_ms": worst, **gains}


def report_of(view: TraceView, *, top: int | None = None, job: str = "") -> TraceReport:
    """Return what a trace says: critical threads first, then who waited longest; `top` threads, None for all."""
    tasks = np.flatnonzero((view.ran_ns > 0) | (view.waited_ns > 0))
    tasks = tasks[np.lexsort((-view.waited_ns[tasks], ~view.is_critical[tasks]))]
    threads = sorted(
        _threads(view, tasks[:top]), key=lambda thread: (not thread.is_critical, -thread.wait_ms_total)
    )
    return TraceReport(view, len(tasks), tuple(threads), findings_of(view), job)


def _threads(view: TraceView, tasks: NDArray[np.intp]) -> Iterator[ThreadReport]:
    for task, culprits in zip(tasks.tolist(), _culprits(view, tasks), strict=True):
        waits = view.waits_by(task)
        over = waits[view.delays.is_over[waits]]
        lengths_ms = view.delays.length_ns[over] / 1e6
        yield ThreadReport(
            task,
            view.name(task),
            int(view.tasks.tid[task]),
            bool(view.is_critical[task]),
            len(over),
            float(lengths_ms.sum()),
            float(lengths_ms.sum()) / max(len(over), 1),
            _p99(lengths_ms),
            float(view.waited_ns[task]) / 1e6 - float(lengths_ms.sum()),
            float(view.ran_ns[task]) / 1e6,
            culprits,
        )


def _culprits(view: TraceView, tasks: NDArray[np.intp]) -> Iterator[dict[str, float]]:
    """Yield who had the CPU during the waits of each thread that were over [ms], in order of their importance."""
    rank = np.full(len(view.tasks), -1)
    rank[tasks] = np.arange(len(tasks))
    over = np.flatnonzero(view.delays.is_over & (rank[view.delays.task] >= 0))
    over = over[np.argsort(rank[view.delays.task[over]], kind="stable")]
    group, culprit, ns = view.attribution.shares(over, rank[view.delays.task[over]])
    edges = np.searchsorted(group, np.arange(len(tasks) + 1)).tolist()
    for first, last in pairwise(edges):
        yield {
            name: held / 1e6 for name, held in view.attribution.named(culprit[first:last], ns[first:last]).items()
        }


def _p99(values: Floats) -> float:
    """Return the 99th percentile as NumPy does, which is slow for the many threads of a fork storm."""
    if not len(values):
        return 0.0
    place, rest = divmod(0.99 * (len(values) - 1), 1.0)
    ordered = np.sort(values)
    low = float(ordered[int(place)])
    return low + rest * (float(ordered[min(int(place) + 1, len(values) - 1)]) - low)


def verdict(report: TraceReport) -> str:
    """Return the report in one paragraph, for someone who knows nothing of schedulers."""
    view = report.view
    seconds = view.wall_ns / 1e9
    critical = [thread for thread in report.threads if thread.is_critical]
    if not critical or view.is_guessed:
        start = f"In {seconds:.1f} s on {len(view.on_cpu.cpus)} CPUs, no thread was recognised as critical."
        longest = ", ".join(f"{thread.comm} ({thread.wait_ms_total:,.0f} ms)" for thread in critical)
        guess = f" Of the threads that work in rounds, these waited longest: {longest}." if critical else ""
        return f"{start}{guess} Name yours with --critical, or record while the job runs."
    waited = max(critical, key=lambda thread: thread.wait_ms_total + thread.unfinished_ms)
    task = waited.task
    share = float(view.waited_ns[task] / view.lived_ns[task])
    name = f"{waited.comm} ({waited.tid})"
    serious = [
        finding for finding in report.findings if finding.severity is not Severity.INFO and finding.cost_ms > 0
    ]
    sentences = []
    if not serious or share < WARNING_SHARE:
        sentences.append(
            f"{name} was runnable but not running {share:.1%} of its {view.lived_ns[task] / 1e9:.1f} s: "
            "waiting for a CPU is not what slows it down."
        )
    else:
        culprit = main_culprit(waited.culprits)
        process = process_of(view, culprit)
        who = f"{culprit}: {process}," if process is not None else culprit
        held = f"For {share_of(waited.culprits, culprit):.0%} of that time, {who} held the CPU."
        sentences += [
            f"{name} was runnable but not running {share:.0%} of its {view.lived_ns[task] / 1e9:.1f} s "
            f"({waited.waits:,} waits of {waited.wait_ms_mean:.1f} ms on average).",
            held if culprit else "No thread held the CPU meanwhile.",
            f"Without these waits it could do {in_words(without(share))}.",
        ]
    # The first that is not the same again: a preemption is a wait as well.
    extra = [finding for finding in serious if finding.token not in ("cpu-wait", "cpu-preempted")][:1]
    sentences += [f"Also: {Reason(finding.token, data=finding.reason.data)}." for finding in extra]
    if serious:
        sentences.append(f"First step: {serious[0].advice}")
    if view.trace.lost:
        sentences.append("Events were lost while recording, so these figures are too low.")
    return " ".join(sentences)
