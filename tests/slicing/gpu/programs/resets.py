"""Ends contexts in every way, and says what the slice has left after each: always the same."""

import ctypes

from cu import MIB, alloc, begin, call, check, free_bytes, say


def main() -> None:
    begin()
    left = {"at first": free_bytes()}
    for name in ("cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2"):
        codes = [alloc(64 * MIB)[0] for _ in range(4)]
        check(name, 0)
        begin()
        left[name] = free_bytes()
        assert codes == [0] * 4
    other = ctypes.c_void_p()
    check("cuCtxCreate_v2", ctypes.byref(other), 0, 0)
    alloc(64 * MIB)
    check("cuCtxDestroy_v2", other)
    begin()
    left["cuCtxDestroy_v2"] = free_bytes()
    say(left=left, green=green())


def green() -> str:
    """A green context on half of the multiprocessors: what it takes counts as the primary's."""
    resource, got = (ctypes.c_ubyte * 144)(), (ctypes.c_ubyte * 144)()
    count, description, context = ctypes.c_uint(1), ctypes.c_void_p(), ctypes.c_void_p()
    try:
        code = call("cuDeviceGetDevResource", 0, resource, 1)
        code = code or call("cuDevSmResourceSplitByCount", got, ctypes.byref(count), resource, None, 0, 8)
        code = code or call("cuDevResourceGenerateDesc", ctypes.byref(description), got, 1)
        code = code or call("cuGreenCtxCreate", ctypes.byref(context), description, 0, 1)
    except AttributeError:
        return "this driver has none"
    before = free_bytes()
    code = code or call("cuGreenCtxDestroy", context)
    return f"code {code}, {before - free_bytes()} bytes"


main()
