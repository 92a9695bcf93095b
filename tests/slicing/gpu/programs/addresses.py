# ruff: noqa: T201
"""Compares, without the library, what a driver exports with what its cuGetProcAddress hands out for the names.

Words: the exported names to look at. Prints {"version", "asked", "missing", "differ": [[name, version, flags]]}:
where an address is none that dlsym knows by any of the names, the library has to go by names instead.
"""

import ctypes
import json
import re
import sys

VERSIONS = (11020, 11040, 12000, 12010, 12030, 12050, 12080, 13000, 13010)
ENDS = ("", "_v2", "_v3", "_v4", "_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds")


def address(driver: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.cast(getattr(driver, name), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def main() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    number = ctypes.c_int()
    assert driver.cuInit(0) == 0
    assert driver.cuDriverGetVersion(ctypes.byref(number)) == 0
    get = driver.cuGetProcAddress_v2
    get.argtypes = [
        ctypes.c_char_p,
        ctypes.POINTER(ctypes.c_void_p),
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.POINTER(ctypes.c_int),
    ]
    bases = sorted({re.sub(r"(_v\d)?(_ptsz|_ptds)?$", "", name) for name in sys.argv[1:]})
    asked, differ, missing = 0, [], []
    # Of all names together: cuGraphInstantiate has long been exported as cuGraphInstantiateWithFlags.
    known = {address(driver, base + end) for base in bases for end in ENDS} - {0}
    for base in bases:
        for version in (one for one in VERSIONS if one <= number.value):
            for flags in (0, 1, 2):
                found, status = ctypes.c_void_p(), ctypes.c_int(-1)
                result = get(base.encode(), ctypes.byref(found), version, flags, ctypes.byref(status))
                if result != 0 or not found.value:
                    missing.append([base, version, flags])
                    continue
                asked += 1
                if found.value not in known:
                    differ.append([base, version, flags])
    print(json.dumps({"version": number.value, "asked": asked, "missing": len(missing), "differ": differ}))


main()
