"""Deaths that are waited for: a signal only asks, and what a process holds is its own until it has ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

LIMIT_S = 300.0
"""For a loaded machine; the kernel ends a killed process in milliseconds."""


def killed(*pids: int, waits_for: Iterable[int] = ()) -> None:
    """Kill processes that need not be children of ours, and return once they have ended; others with them."""
    with ExitStack() as stack:

        def opened(pid: int) -> list[int]:
            with suppress(ProcessLookupError):  # it has ended already
                handle = os.pidfd_open(pid)
                stack.callback(os.close, handle)
                return [handle]
            return []

        struck = [handle for pid in pids for handle in opened(pid)]
        waited = [*struck, *(handle for pid in waits_for for handle in opened(pid))]
        for handle in struck:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        for handle in waited:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            assert poll.poll(LIMIT_S * 1000), "a killed process has not ended"


def killed_with_children(process: subprocess.Popen[str]) -> None:
    """Kill a child of ours whose own children the kernel kills with it, and return once all have ended."""
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    killed(process.pid, waits_for=map(int, text.split()))
    process.wait(LIMIT_S)
