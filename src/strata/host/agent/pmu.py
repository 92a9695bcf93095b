"""Misses of the last-level cache, counted by the CPUs themselves, where there is a PMU and one may ask it.

References
----------
perf_event_open(2); linux/perf_event.h: PERF_TYPE_HARDWARE 0, PERF_COUNT_HW_CACHE_MISSES 3, struct of 112 bytes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from typing import Final

_OPEN: Final = {"x86_64": 298, "aarch64": 241}
"""Numbers of the system call, for which C libraries have no function."""
_ATTRIBUTES: Final = struct.pack("<IIQ", 0, 112, 3).ljust(112, b"\0")
_CLOSE_ON_EXEC: Final = 8


class CacheMisses:
    """One counter a CPU; without any where the PMU is hidden, as in most virtual machines. Close it."""

    def __init__(self, cpus: Iterable[int]) -> None:
        self._descriptors: list[int] = []
        number = _OPEN.get(platform.machine())
        if number is None:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        attributes = ctypes.create_string_buffer(_ATTRIBUTES, len(_ATTRIBUTES))
        for cpu in cpus:
            descriptor = libc.syscall(number, attributes, -1, cpu, -1, ctypes.c_ulong(_CLOSE_ON_EXEC))
            if descriptor < 0:
                break  # what one CPU refuses all do
            self._descriptors.append(descriptor)

    def read(self) -> int | None:
        """Return the misses of all CPUs since it was made; None without a PMU."""
        if not self._descriptors:
            return None
        return sum(int.from_bytes(os.read(each, 8), "little") for each in self._descriptors)

    def close(self) -> None:
        """Stop counting."""
        while self._descriptors:
            os.close(self._descriptors.pop())
