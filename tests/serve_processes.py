"""Real `strata serve` processes on the loopback, and waiting for what they come to."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

LIMIT_S = 120.0
"""For a loaded machine; what is waited for is there in a few seconds."""


def until(condition, what):
    """Return the first true answer of `condition`; `what` returns what was waited for."""
    end = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {LIMIT_S:g} s for {what()}"
        time.sleep(0.02)
    return found


class Process:
    """One `strata serve ...`; `url` once it listens."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log.open("w+")
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "strata", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    @property
    def url(self) -> str:
        """Its address, said in its first line."""
        if not hasattr(self, "_url"):
            readable, _, _ = select.select([self.popen.stdout], [], [], LIMIT_S)
            line = self.popen.stdout.readline() if readable else ""
            assert " listens at " in line, f"{line!r}: {self.log}"
            self._url = line.split()[-1]
        return self._url

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return Path(self._log.name).read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Signal it, and return its exit code."""
        self.popen.send_signal(number)
        return self.popen.wait(LIMIT_S)

    def close(self) -> None:
        """Leave nothing behind."""
        self.popen.kill()
        self.popen.wait(LIMIT_S)
        self.popen.stdout.close()
        self._log.close()


class Processes(ExitStack):
    """Started together, gone together."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._count = folder, 0

    def start(self, *arguments: str) -> Process:
        """Start `strata serve ...`, and do not wait for it."""
        self._count += 1
        made = Process(self._folder / f"{self._count}.log", *arguments)
        self.callback(made.close)
        return made
