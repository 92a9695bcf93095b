"""NVML by ctypes in the test's own process, which is in no slice: what the driver says of the device."""

from __future__ import annotations

import ctypes


class Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Observer:
    """The first device, as nobody's slice changes it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnvidia-ml.so.1")
        self._device = ctypes.c_void_p()
        assert self._library.nvmlInit_v2() == 0
        assert self._library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._device)) == 0

    def used_bytes(self) -> int:
        """Return what all processes together hold of the device now."""
        memory = Memory()
        assert self._library.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)) == 0
        return memory.used
