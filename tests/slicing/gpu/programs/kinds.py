"""Takes memory kind by kind, says what the slice was charged for it, and waits for a line: an observer that is
in no slice looks at the device meanwhile. Then gives it back, says so and waits again."""

import ctypes
import sys

from cu import MIB, Prop, Shape, alloc, alloc_async, begin, call, check, driver, free_bytes, say


def many(take, free, sizes):
    made = []
    for size in sizes:
        code, one = take(size)
        if code:
            sys.exit(f"refused with {code}")
        made.append(one)
    return [lambda one=one: free(one) for one in made]


def plain(sizes):
    return many(alloc, lambda one: check("cuMemFree_v2", one), sizes)


def pooled(sizes):
    return many(alloc_async, lambda one: check("cuMemFreeAsync", one, None), sizes)


def physical(sizes):
    def take(size):
        made, prop = ctypes.c_uint64(), Prop(1, 0, 1, 0)
        size = ctypes.c_size_t(size)
        return call("cuMemCreate", ctypes.byref(made), size, ctypes.byref(prop), ctypes.c_uint64(0)), made

    return many(take, lambda one: check("cuMemRelease", one), sizes)


def arrays(shapes):
    def take(shape):
        made = ctypes.c_void_p()
        return call("cuArray3DCreate_v2", ctypes.byref(made), ctypes.byref(Shape(*shape))), made

    return many(take, lambda one: check("cuArrayDestroy", one), shapes)


def mipmaps(shapes):
    def take(shape):
        made = ctypes.c_void_p()
        return call("cuMipmappedArrayCreate", ctypes.byref(made), ctypes.byref(Shape(*shape)), 8), made

    return many(take, lambda one: check("cuMipmappedArrayDestroy", one), shapes)


KINDS = {
    # What the library assumes of the driver: 512-byte pieces up to 1 MiB, pages of 2 MiB above, pools by 32 MiB.
    "plain 1000 B": (plain, [1000] * 20000),
    "plain 100 KiB": (plain, [100 << 10] * 400),
    "plain 1 MiB": (plain, [MIB] * 100),
    "plain 1 MiB + 1": (plain, [MIB + 1] * 64),
    "plain 3 MiB": (plain, [3 * MIB] * 64),
    "pooled 5 MiB": (pooled, [5 * MIB] * 40),
    "pooled 33 MiB": (pooled, [33 * MIB] * 6),
    "physical 2 MiB": (physical, [2 * MIB] * 64),
    "array float 2D": (arrays, [(4000, 3000, 0, 0x20, 1, 0)] * 4),
    "array float4 2D": (arrays, [(1000, 1000, 0, 0x20, 4, 0)] * 8),
    "array byte 1D": (arrays, [(30000, 0, 0, 0x01, 1, 0)] * 200),
    "array half 3D": (arrays, [(200, 200, 200, 0x10, 1, 0)] * 8),
    "array layered": (arrays, [(500, 500, 16, 0x20, 1, 1)] * 8),
    "mipmap float": (mipmaps, [(3000, 3000, 0, 0x20, 1, 0)] * 3),
}


def main() -> None:
    begin()
    say(kind="", charged=0)
    sys.stdin.readline()
    for kind, (take, sizes) in KINDS.items():
        before = free_bytes()
        made = take(sizes)
        driver.cuCtxSynchronize()
        say(kind=kind, charged=before - free_bytes())
        sys.stdin.readline()
        for free in made:
            free()
        driver.cuCtxSynchronize()
        say(kind=kind, charged=before - free_bytes())
        sys.stdin.readline()


main()
