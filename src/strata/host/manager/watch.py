"""What has become of a scheduler, judged from what the kernel and its process show: a pure state machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

Verdict = Literal[
    "starting", "running", "detached", "stopped", "switched-off", "ejected", "died", "replaced", "late"
]
LATE_S: Final = 300.0
"""Attaching takes under a second on hardware; under an emulator the verifier took 66 s."""
GRACE_S: Final = 10.0
"""scx_layered detaches and attaches again by itself when CPUs come or go; longer than this it is out."""


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """One look. state and ops: the kernel's /sys/kernel/sched_ext. exit_code: None while the process runs.

    last_words: the last line scx_layered wrote that says why it ends. is_off: the kill switch is set.
    """

    at_s: float
    state: str
    ops: str = ""
    exit_code: int | None = None
    last_words: str = ""
    is_off: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerRun:
    """Where a scheduler stands. since_s: since when the kernel has not run it, or the start."""

    verdict: Verdict = "starting"
    why: str = ""
    since_s: float = 0.0
    ops: str = ""
    was_enabled: bool = False

    @property
    def is_over(self) -> bool:
        """Return whether its process has ended, or has to."""
        return self.verdict not in ("starting", "running", "detached")


def begin(at_s: float) -> SchedulerRun:
    """Return the course of a scheduler that is started now."""
    return SchedulerRun(since_s=at_s)


def judge(course: SchedulerRun, seen: SchedulerState) -> SchedulerRun:
    """Return how it goes on. What is over stays over."""
    if course.is_over:
        return course
    if seen.is_off:
        return replace(course, verdict="switched-off", why="the kill switch is set")
    if seen.exit_code is not None:
        return _ended(course, seen)
    if seen.state == "enabled":
        if course.was_enabled and seen.ops and course.ops and seen.ops != course.ops:
            return replace(course, verdict="replaced", why=f"the kernel runs {seen.ops} instead")
        return replace(course, verdict="running", since_s=seen.at_s, ops=seen.ops or course.ops, was_enabled=True)
    waited_s = seen.at_s - course.since_s
    if course.was_enabled and seen.state != "enabling" and waited_s > GRACE_S:
        return replace(course, verdict="ejected", why=seen.last_words or f"the kernel says {seen.state!r}")
    if waited_s > LATE_S:
        return replace(course, verdict="late", why=f"not attached after {waited_s:.0f} s")
    return replace(course, verdict="detached" if course.was_enabled else "starting")


def _ended(course: SchedulerRun, seen: SchedulerState) -> SchedulerRun:
    code = seen.exit_code or 0
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    if seen.last_words.startswith("EXIT: "):
        reason = seen.last_words.removeprefix("EXIT: ")
        # Somebody asked the kernel, or the scheduler itself, to stop; all else it was thrown out for.
        is_asked = reason.startswith("unregistered from user space")
        return replace(course, verdict="stopped" if is_asked else "ejected", why=reason)
    return replace(course, verdict="died", why=", ".join(part for part in (how, seen.last_words) if part))
