"""NVML, NVIDIA's management library: by `nvidia-ml-py` for the agent, by four C calls for `strata run`."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any


def load() -> Any | None:
    """Import and start NVML; None where the library or the driver is not here."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, or none that is loaded
        return None
    return nvml


def device_bytes() -> list[int]:
    """Return the memory of each NVIDIA device, without starting one; empty where that cannot be known.

    By ctypes: `strata run` belongs to the base package, `nvidia-ml-py` comes with the agent's extra, and what is
    asked here has not changed since NVML 2.
    """
    count = ctypes.c_uint()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        sizes = [_size_of(nvml, number) for number in range(count.value)]
    except (OSError, AttributeError):  # no driver, or one without these
        return []
    return [size for size in sizes if size]


def _size_of(nvml: ctypes.CDLL, number: int) -> int:
    """Return a device's memory; 0 where it does not tell, as one that shares the host's."""
    device, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()  # total, free, used
    if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
        return 0
    return 0 if nvml.nvmlDeviceGetMemoryInfo(device, memory) else memory[0]


def device_uuids() -> list[str]:
    """Return the UUID of each NVIDIA device, by its number on the machine; empty where that cannot be known."""
    count, uuids = ctypes.c_uint(), list[str]()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return []
        for number in range(count.value):
            device, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
            if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(device)):
                return []
            if nvml.nvmlDeviceGetUUID(device, text, len(text)):
                return []
            uuids.append(text.value.decode(errors="replace"))
    except (OSError, AttributeError):  # no driver, or one without these
        return []
    return uuids
