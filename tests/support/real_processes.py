"""Real `strata` processes that listen on the loopback, and waiting for what they come to."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

LIMIT_S = 300.0
"""For a loaded machine; what is waited for is there in a few seconds."""


def until(condition, what, limit_s=LIMIT_S):
    """Return the first true answer of `condition`; `what` returns what was waited for."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {limit_s:g} s for {what()}"
        time.sleep(0.02)
    return found


class Process:
    """One `strata ...`, whose warnings are errors."""

    def __init__(self, log: Path, *arguments: str, within: Sequence[str] = ()) -> None:
        """within: the command that becomes this one, `ip netns exec NAME` for example."""
        self._log = log.open("w+")
        self.popen = subprocess.Popen(
            [*within, sys.executable, "-W", "error", "-m", "strata", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    @cached_property
    def address(self) -> str:
        """Where it listens, the last word of its first line: a URL or a port."""
        readable, _, _ = select.select([self.popen.stdout], [], [], LIMIT_S)
        line = self.popen.stdout.readline() if readable else ""
        assert " listens at " in line or " answers at port " in line, f"{line!r}: {self.log}"
        return line.split()[-1]

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
