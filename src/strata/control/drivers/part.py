"""A domain's part of an attempt on disk: what to run, what runs, what came of it. It outlives us.

A part is a folder. `request.json` is what to run. Who runs it holds a lock on `lock` and made `began` first, so
it runs once however often it is started. `stop.json` asks it to end, `end.json` is what came of it. Nothing needs
process ids, which are used again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from strata.control.drivers.launch import PROGRESS
from strata.control.drivers.reports import Report, is_positive, lines_of, step_reports
from strata.control.state import PartPhase, PartSeen, Transfer
from strata.files import write_json
from strata.training.program.client import STOPPED, Attempt

KEPT_S: Final = 7 * 86_400.0
"""How long a part that ended is spoken of: longer than a scheduler is down."""

_TAIL_BYTES: Final = 16_384
_TIMED_STEPS: Final = 5
_MOST_LINE: Final = 300
_LATELY_S: Final = 60.0
_MOST_S: Final = 1e6


@dataclass(frozen=True, slots=True)
class PartFolder:
    """One part; every method may be called at any time, by any process."""

    path: Path

    def request(self) -> dict[str, Any]:
        """Return what was asked for."""
        data: dict[str, Any] = json.loads((self.path / "request.json").read_text(encoding="utf-8"))
        return data

    def ask(self, what: dict[str, Any], files: dict[str, Any]) -> bool:
        """Keep what to run; return whether it may be run: not where it ran, or was stopped before it could."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self.has_begun or self.end() is not None:
            return False
        for name, content in files.items():
            write_json(self.path / name, content)
        write_json(self.path / "request.json", what)
        return not self.is_stopping

    def devices(self) -> list[int]:
        """Return the devices it was given."""
        with suppress(FileNotFoundError):
            return list(self.request().get("devices", ()))
        return []

    def is_over(self) -> bool:
        """Whether nothing of it runs, nor will."""
        return self.end() is not None or (self.has_begun and not self.is_held())

    @property
    def has_begun(self) -> bool:
        """Whether somebody runs it, or has."""
        return (self.path / "began").exists()

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return (self.path / "stop.json").exists()

    def begin(self) -> int | None:
        """Return a lock to hold while the part runs; None where another holds it, or did before, or it is over."""
        lock = self._lock()
        if lock is None:
            return None
        try:
            if self.end() is None:
                os.close(os.open(self.path / "began", os.O_CREAT | os.O_EXCL, 0o600))
                return lock
        except FileExistsError:
            pass
        os.close(lock)
        return None

    def stop(self, grace_s: float) -> None:
        """Ask it to end; the first time counts. One that never began is over."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.is_stopping:
            write_json(self.path / "stop.json", {"grace_s": grace_s})
        lock = None if self.has_begun or self.end() is not None else self._lock()
        if lock is not None:  # so nobody begins it now
            if not self.has_begun:
                self.finish([], message="stopped before it began")
            os.close(lock)

    def _lock(self) -> int | None:
        descriptor = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def grace_s(self) -> float:
        """Return the grace that the stop gave."""
        return float(json.loads((self.path / "stop.json").read_text(encoding="utf-8"))["grace_s"])

    def finish(self, exit_codes: list[int], *, message: str = "") -> None:
        """Keep what came of it."""
        write_json(self.path / "end.json", {"exit_codes": exit_codes, "message": message, "at_s": time.time()})

    def end(self) -> dict[str, Any] | None:
        """Return what came of it; None while it runs, or where whoever ran it was killed."""
        with suppress(FileNotFoundError):
            data: dict[str, Any] = json.loads((self.path / "end.json").read_text(encoding="utf-8"))
            return data
        return None

    def seen(self, attempt: str, *, is_running: bool) -> PartSeen | None:
        """Return what a driver says of it; None where it has not begun.

        is_running: whether somebody ran it just before this call: whoever did wrote first what came of it.
        """
        end = self.end()
        if end is None and not self.has_begun:
            return None
        seen = self._progress(attempt) if self.has_begun else PartSeen(attempt, PartPhase.ENDED)
        if end is None:
            return replace(seen, phase=PartPhase.RUNNING if is_running else PartPhase.LOST)
        codes = end["exit_codes"]
        code = next((code for code in codes if code not in (0, STOPPED)), max(codes, default=STOPPED))
        has_stopped = code == STOPPED or (self.is_stopping and code != 0)
        phase = PartPhase.ENDED if code == 0 or has_stopped else PartPhase.FAILED
        message = end["message"] or ("" if phase is PartPhase.ENDED else self._last_line())
        stop_s = self._stop_s(end["at_s"]) if has_stopped else None
        return replace(seen, phase=phase, exit_code=code, message=message, stop_s=stop_s)

    def transfers(self) -> Iterator[Transfer]:
        """Yield what its ranks reported of the last minute, as far as it makes sense."""
        since_s = time.time() - _LATELY_S
        for line in lines_of(_tail(self.path / PROGRESS)):
            numbers: list[Any] = [line.get(key) for key in ("at_s", "num_bytes", "seconds")]
            source, dest = line.get("source"), line.get("dest")
            if not (isinstance(source, str) and isinstance(dest, str) and all(map(is_positive, numbers))):
                continue
            if numbers[0] >= since_s:
                yield Transfer(source, dest, *numbers)

    def lines(self, goes_on: Callable[[], bool]) -> Iterator[str | None]:
        """Yield what its ranks wrote, oldest first, while `goes_on` says that more may come; None: not yet."""
        while not (self.path / "log").exists() and goes_on():
            yield None
        with suppress(FileNotFoundError), open(self.path / "log", encoding="utf-8", errors="replace") as log:
            while True:
                is_over = not goes_on()  # before reading: nothing is written after it
                rest = ""
                while line := log.readline():
                    rest += line
                    if rest.endswith("\n"):
                        yield rest.rstrip("\n")
                        rest = ""
                if rest:
                    yield rest
                if is_over:
                    return
                yield None

    def is_held(self) -> bool:
        """Return whether a runner on this machine holds it."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: many may look at the same time
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def _progress(self, attempt: str) -> PartSeen:
        """Return what its ranks reported, as far as it makes sense."""
        wanted, most_steps = self.request(), int(self.request()["steps"])
        reports = list(step_reports(_tail(self.path / PROGRESS), most_steps=most_steps))
        if not reports:
            return PartSeen(attempt, PartPhase.RUNNING)
        times = [report.step_time_s for report in reports[-_TIMED_STEPS:] if report.step_time_s is not None]
        newest = None
        if wanted.get("checkpoints"):
            newest = Attempt(checkpoints=Path(wanted["checkpoints"])).newest()
        first = next(step_reports(_head(self.path / PROGRESS), most_steps=most_steps), None)
        return PartSeen(
            attempt, PartPhase.RUNNING, max(report.step for report in reports),
            checkpoint_step=newest.step if newest else None, step_time_s=median(times) if times else None,
            first_step=first.step if first else None, launch_s=self._launch_s(first) if first else None,
        )  # fmt: skip

    def _launch_s(self, first: Report) -> float | None:
        """Return what it took until its first step began; None where the clock was set meanwhile."""
        if first.at_s is None:
            return None
        took_s = first.at_s - (first.step_time_s or 0.0) - (self.path / "began").stat().st_mtime
        return took_s if 0 < took_s < _MOST_S else None

    def _stop_s(self, ended_s: float) -> float | None:
        with suppress(FileNotFoundError):
            took_s = ended_s - (self.path / "stop.json").stat().st_mtime
            return took_s if 0 < took_s < _MOST_S else None
        return None

    def _last_line(self) -> str:
        lines = [line for line in _tail(self.path / "log").splitlines() if line.strip()]
        return lines[-1].strip()[:_MOST_LINE] if lines else "it wrote nothing"


def _tail(path: Path) -> str:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read().decode(errors="replace")
    return ""


def _head(path: Path) -> str:
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return file.read(_TAIL_BYTES).decode(errors="replace")
    return ""
