"""A trace as one HTML file that needs nothing else: lanes, waits by cause, findings on the time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from strata.arrays import Bools, Floats, Ints
from strata.host.analysis.culprit import as_culprit
from strata.host.analysis.intervals import union, within
from strata.host.analysis.report import TraceReport, verdict
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import TraceView
from strata.pictures.svg import COLOURS

COLUMNS: Final = 560
WIDTH: Final = 1120
"""Pixels of the time axis; two a column."""
LEFT: Final = 150
LANE: Final = 34
GAP: Final = 8
MOST_LETTERS: Final = 24
"""Of a lane's name; bytes that are not text take four each."""
MOST_CPUS: Final = 16
MOST_THREADS: Final = 6
_CRITICAL: Final = "var(--critical)"
_OTHER: Final = "var(--other)"
_INTERRUPT: Final = "var(--ink)"
_KERNELS: Final = COLOURS[2]
_CULPRITS: Final = ("#a0e0a0", "#802000", "#4000c0", "#808060", "#206040", "#400060")
"""Told from each other and from all others of the page by the colour-blind, in both modes."""
_CAUSES: Final = {Cause.WOKEN: COLOURS[1], Cause.PREEMPTED: COLOURS[5], Cause.YIELDED: COLOURS[3]}
_SAID: Final = {
    Cause.WOKEN: "waits after a wakeup",
    Cause.PREEMPTED: "waits after preemption",
    Cause.YIELDED: "waits after a yield",
}
Span = tuple[int, int]
Layers = list[tuple[str, str, Floats]]
"""Of a lane, from the bottom: colour, label and share of each column's time."""


