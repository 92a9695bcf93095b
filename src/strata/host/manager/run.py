"""Runs scx_layered under watch until it ends or is told to; what follows is the kernel's own scheduler again."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from strata.errors import MissingPart, UsageError
from strata.host.machine.kernel import read_attribute
from strata.host.manager.metrics import Metrics
from strata.host.manager.stats import SOCKET, NoStats, Stats
from strata.host.manager.watch import SchedulerRun, SchedulerState, begin, judge

SCX: Final = Path("sys/kernel/sched_ext")
STOP_S: Final = 15.0
"""scx_layered ends within a second of SIGINT; after this it is killed, and the kernel takes over all the same."""
_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class ManagerPaths:
    """Where things are: the kernel's files and the socket below `root`, the log, and the kill switch."""

    root: Path
    log: Path
    off: Path


def check(root: Path = Path("/")) -> None:
    """Raise MissingPart where the kernel has no sched_ext, UsageError where it runs a scheduler already."""
    state = read_attribute(root / SCX / "state")
    if not state:
        raise MissingPart(
            "this kernel has no sched_ext: no /sys/kernel/sched_ext (Linux 6.12, CONFIG_SCHED_CLASS_EXT=y)",
            hint="strata host layers --plain, which any kernel takes",
        )
    if state != "disabled":
        ops = read_attribute(root / SCX / "root/ops")
        raise UsageError(f"sched_ext is {state} already, by {ops or 'a scheduler'}", hint="stop that one first")


def manage(
    command: Sequence[str],
    place: ManagerPaths,
    *,
    metrics: Metrics,
    seconds: float | None = None,
    interval_s: float = 1.0,
    tell: Callable[[SchedulerRun], None] = lambda _: None,
    publish: Callable[[], None] = lambda: None,
) -> SchedulerRun:
    """Start `command`, watch it until it is over or `seconds` have passed, stop it, and return its course.

    tell: hears of every change. publish: is called after each look. The scheduler ends with us, however we end.
    Raises UsageError where it cannot be started. Ctrl-C stops it.
    """
    with place.log.open("wb") as log:
        try:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # The library is loaded here: after the fork, a lock of the thread that serves metrics may be held.
                preexec_fn=partial(_prepare, os.getpid(), ctypes.CDLL(None)),
            )
        except OSError as error:
            raise UsageError(f"{command[0]}: cannot be started: {error.strerror}") from None
    stats = Stats(place.root / SOCKET)
    course = begin(time.monotonic())
    until_s = course.since_s + seconds if seconds is not None else None
    try:
        while not course.is_over and (until_s is None or time.monotonic() < until_s):
            # A death is seen at once, all else at the next look.
            with suppress(subprocess.TimeoutExpired):
                process.wait(
                    interval_s if until_s is None else min(interval_s, max(0.0, until_s - time.monotonic()))
                )
            course = _look(course, process, place, metrics, stats, tell)
            publish()
    except KeyboardInterrupt:
        pass
    finally:
        stats.close()
        _stop(process)
    if not course.is_over:
        course = SchedulerRun("stopped", "", course.since_s, course.ops, course.was_enabled)
        tell(course)
    metrics.course = course
    publish()
    return course


def _look(
    course: SchedulerRun,
    process: subprocess.Popen[bytes],
    place: ManagerPaths,
    metrics: Metrics,
    stats: Stats,
    tell: Callable[[SchedulerRun], None],
) -> SchedulerRun:
    seen = SchedulerState(
        time.monotonic(),
        read_attribute(place.root / SCX / "state"),
        read_attribute(place.root / SCX / "root/ops"),
        process.poll(),
        last_words(place.log),
        place.off.exists(),
    )
    after = judge(course, seen)
    if after.verdict == "running":
        metrics.events = events(read_attribute(place.root / SCX / "root/events"))
        try:
            metrics.take(stats.ask())
        except NoStats:
            metrics.unanswered.inc()
    if after.verdict != course.verdict:
        tell(after)
    metrics.course = after
    return after


def events(text: str) -> Mapping[str, int]:
    """Return the kernel's counters: `SCX_EV_SELECT_CPU_FALLBACK 12` a line."""
    return {name: int(count) for name, count in re.findall(r"^(\w+)\s+(\d+)$", text, re.MULTILINE)}


def last_words(log: Path) -> str:
    """Return why scx_layered ended, as it says: its `EXIT:` line, else its error, else its last line."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 2**16))
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    # Being thrown out is an error to scx_layered: `Error: EXIT: runtime error (...)`; being told to end is none.
    for pattern in (r"(?:Error: )?(EXIT: .+)", r"(Error: .+)"):
        if reasons := [match[1] for line in lines if (match := re.match(pattern, line))]:
            return reasons[-1]
    return lines[-1] if lines else ""


def wait_until_disabled(root: Path, *, patience_s: float = STOP_S) -> bool:
    """Return whether the kernel has taken all tasks back; it does so within milliseconds of a scheduler's end."""
    until_s = time.monotonic() + patience_s
    while (is_on := read_attribute(root / SCX / "state") not in ("disabled", "")) and time.monotonic() < until_s:
        time.sleep(0.05)
    return not is_on


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _prepare(parent: int, libc: ctypes.CDLL) -> None:
    """Have the kernel end the scheduler where its watcher is killed, and SIGINT, by which we stop it, reach it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored under `nohup strata host manage &`, and inherited
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # killed before this
        os._exit(1)
