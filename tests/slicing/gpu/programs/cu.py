"""The driver by ctypes, for the programs beside this: no PyTorch and no toolkit is needed."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

driver = ctypes.CDLL("libcuda.so.1")
MIB = 1 << 20


class Prop(ctypes.Structure):
    """CUmemAllocationProp; 2: memory that is exported as a file descriptor is asked for by handles=1."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("none", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Shape(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR; format 0x20 is float, 0x01 a byte, 0x10 half."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("depth", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
        ("flags", ctypes.c_uint),
    )


def call(name: str, *arguments: Any) -> int:
    return int(getattr(driver, name)(*arguments))


def check(name: str, *arguments: Any) -> None:
    code = call(name, *arguments)
    if code:
        sys.exit(f"{name} answered {code}")


def begin(device: int = 0) -> ctypes.c_void_p:
    """Initialise the driver and make a device's primary context current."""
    context = ctypes.c_void_p()
    check("cuInit", 0)
    check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    check("cuCtxSetCurrent", context)
    return context


def free_bytes() -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    check("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def alloc(size: int) -> tuple[int, ctypes.c_uint64]:
    made = ctypes.c_uint64()
    return call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(size)), made


def alloc_async(size: int) -> tuple[int, ctypes.c_uint64]:
    made = ctypes.c_uint64()
    return call("cuMemAllocAsync", ctypes.byref(made), ctypes.c_size_t(size), None), made


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
