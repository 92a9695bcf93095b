"""Where there is no driver, the quota library's exports do not look like one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.slicing.fake_accelerators import GIB

NONE = """
import ctypes
everything = ctypes.CDLL(None)
names = ["cuMemAlloc_v2", "cuLaunchKernel", "rtMalloc", "aclrtMalloc"]
print([name for name in names if hasattr(everything, name)])
"""

ERRORS = """
import ctypes
libc, driver, everything = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None)
dlsym, dlerror = libc.dlsym, libc.dlerror
dlsym.restype, dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
dlerror.restype = ctypes.c_char_p
for handle in (driver._handle, everything._handle, 0):
    for name in (b"cuMemAlloc_v2", b"cuMemAlloc_v9"):
        print(dlsym(handle, name) is not None, dlerror() is None)
"""


@pytest.mark.parametrize("limits", [{}, {"STRATA_MEMORY_LIMIT": str(GIB)}], ids=["without", "with"])
class TestLimits:
    def test_no_driver_is_no_driver(self, accelerators, ledger, limits):
        env = accelerators.environment(ledger=ledger, LD_LIBRARY_PATH="", **limits)
        done = subprocess.run([sys.executable, "-c", NONE], env=env, capture_output=True, text=True, timeout=300)
        assert (done.stdout, done.stderr) == ("[]\n", "")

    def test_an_error_is_told_where_there_is_one_and_only_there(self, accelerators, ledger, limits):
        env = accelerators.environment(ledger=ledger, **limits)
        done = subprocess.run([sys.executable, "-c", ERRORS], env=env, capture_output=True, text=True, timeout=300)
        assert done.stderr == ""
        # RTLD_DEFAULT finds the driver although it was loaded for ctypes alone: without the library it would not.
        assert done.stdout.split() == ["True", "True", "False", "False"] * 3
