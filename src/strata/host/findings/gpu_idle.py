"""Accelerators that stand idle while the thread that feeds them waits for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata.host.findings.finding import WORTH_SHARE, Finding, of_thread, to_blame, worst_span
from strata.host.spans import union, within
from strata.host.view import View


@dataclass(frozen=True, slots=True)
class Idleness:
    """What the launching thread `life` did while no kernel ran [ms]; what is left of `idle_ms`, it slept.

    `fit` is the share of launches that began while it ran: all of them, if the clocks agree.
    """

    life: int
    wall_ms: float
    idle_ms: float
    waited_ms: float
    ran_ms: float
    num_steps: int
    step_ms: float
    fit: float

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "wall_ms": self.wall_ms,
            "idle_ms": self.idle_ms,
            "launcher_waited_ms": self.waited_ms,
            "launcher_ran_ms": self.ran_ms,
            "launcher_slept_ms": self.idle_ms - self.waited_ms - self.ran_ms,
            "steps": self.num_steps,
            "step_ms_mean": self.step_ms,
            "launches_while_running": self.fit,
        }


def idleness(view: View) -> Idleness | None:
    """Return why the accelerator stood idle; None without a Kineto trace, or where the launcher is not in ours."""
    gpu = view.accelerator
    launchers = gpu.launchers if gpu is not None else ()
    life = next((i for tid in launchers for i in np.flatnonzero(view.lives.tid == tid).tolist()), None)
    if gpu is None or life is None:
        return None
    start, end = gpu.idle()
    # Only what both traces saw.
    start, end = np.maximum(start, view.trace.start_ns), np.minimum(end, view.trace.end_ns)
    start, end = start[end > start], end[end > start]
    waits = view.waits_by(life)
    mine = view.runs.life == life
    waited = within(*union(view.waits.start_ns[waits], view.waits.end_ns[waits]), start, end)
    ran = within(*union(view.runs.start_ns[mine], view.runs.end_ns[mine]), start, end)
    seen = gpu.launch_ns[(gpu.launch_ns >= view.trace.start_ns) & (gpu.launch_ns <= view.trace.end_ns)]
    on_cpu = within(*union(view.runs.start_ns[mine], view.runs.end_ns[mine]), seen, seen + 1)
    last = gpu.busy_start_ns[-1] + gpu.busy_ns[-1]
    wall_ns = min(int(last), view.trace.end_ns) - max(int(gpu.busy_start_ns[0]), view.trace.start_ns)
    return Idleness(
        life,
        wall_ns / 1e6,
        float((end - start).sum()) / 1e6,
        float(waited.sum()) / 1e6,
        float(ran.sum()) / 1e6,
        len(gpu.step_ns),
        float(gpu.step_ns.mean()) / 1e6 if len(gpu.step_ns) else 0.0,
        float(on_cpu.mean()) if len(seen) else 0.0,
    )


def find(view: View) -> Iterator[Finding]:
    """Find idle times of the accelerator in which its launching thread waited for a CPU."""
    idle = idleness(view)
    if idle is None or idle.waited_ms < WORTH_SHARE * idle.wall_ms or idle.idle_ms <= 0:
        return
    waits = view.waits_by(idle.life)
    culprits = view.culprits(waits)
    slept = idle.idle_ms - idle.waited_ms - idle.ran_ms
    steps = (
        f"; about {idle.waited_ms / idle.step_ms:.1f} steps of {idle.step_ms:.1f} ms lost" if idle.step_ms else ""
    )
    yield of_thread(
        view,
        idle.life,
        "gpu-idle-cpu-wait",
        {"share": idle.waited_ms / idle.idle_ms, "culprit": to_blame(culprits) or "nobody"},
        cost_ms=idle.waited_ms,
        evidence=(
            f"idle for {idle.idle_ms:,.1f} of {idle.wall_ms:,.1f} ms; meanwhile the launching thread "
            f"waited for a CPU {idle.waited_ms:,.1f} ms, ran {idle.ran_ms:,.1f} ms, slept {slept:,.1f} ms{steps}"
        ),
        confidence=0.9 * idle.fit,
        culprit=to_blame(culprits),
        span_ns=worst_span(view, waits),
        blame=culprits,
    )
