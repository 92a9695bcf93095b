"""A trace as one HTML file that needs nothing else: lanes, waits by cause, findings on the time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.host.analysis.culprit import as_culprit
from strata.host.analysis.intervals import union, within
from strata.host.analysis.report import TraceReport, verdict
from strata.host.analysis.run_queue_delays import Cause
from strata.host.analysis.view import TraceView

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
_KERNELS: Final = "#76b900"
_CULPRITS: Final = ("#2a9d8f", "#7fb069", "#e377c2", "#8c6d46", "#17a2c4", "#b5bd3c")
_CAUSES: Final = {Cause.WOKEN: "#f2a541", Cause.PREEMPTED: "#c8102e", Cause.YIELDED: "#9b72cf"}
_SAID: Final = {
    Cause.WOKEN: "waits after a wakeup",
    Cause.PREEMPTED: "waits after preemption",
    Cause.YIELDED: "waits after a yield",
}
_EMPTY: Final = {"Threads": "sleeps", "CPUs": "idle"}
Span = tuple[int, int]
_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#f3f5f8;--lane:#fafbfc;--edge:#e3e6ea;
--dim:#57606a;--critical:#1f4e9c;--other:#c9cdd2;--error:#c8102e;--warning:#b36b00}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--soft:#161b22;--lane:#161b22;--edge:#30363d;
--dim:#9aa4af;--critical:#6ea2f0;--other:#4b535d;--error:#ff6b7a;--warning:#e0a030}}
body{font:14px/1.5 system-ui,sans-serif;max-width:1320px;margin:24px auto;padding:0 16px;color:var(--ink);
background:var(--paper)}
h1{font-size:20px}h2{font-size:16px;margin-top:28px}
.verdict{font-size:16px;background:var(--soft);padding:12px 16px}
li{margin:10px 0}.error b{color:var(--error)}.warning b{color:var(--warning)}small,.note{color:var(--dim)}
svg text{font:11px system-ui,sans-serif;fill:var(--ink)}table{border-collapse:collapse}
td,th{padding:2px 12px 2px 0;text-align:right}
td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}
.pin{fill:var(--ink);opacity:.08}.key span{white-space:nowrap;margin-right:14px;display:inline-block}
.key i{display:inline-block;width:12px;height:12px;margin-right:4px;vertical-align:-1px}
"""


def page(report: TraceReport, *, title: str) -> str:
    """Return the page of a report: verdict, the whole trace, its worst wait closer, findings and threads."""
    view = report.view
    colours = _colours(report)
    pinned: dict[Span, list[int]] = {}
    for number, finding in enumerate(report.findings, 1):
        if finding.span_ns is not None:
            pinned.setdefault(finding.span_ns, []).append(number)
    pictures = [
        "<h2>The whole trace</h2>",
        _picture(view, view.trace.start_ns, view.trace.end_ns, colours, pinned),
    ]
    worst = next((finding.span_ns for finding in report.findings if finding.span_ns), None)
    if worst is not None:
        margin = max((worst[1] - worst[0]) // 2, 1)
        start, end = max(worst[0] - margin, view.trace.start_ns), min(worst[1] + margin, view.trace.end_ns)
        pictures += ["<h2>The worst wait of the first finding</h2>", _picture(view, start, end, colours, pinned)]
    text = "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
            f"<style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}: who waited for a CPU</h1>",
            f'<p class="verdict">{escape(verdict(report))}</p>',
            *pictures,
            _key(colours, has_accelerator=view.accelerator is not None),
            _hidden(view),
            "<h2>Findings</h2>",
            "<ol>",
            *(
                _findings(report)
                if report.findings
                else ("<p>None that cost 0.5 % of a critical thread's time.</p>",)
            ),
            "</ol>",
            "<h2>Threads</h2>",
            _threads(report),
            "</body></html>",
            "",
        ]
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


def _key(colours: dict[str, str], *, has_accelerator: bool) -> str:
    threads = [("runs", _CRITICAL), *((_SAID[cause], colour) for cause, colour in _CAUSES.items())]
    cpus = [("critical thread", _CRITICAL), *colours.items(), ("other threads", _OTHER), ("interrupt", _INTERRUPT)]
    threads += [("any kernel runs", _KERNELS)] if has_accelerator else []
    lines = []
    for of, entries in (("Threads", threads), ("CPUs", cpus)):
        shown = (f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in entries)
        lines.append(f'<p class="key"><b>{of}:</b> {"".join(shown)} empty: {_EMPTY[of]}</p>')
    return "".join(lines)


def _hidden(view: TraceView) -> str:
    """Return what has no lane, in words."""
    limits = []
    if len(view.critical_tasks) > MOST_THREADS:
        limits.append(f"the {MOST_THREADS} of {len(view.critical_tasks)} critical threads that waited longest")
    if len(view.on_cpu.cpus) > MOST_CPUS:
        limits.append(f"the {MOST_CPUS} of {len(view.on_cpu.cpus):,} CPUs on which critical threads ran most")
    return f'<p class="note">Shown are {" and ".join(limits)}.</p>' if limits else ""


