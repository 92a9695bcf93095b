"""What a trace cannot tell: events that were lost, a clock that went back, no critical thread by name."""

from __future__ import annotations

from collections.abc import Iterator

from strata.decision import Reason
from strata.host.analysis.findings.finding import Finding, Severity
from strata.host.analysis.view import View


def find(view: View) -> Iterator[Finding]:
    """Say what makes the other findings less sure."""
    trace = view.trace
    if trace.lost:
        share = trace.lost / (trace.lost + trace.num_events)
        yield Finding(
            Reason("trace-lost", data={"lost": trace.lost, "share": share}),
            Severity.WARNING,
            f"{trace.num_events:,} events were recorded",
            0.0,
            1.0,
        )
    if trace.backwards:
        yield Finding(
            Reason("trace-clock-back", data={"times": trace.backwards}),
            Severity.WARNING,
            "the events were sorted by time",
            0.0,
            1.0,
        )
    if trace.unparsed > 0.01 * trace.num_events:
        yield Finding(
            Reason("trace-damaged", data={"lines": trace.unparsed}),
            Severity.WARNING,
            f"{trace.num_events:,} other lines are events",
            0.0,
            1.0,
        )
    if trace.is_broken:
        yield Finding(
            Reason("trace-truncated", data={"seconds": view.wall_ns / 1e9}),
            Severity.WARNING,
            f"{trace.num_events:,} events could be read",
            0.0,
            1.0,
        )
    if trace.is_cut:
        yield Finding(
            Reason("trace-cut", data={"events": len(trace.events)}),
            Severity.INFO,
            f"the first {view.wall_ns / 1e9:.1f} s are in the report",
            0.0,
            1.0,
        )
    if view.is_guessed:
        waited = view.waited_ns.argsort()[::-1][:3]
        longest = ", ".join(f"{view.name(int(i))} {view.waited_ns[i] / 1e6:,.1f} ms" for i in waited)
        yield Finding(
            Reason("nothing-critical", data={"asked": " or ".join(view.critical) or "trainer, pt_main, nccl"}),
            Severity.INFO,
            f"waited longest: {longest}",
            0.0,
            1.0,
        )
