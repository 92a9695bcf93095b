# ruff: noqa: T201
"""Takes device memory in 256 MiB blocks by the driver alone (no PyTorch), in each way, until it is refused.

Prints, by way, how many blocks it got and with which code the next was refused; then the same once more, after all
of it was given back.
"""

import ctypes
import json

BLOCK = 256 << 20
driver = ctypes.CDLL("libcuda.so.1")


class Prop(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("none", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Shape(ctypes.Structure):
    _fields_ = [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    ]


def plain(made):
    return driver.cuMemAlloc_v2(ctypes.byref(made), ctypes.c_size_t(BLOCK))


def pitched(made):
    pitch = ctypes.c_size_t()
    return driver.cuMemAllocPitch_v2(
        ctypes.byref(made), ctypes.byref(pitch), ctypes.c_size_t(1 << 14), ctypes.c_size_t(BLOCK >> 14), 4
    )


def managed(made):
    return driver.cuMemAllocManaged(ctypes.byref(made), ctypes.c_size_t(BLOCK), 1)


def pooled(made):
    return driver.cuMemAllocAsync(ctypes.byref(made), ctypes.c_size_t(BLOCK), None)


def physical(made):
    prop = Prop(1, 0, 1, 0)
    return driver.cuMemCreate(ctypes.byref(made), ctypes.c_size_t(BLOCK), ctypes.byref(prop), ctypes.c_uint64(0))


def array(made):
    shape = Shape(1 << 13, BLOCK >> 15, 0x20, 1)
    return driver.cuArrayCreate_v2(ctypes.byref(made), ctypes.byref(shape))


def free(made):
    return driver.cuMemFree_v2(made)


def free_pooled(made):
    return driver.cuMemFreeAsync(made, None)


def free_physical(made):
    return driver.cuMemRelease(made)


def free_array(made):
    return driver.cuArrayDestroy(made)


WAYS = [
    (plain, free),
    (pitched, free),
    (managed, free),
    (pooled, free_pooled),
    (physical, free_physical),
    (array, free_array),
]


def main() -> None:
    context, free_bytes, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemGetInfo_v2(ctypes.byref(free_bytes), ctypes.byref(total)) == 0
    told = {"free": free_bytes.value, "total": total.value}
    for take, give in WAYS + WAYS[:1]:
        made, code = [], 0
        while code == 0 and len(made) < 64:
            one = ctypes.c_uint64()
            code = take(one)
            if code == 0:
                made.append(one)
        codes = {give(one) for one in made}
        driver.cuCtxSynchronize()
        name = take.__name__ if take.__name__ not in told else "plain again"
        told[name] = [len(made), code, sorted(codes)]
    print(json.dumps(told))


main()