def _picture(
    view: TraceView, start_ns: int, end_ns: int, colours: dict[str, str], pinned: Mapping[Span, Sequence[int]]
) -> str:
    """Return an SVG: a lane for each critical thread and CPU, as shares of each column's time; findings on top."""
    edges = np.linspace(start_ns, max(end_ns, start_ns + COLUMNS), COLUMNS + 1).astype(np.int64)
    span = int(edges[-1] - edges[0])
    lanes = [*_thread_lanes(view, edges), *_cpu_lanes(view, edges, colours)]
    height = 40 + len(lanes) * (LANE + GAP) + 20
    parts = [
        f'<svg viewBox="0 0 {LEFT + WIDTH + 10} {height}" width="100%" role="img" '
        'aria-label="time lanes of threads and CPUs">'
    ]
    bottom = height - 24
    for (first, last), numbers in pinned.items():
        if last >= edges[0] and first <= edges[-1]:
            x = LEFT + WIDTH * max(first - int(edges[0]), 0) / span
            shown = ", ".join(map(str, numbers))
            wide = max(WIDTH * (min(last, int(edges[-1])) - max(first, int(edges[0]))) / span, 1.0)
            parts.append(f'<rect x="{x:.1f}" y="26" width="{wide:.1f}" height="{bottom - 26}" class="pin"/>')
            parts.append(
                f'<text x="{x:.1f}" y="{12 + 11 * (numbers[0] % 2)}" font-weight="bold">&#9660;{shown}</text>'
            )
    for index, (name, layers) in enumerate(lanes):
        top = 30 + index * (LANE + GAP)
        parts.append(f'<text x="0" y="{top + LANE / 2 + 4}">{escape(_short(name))}</text>')
        parts.append(
            f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{LANE}" fill="var(--lane)" stroke="var(--edge)"/>'
        )
        base = np.zeros(COLUMNS)
        for colour, label, share in layers:
            parts.append(_layer(top, base, share, colour, label))
            base = base + share
    for tick in range(6):
        x = LEFT + WIDTH * tick / 5
        anchor = "end" if tick == 5 else "start"
        ms = (int(edges[0]) - view.trace.start_ns + span * tick / 5) / 1e6
        parts.append(f'<text x="{x:.0f}" y="{height - 6}" text-anchor="{anchor}">{ms:,.1f} ms</text>')
    return "\n".join([*parts, "</svg>"])


def _short(name: str) -> str:
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}\N{HORIZONTAL ELLIPSIS}"


def _layer(top: int, base: Floats, share: Floats, colour: str, label: str) -> str:
    """Return one colour of a lane: a bar where it has a share, on what is below; like neighbours are one."""
    step = WIDTH / COLUMNS
    low, high = np.round(base, 2), np.round(np.minimum(base + share, 1.0), 2)
    change = np.flatnonzero((np.diff(low, prepend=-1) != 0) | (np.diff(high, prepend=-1) != 0))
    path = []
    for first, last in zip(change, [*change[1:], COLUMNS], strict=True):
        if high[first] > low[first]:
            x, y = LEFT + first * step, top + LANE * (1 - high[first])
            path.append(f"M{x:g} {y:.1f}h{(last - first) * step:g}v{LANE * (high[first] - low[first]):.1f}H{x:g}z")
    return f'<path fill="{colour}" d="{"".join(path)}"><title>{escape(label)}</title></path>' if path else ""


Layers = list[tuple[str, str, Floats]]


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


def _findings(report: TraceReport) -> Iterator[str]:
    for finding in report.findings:
        cost = f"{finding.cost_ms:,.1f} ms ({finding.cost_share:.1%} of its time). " if finding.cost_ms else ""
        yield (
            f'<li class="{finding.severity}"><b>{finding.severity} {finding.token}</b>: '
            f"{escape(str(finding.reason))}<br>"
            f"{escape(cost + finding.evidence)}<br>Do: {escape(finding.advice)} "
            f"<small>confidence {finding.confidence:.0%}</small></li>"
        )


def _threads(report: TraceReport) -> str:
    rows = [
        "<table><tr><th>thread</th><th>tid</th><th>waits</th><th>total ms</th><th>mean ms</th><th>p99 ms</th>",
        "<th>on the CPU meanwhile [ms]</th></tr>",
    ]
    waited = [thread for thread in report.threads if thread.waits or thread.is_critical]
    for thread in waited[:20]:
        had = ", ".join(f"{name} {ms:,.1f}" for name, ms in list(thread.culprits.items())[:3])
        rows.append(
            f"<tr><td>{escape(thread.comm)}</td><td>{thread.tid}</td><td>{thread.waits:,}</td><td>{thread.wait_ms_total:,.1f}</td>"
            f"<td>{thread.wait_ms_mean:.2f}</td><td>{thread.wait_ms_p99:.1f}</td><td>{escape(had)}</td></tr>"
        )
    return "".join([*rows, "</table>"])
