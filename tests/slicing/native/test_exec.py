"""What a process holds ends with its memory, by exec too, and not with its open files."""

from __future__ import annotations

import subprocess
import sys

from tests.slicing.fake_accelerators import GIB, MIB

TAKE = f"""
import ctypes, os
cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_ulonglong()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
print("alloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t({600 * MIB})), flush=True)
input()
"""
AND_EXEC = """
os.execv("/bin/sh", ["sh", "-c", "echo executed; read word"])
"""


def test_memory_ends_with_exec(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    command = [sys.executable, "-c", TAKE + AND_EXEC]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "alloc 0\n"
        held = accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout
        print(file=holder.stdin, flush=True)
        assert holder.stdout.readline() == "executed\n"
        given_back = accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout
        holder.communicate("end\n", timeout=300)
    assert (held, given_back) == ("alloc 2\n", "alloc 0\n")


def test_a_daemon_that_closes_every_file_keeps_its_share(accelerators, ledger):
    env = accelerators.environment(ledger=ledger, STRATA_MEMORY_LIMIT=str(GIB))
    command = [sys.executable, "-c", TAKE + "os.closerange(3, 4096)\nprint('closed', flush=True)\ninput()"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "alloc 0\n"
        print(file=holder.stdin, flush=True)
        assert holder.stdout.readline() == "closed\n"
        assert accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout == "alloc 2\n"
        holder.communicate("end\n", timeout=300)
    assert accelerators.run("calls", "dlsym", "alloc:600M", env=env).stdout == "alloc 0\n"
