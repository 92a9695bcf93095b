"""PCIe errors at the moment the kernel handles them: its tracepoint `ras:aer_event`, read from a trace of our own.

It needs tracefs and the right to make an instance there (root, usually), and a kernel that handles AER itself. The
counters that `watch.py` polls tell nearly the same some tenths of a second later.

References
----------
Linux Documentation/trace/ftrace.rst (instances); the line's form: include/ras/ras_event.h, aer_event.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from strata.cluster.agent.watch import Fault
from strata.fleet.local import pci_address

MOUNTS: Final = ("kernel/tracing", "kernel/debug/tracing")
EVENT: Final = "events/ras/aer_event/enable"

_LINE: Final = re.compile(r" aer_event: (\S+) PCIe Bus Error: severity=(Fatal|Uncorrected, non-fatal), ")
_MAX_LINE: Final = 1 << 16


class AerTrace:
    """An instance of the tracer with one event on. `fd` is readable when a line has come."""

    def __init__(self, instance: Path, fd: int) -> None:
        self.instance, self.fd = instance, fd
        self._begun = b""

    def read(self, now_s: float) -> list[Fault]:
        """Return what has come, without waiting; corrected errors are left out."""
        try:
            text = self._begun + os.read(self.fd, _MAX_LINE)
        except BlockingIOError:
            return []
        whole, _, self._begun = text.rpartition(b"\n")
        self._begun = self._begun[-_MAX_LINE:]
        return [
            Fault(now_s, "aer-fatal" if severity == "Fatal" else "aer-nonfatal", pci_address(name))
            for name, severity in _LINE.findall(whole.decode("ascii", errors="replace"))
        ]

    def close(self) -> None:
        """Take the instance away again."""
        os.close(self.fd)
        with suppress(OSError):  # somebody else reads it, or the mount is gone
            self.instance.rmdir()


def start(root: Path = Path("/sys"), *, name: str = "strata") -> AerTrace | None:
    """Start tracing; None where the kernel, the mount or our rights do not allow it."""
    for mount in MOUNTS:
        instance = root / mount / "instances" / name
        try:
            instance.mkdir(exist_ok=True)  # one that a killed agent left is taken over
            (instance / EVENT).write_text("1", encoding="ascii")
            return AerTrace(instance, os.open(instance / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError:
            with suppress(OSError):
                instance.rmdir()
    return None