def page(report: TraceReport, *, title: str) -> str:
    """Return the page of a report: verdict, the whole trace, its worst wait closer, findings and threads."""
    view = report.view
    colours = _colours(report)
    pinned: dict[Span, list[int]] = {}
    for number, finding in enumerate(report.findings, 1):
        if finding.span_ns is not None:
            pinned.setdefault(finding.span_ns, []).append(number)
    pictures = [_picture("The whole trace", view, (view.trace.start_ns, view.trace.end_ns), colours, pinned)]
    worst = next((finding.span_ns for finding in report.findings if finding.span_ns), None)
    if worst is not None:
        margin = max((worst[1] - worst[0]) // 2, 1)
        near = max(worst[0] - margin, view.trace.start_ns), min(worst[1] + margin, view.trace.end_ns)
        pictures.append(_picture("The worst wait of the first finding", view, near, colours, pinned))
    loader = PackageLoader("strata.host.analysis")
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = env.get_template("page.html").render(
        title=title,
        verdict=verdict(report),
        pictures=pictures,
        keys=_keys(colours, has_accelerator=view.accelerator is not None),
        limits=_limits(view),
        findings=report.findings,
        threads=[thread for thread in report.threads if thread.waits or thread.is_critical][:20],
        left=LEFT,
        width=WIDTH,
        lane=LANE,
        gap=GAP,
    )
    # Names and command lines of processes may hold what moves the cursor of who looks at the file.
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def _colours(report: TraceReport) -> dict[str, str]:
    """Return a colour for each name that held the CPU longest while critical threads waited."""
    held: dict[str, float] = {}
    for thread in report.threads:
        if thread.is_critical:
            for name, ms in thread.culprits.items():
                comm = as_culprit(name).comm
                held[comm] = held.get(comm, 0.0) + ms
    threads = {report.view.trace.names[i] for i in range(len(report.view.trace.names))}
    names = [name for name in sorted(held, key=held.__getitem__, reverse=True) if name in threads]
    return dict(zip(names, _CULPRITS, strict=False))


def _keys(colours: dict[str, str], *, has_accelerator: bool) -> Iterator[tuple[str, list[tuple[str, str]], str]]:
    threads = [("runs", _CRITICAL), *((_SAID[cause], colour) for cause, colour in _CAUSES.items())]
    cpus = [("critical thread", _CRITICAL), *colours.items(), ("other threads", _OTHER), ("interrupt", _INTERRUPT)]
    threads += [("any kernel runs", _KERNELS)] if has_accelerator else []
    yield "Threads", threads, "sleeps"
    yield "CPUs", cpus, "idle"


def _limits(view: TraceView) -> list[str]:
    """Return what has no lane, in words."""
    limits = []
    if len(view.critical_tasks) > MOST_THREADS:
        limits.append(f"the {MOST_THREADS} of {len(view.critical_tasks)} critical threads that waited longest")
    if len(view.on_cpu.cpus) > MOST_CPUS:
        limits.append(f"the {MOST_CPUS} of {len(view.on_cpu.cpus):,} CPUs on which critical threads ran most")
    return limits


def _picture(
    title: str, view: TraceView, of: Span, colours: dict[str, str], pinned: Mapping[Span, Sequence[int]]
) -> dict[str, Any]:
    """Return a lane for each critical thread and CPU, as shares of each column's time; findings on top."""
    edges = np.linspace(of[0], max(of[1], of[0] + COLUMNS), COLUMNS + 1).astype(np.int64)
    start, end = int(edges[0]), int(edges[-1])
    lanes = [*_thread_lanes(view, edges), *_cpu_lanes(view, edges, colours)]
    pins = [
        {
            "x": LEFT + WIDTH * max(first - start, 0) / (end - start),
            "width": max(WIDTH * (min(last, end) - max(first, start)) / (end - start), 1.0),
            "numbers": numbers,
        }
        for (first, last), numbers in pinned.items()
        if last >= start and first <= end
    ]
    return {
        "title": title,
        "height": 60 + len(lanes) * (LANE + GAP),
        "pins": pins,
        "lanes": [(_short(name), list(_stacked(30 + i * (LANE + GAP), of))) for i, (name, of) in enumerate(lanes)],
        "ticks_ms": [(start - view.trace.start_ns + (end - start) * tick / 5) / 1e6 for tick in range(6)],
    }


def _stacked(top: int, layers: Layers) -> Iterator[tuple[str, str, str]]:
    """Yield the layers of a lane that are seen: colour, label and path."""
    base = np.zeros(COLUMNS)
    for colour, label, share in layers:
        if path := _path(top, base, share):
            yield colour, label, path
        base = base + share


def _short(name: str) -> str:
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def _path(top: int, base: Floats, share: Floats) -> str:
    """Return one layer of a lane: a bar where it has a share, on what is below; like neighbours are one."""
    step = WIDTH / COLUMNS
    low, high = np.round(base, 2), np.round(np.minimum(base + share, 1.0), 2)
    change = np.flatnonzero((np.diff(low, prepend=-1) != 0) | (np.diff(high, prepend=-1) != 0))
    path = []
    for first, last in zip(change, [*change[1:], COLUMNS], strict=True):
        if high[first] > low[first]:
            x, y = LEFT + first * step, top + LANE * (1 - high[first])
            path.append(f"M{x:g} {y:.1f}h{(last - first) * step:g}v{LANE * (high[first] - low[first]):.1f}H{x:g}z")
    return "".join(path)


def _thread_lanes(view: TraceView, edges: Ints) -> Iterator[tuple[str, Layers]]:
    if (gpu := view.accelerator) is not None:
        busy = _share(gpu.busy_start_ns, gpu.busy_start_ns + gpu.busy_ns, edges)
        yield "accelerators", [(_KERNELS, "any kernel runs", busy)]
    for task in view.critical_tasks[:MOST_THREADS]:
        is_own = view.on_cpu.task == task
        layers: Layers = [
            (_CRITICAL, "runs", _share(view.on_cpu.start_ns[is_own], view.on_cpu.end_ns[is_own], edges))
        ]
        waits = view.waits_by(task)
        for cause, colour in _CAUSES.items():
            of_cause = waits[view.delays.cause[waits] == cause]
            share = _share(view.delays.start_ns[of_cause], view.delays.end_ns[of_cause], edges)
            layers.append((colour, _SAID[cause], share))
        yield f"{view.name(task)} {view.tasks.tid[task]}", layers


def _cpu_lanes(view: TraceView, edges: Ints, colours: dict[str, str]) -> Iterator[tuple[str, Layers]]:
    """Yield the CPUs on which critical threads ran most often, by number."""
    on_cpu = view.on_cpu
    is_critical = (on_cpu.task >= 0) & np.append(view.is_critical, False)[on_cpu.task]
    use = np.bincount(on_cpu.cpu[is_critical], minlength=len(on_cpu.cpus))
    names = [view.trace.names[i] for i in range(len(view.trace.names))]
    for cpu in sorted(np.argsort(-use, kind="stable")[:MOST_CPUS].tolist()):
        here = (on_cpu.cpu == cpu) & (on_cpu.task >= 0)
        colour_of = {i: colours[name] for i, name in enumerate(names) if name in colours}
        groups: list[tuple[str, str, Bools]] = [(_CRITICAL, "critical", here & is_critical)]
        left = here & ~is_critical
        for comm, colour in colour_of.items():
            groups.append((colour, names[comm], left & (on_cpu.comm == comm)))
            left = left & (on_cpu.comm != comm)
        groups.append((_OTHER, "other threads", left))
        layers: Layers = [
            (colour, label, _share(on_cpu.start_ns[which], on_cpu.end_ns[which], edges))
            for colour, label, which in groups
        ]
        held = view.interrupts.cpu == cpu
        share = _share(view.interrupts.start_ns[held], view.interrupts.end_ns[held], edges)
        # On top of who ran: a handler's time is also counted as the interrupted thread's.
        yield f"CPU {on_cpu.cpus[cpu]}", [(_INTERRUPT, "interrupts", share), *_shrunk(layers, share)]


def _shrunk(layers: Layers, taken: Floats) -> Layers:
    """Return layers made smaller by what interrupts took of them."""
    total = sum((share for _, _, share in layers), np.zeros(COLUMNS))
    keep = np.where(total > 0, np.maximum(total - taken, 0) / np.maximum(total, 1e-9), 1.0)
    return [(colour, label, share * keep) for colour, label, share in layers]


def _share(start: Ints, end: Ints, edges: Ints) -> Floats:
    """Return which share of each column some stretches of time cover."""
    return within(*union(start, end), edges[:-1], edges[1:]) / np.maximum(np.diff(edges), 1)
