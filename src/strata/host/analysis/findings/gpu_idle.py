"""Accelerators that stand idle while the threads that feed them wait for a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from strata.decision import Reason
from strata.host.analysis.accelerator import AcceleratorActivity
from strata.host.analysis.findings.finding import WORTH_SHARE, Finding, Severity, main_culprit, of_thread
from strata.host.analysis.intervals import union, within
from strata.host.analysis.view import TraceView


@dataclass(frozen=True, slots=True)
class Launcher:
    """What a launching thread (a life) did in the gaps that are laid to it [ms].

    `waited_ms` and `ran_ms` count each device's gap, `own_ms` is its own time that it waited; `idle_ms` is how
    long the devices it launched on were idle.
    """

    task: int
    waited_ms: float
    ran_ms: float
    own_ms: float
    idle_ms: float


@dataclass(frozen=True, slots=True)
class Idleness:
    """What launching threads did while no kernel ran on a device [ms]; what is left of `idle_ms`, they slept.

    Each gap is laid to the thread that launched the kernel after it; times are those of all devices added up.
    `fit` is the share of launches that began while their thread ran: all of them, if the clocks agree.
    """

    wall_ms: float
    idle_ms: float
    num_steps: int
    step_ms: float
    fit: float
    launchers: tuple[Launcher, ...]

    @property
    def waited_ms(self) -> float:
        """Return how long the launching threads waited for a CPU meanwhile."""
        return sum(launcher.waited_ms for launcher in self.launchers)

    @property
    def ran_ms(self) -> float:
        """Return how long they ran meanwhile."""
        return sum(launcher.ran_ms for launcher in self.launchers)

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


def idleness(view: TraceView) -> Idleness | None:
    """Return why accelerators stood idle; None without a Kineto trace, or where no launcher is in ours."""
    gpu = view.accelerator
    tasks = {} if gpu is None else {tid: task for tid in gpu.launchers if (task := _life(view, tid)) is not None}
    if gpu is None or not tasks:
        return None
    start = np.maximum(gpu.idle_start_ns, view.trace.start_ns)  # only what both traces saw
    end = np.maximum(np.minimum(gpu.idle_end_ns, view.trace.end_ns), start)
    launchers = []
    num_seen, on_cpu = 0, 0
    for tid, task in tasks.items():
        waits, runs = view.waits_by(task), view.on_cpu.task == task
        gaps, launches = gpu.idle_tid == tid, gpu.launch_ns[gpu.launch_tid == tid]
        queued = union(view.delays.start_ns[waits], view.delays.end_ns[waits])
        running = union(view.on_cpu.start_ns[runs], view.on_cpu.end_ns[runs])
        began, lasted = union(start[gaps], end[gaps])
        served = np.isin(gpu.idle_device, gpu.idle_device[gaps])
        launchers.append(
            Launcher(
                task,
                float(within(*queued, start[gaps], end[gaps]).sum()) / 1e6,
                float(within(*running, start[gaps], end[gaps]).sum()) / 1e6,
                float(within(*queued, began, began + lasted).sum()) / 1e6,
                float((end - start)[served].sum()) / 1e6,
            )
        )
        seen = launches[(launches >= view.trace.start_ns) & (launches <= view.trace.end_ns)]
        num_seen += len(seen)
        on_cpu += int(within(*running, seen, seen + 1).sum())
    return Idleness(
        gpu.wall_ns / 1e6,
        float((end - start).sum()) / 1e6,
        len(gpu.step_ns),
        float(gpu.step_ns.mean()) / 1e6 if len(gpu.step_ns) else 0.0,
        on_cpu / max(num_seen, 1),
        tuple(launchers),
    )


def _life(view: TraceView, tid: int) -> int | None:
    """Return the thread of an id, of several the one that ran most."""
    tasks = np.flatnonzero(view.tasks.tid == tid)
    return int(tasks[view.ran_ns[tasks].argmax()]) if len(tasks) else None


def find(view: TraceView) -> Iterator[Finding]:
    """Find idle times of accelerators in which the thread that launched next waited for a CPU, or rather ran."""
    idle = idleness(view)
    if idle is None:
        if view.accelerator is not None:
            yield _stranger(view.accelerator)
        return
    for launcher in idle.launchers:
        if launcher.ran_ms >= WORTH_SHARE * idle.wall_ms and launcher.ran_ms > launcher.waited_ms:
            yield _launching(view, launcher, idle)
        if launcher.waited_ms < WORTH_SHARE * idle.wall_ms:
            continue
        culprits = view.culprits_of(launcher.task)
        steps = (
            f"; about {launcher.own_ms / idle.step_ms:.1f} steps of {idle.step_ms:.1f} ms lost"
            if idle.step_ms
            else ""
        )
        yield of_thread(
            view,
            launcher.task,
            "gpu-idle-cpu-wait",
            {"share": launcher.waited_ms / launcher.idle_ms, "culprit": main_culprit(culprits) or "nobody"},
            cost_ms=launcher.own_ms,
            evidence=(
                f"idle for {launcher.idle_ms:,.1f} ms between kernels; before its own launches the thread waited "
                f"{launcher.waited_ms:,.1f} ms for a CPU and ran {launcher.ran_ms:,.1f} ms{steps}"
            ),
            confidence=0.9 * idle.fit,
            culprits=culprits,
        )


def _launching(view: TraceView, launcher: Launcher, idle: Idleness) -> Finding:
    """Return that kernels end before the next is launched: the scheduler's fault it is not, so only a remark."""
    return of_thread(
        view,
        launcher.task,
        "gpu-idle-launching",
        {"share": launcher.ran_ms / launcher.idle_ms},
        # Each device's gap counts in `ran_ms`; the thread has its time once.
        cost_ms=min(launcher.ran_ms, float(view.ran_ns[launcher.task]) / 1e6),
        evidence=(
            f"idle for {launcher.idle_ms:,.1f} ms between kernels, of which the thread that launched next ran "
            f"{launcher.ran_ms:,.1f} ms and waited {launcher.waited_ms:,.1f} ms for a CPU"
        ),
        confidence=0.9 * idle.fit,
        worst=Severity.INFO,
    )


def _stranger(gpu: AcceleratorActivity) -> Finding:
    return Finding(
        Reason("launcher-unknown", data={"threads": ", ".join(map(str, gpu.launchers[:3])) or "none"}),
        Severity.WARNING,
        f"{len(gpu.launch_ns):,} launches in the profiler's trace",
        0.0,
        1.0,
    )
