"""What a recording lasts for: a command, a process, or so many seconds."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from strata.errors import UsageError
from strata.host.machine import steal
from strata.host.machine.steal import Steal

LOOK_S: Final = 1.0
"""Into a recording: pools of threads are up, and a short command has not ended yet."""


class RecordedCommand:
    """`start`, then `wait`; `exit_code` is the command's once it has ended, else None.

    `steal` is then what a hypervisor took from this machine meanwhile.
    """

    def __init__(self, *, seconds: float | None, command: Sequence[str] = (), pid: int | None = None) -> None:
        self.seconds = seconds
        self.command = tuple(command)
        self.pid = pid
        self.process: subprocess.Popen[bytes] | None = None
        self.look: Callable[[], None] = lambda: None
        self.steal: Steal | None = None

    @property
    def exit_code(self) -> int | None:
        """Return the command's exit code, 128 and more for a signal."""
        code = self.process.poll() if self.process is not None else None
        return 128 - code if code is not None and code < 0 else code

    @property
    def root_pid(self) -> int | None:
        """Return the process it is all about: the command's, or the one that was named."""
        return self.process.pid if self.process is not None else self.pid

    def start(self) -> None:
        """Start the command, if there is one. Raises UsageError where it cannot be."""
        if not self.command:
            return
        try:
            self.process = subprocess.Popen(self.command)
        except OSError as error:
            raise UsageError(f"{self.command[0]}: cannot be started: {error.strerror}") from None

    def wait(self) -> None:
        """Return when the command or the process has ended, or the seconds are over. Ctrl-C ends it too.

        Meanwhile, when threads have had time to be born, `look` is called once.
        """
        before, began_s = steal.ticks(), time.monotonic()
        with suppress(KeyboardInterrupt):
            first_s = LOOK_S if self.seconds is None else min(LOOK_S, self.seconds / 2)
            self._wait(first_s)
            self.look()
            self._wait(None if self.seconds is None else self.seconds - first_s)
        self.steal = steal.between(before, steal.ticks(), seconds=time.monotonic() - began_s)

    def _wait(self, seconds: float | None) -> None:
        if self.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        elif self.pid is not None:
            self._wait_for(self.pid, seconds)
        else:
            select.select([], [], [], seconds)

    def _wait_for(self, pid: int, seconds: float | None) -> None:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            select.select([handle], [], [], seconds)
        finally:
            os.close(handle)
