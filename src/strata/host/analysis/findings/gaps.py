"""What a trace cannot tell: events that were lost, a clock that went back, no critical thread by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strata.decision import Reason
from strata.host.analysis.findings.finding import Finding, Severity
from strata.host.analysis.view import TraceView


def find(view: TraceView) -> Iterator[Finding]:
    """Say what makes the other findings less sure."""
    trace, events = view.trace, f"{view.trace.num_events:,}"
    if trace.lost:
        data = {"lost": trace.lost, "share": trace.lost / (trace.lost + trace.num_events)}
        yield _gap("trace-lost", data, f"{events} events were recorded")
    if trace.backwards:
        yield _gap("trace-clock-back", {"times": trace.backwards}, "the events were sorted by time")
    if trace.unparsed > 0.01 * trace.num_events:
        yield _gap("trace-damaged", {"lines": trace.unparsed}, f"{events} other lines are events")
    if trace.is_broken:
        yield _gap("trace-truncated", {"seconds": view.wall_ns / 1e9}, f"{events} events could be read")
    if trace.is_cut:
        evidence = f"the first {view.wall_ns / 1e9:.1f} s are in the report"
        yield _gap("trace-cut", {"events": len(trace.events)}, evidence, Severity.INFO)
    if view.is_guessed:
        waited = view.waited_ns.argsort()[::-1][:3]
        longest = ", ".join(f"{view.name(int(i))} {view.waited_ns[i] / 1e6:,.1f} ms" for i in waited)
        names = " or ".join(view.critical) or "trainer, pt_main, nccl"
        yield _gap("nothing-critical", {"asked": names}, f"waited longest: {longest}", Severity.INFO)


def _gap(token: str, data: Mapping[str, Any], evidence: str, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(Reason(token, data=data), severity, evidence, cost_ms=0.0, confidence=1.0)
