"""Accelerators that stand idle while the threads that feed them wait for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strata.decision import Reason
from strata.host.findings.finding import WORTH_SHARE, Finding, Severity, of_thread, to_blame, worst_span
from strata.host.kineto import Accelerator
from strata.host.spans import union, within
from strata.host.view import View


@dataclass(frozen=True, slots=True)
class Idleness:
    """What launching threads did while no kernel ran on a device [ms]; what is left of `idle_ms`, they slept.

    Each gap is laid to the thread that launched the kernel after it; times are those of all devices added up.
    `waited_by` is how long each thread (a life) waited in its gaps: of all devices added up, and of its own time.
    `fit` is the share of launches that began while their thread ran: all of them, if the clocks agree.
    """

    wall_ms: float
    idle_ms: float
    waited_ms: float
    ran_ms: float
    num_steps: int
    step_ms: float
    fit: float
    waited_by: dict[int, tuple[float, float]] = field(default_factory=dict)

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
    """Return why accelerators stood idle; None without a Kineto trace, or where no launcher is in ours."""
    gpu = view.accelerator
    lives = {} if gpu is None else {tid: life for tid in gpu.launchers if (life := _life(view, tid)) is not None}
    if gpu is None or not lives:
        return None
    start = np.maximum(gpu.idle_start_ns, view.trace.start_ns)  # only what both traces saw
    end = np.maximum(np.minimum(gpu.idle_end_ns, view.trace.end_ns), start)
    ran, by = 0.0, {}
    num_seen, on_cpu = 0, 0
    for tid, life in lives.items():
        waits, runs = view.waits_by(life), view.runs.life == life
        gaps, launches = gpu.idle_tid == tid, gpu.launch_ns[gpu.launch_tid == tid]
        queued = union(view.waits.start_ns[waits], view.waits.end_ns[waits])
        running = union(view.runs.start_ns[runs], view.runs.end_ns[runs])
        began, lasted = union(start[gaps], end[gaps])
        own = within(*queued, began, began + lasted)
        by[life] = float(within(*queued, start[gaps], end[gaps]).sum()) / 1e6, float(own.sum()) / 1e6
        ran += float(within(*running, start[gaps], end[gaps]).sum()) / 1e6
        seen = launches[(launches >= view.trace.start_ns) & (launches <= view.trace.end_ns)]
        num_seen += len(seen)
        on_cpu += int(within(*running, seen, seen + 1).sum())
    return Idleness(
        gpu.wall_ns / 1e6,
        float((end - start).sum()) / 1e6,
        sum(waited for waited, _ in by.values()),
        ran,
        len(gpu.step_ns),
        float(gpu.step_ns.mean()) / 1e6 if len(gpu.step_ns) else 0.0,
        on_cpu / max(num_seen, 1),
        by,
    )


def _life(view: View, tid: int) -> int | None:
    """Return the thread of an id, of several the one that ran most."""
    lives = np.flatnonzero(view.lives.tid == tid)
    return int(lives[view.ran_ns[lives].argmax()]) if len(lives) else None


def find(view: View) -> Iterator[Finding]:
    """Find idle times of accelerators in which the thread that launched next waited for a CPU."""
    idle = idleness(view)
    if idle is None:
        if view.accelerator is not None:
            yield _stranger(view.accelerator)
        return
    for life, (waited_ms, cost_ms) in idle.waited_by.items():
        if waited_ms < WORTH_SHARE * idle.wall_ms:
            continue
        waits = view.waits_by(life)
        culprits = view.blamed(life)
        slept = idle.idle_ms - idle.waited_ms - idle.ran_ms
        steps = f"; about {cost_ms / idle.step_ms:.1f} steps of {idle.step_ms:.1f} ms lost" if idle.step_ms else ""
        yield of_thread(
            view,
            life,
            "gpu-idle-cpu-wait",
            {"share": waited_ms / idle.idle_ms, "culprit": to_blame(culprits) or "nobody"},
            cost_ms=cost_ms,
            evidence=(
                f"idle for {idle.idle_ms:,.1f} of {idle.wall_ms:,.1f} ms; who launched next meanwhile "
                f"waited for a CPU {idle.waited_ms:,.1f} ms, ran {idle.ran_ms:,.1f} ms, "
                f"slept {slept:,.1f} ms{steps}"
            ),
            confidence=0.9 * idle.fit,
            culprit=to_blame(culprits),
            span_ns=worst_span(view, waits),
            blame=culprits,
        )


def _stranger(gpu: Accelerator) -> Finding:
    return Finding(
        Reason("launcher-unknown", data={"threads": ", ".join(map(str, gpu.launchers[:3])) or "none"}),
        Severity.WARNING,
        f"{len(gpu.launch_ns):,} launches in the profiler's trace",
        0.0,
        1.0,
    )
