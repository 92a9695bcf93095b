"""Runs kernels of 0.1 ms in a row, an event behind each, and says how long it was between two events: where other
processes are at work the device gives turns, and what is longer than a kernel has a turn of others in it.

Words: turns of spin.py's loop in a microsecond, seconds, kernels between two waits for the device (0: it never
waits)."""

import ctypes
import statistics
import sys
import time

from cu import begin, call, check, say
from spin import PTX

KERNEL_US = 100
RING = 512


def main() -> None:
    per_us, seconds, batch = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    begin()
    module, kernel, out = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    check("cuModuleLoadData", ctypes.byref(module), PTX)
    check("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    check("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(8))
    value = ctypes.c_uint64(int(per_us * KERNEL_US))
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(value), ctypes.addressof(out))
    events = [ctypes.c_void_p() for _ in range(RING)]
    for event in events:
        check("cuEventCreate", ctypes.byref(event), 0)
    spans_ms, ended, number = [], time.monotonic() + seconds, 0
    while time.monotonic() < ended:
        check("cuEventRecord", events[number % RING], None)
        if number and batch and number % batch == 0:
            check("cuCtxSynchronize")
        check("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        number += 1
        done = number - RING // 2
        if done >= 1:
            check("cuEventSynchronize", events[done % RING])
            span = ctypes.c_float()
            if call("cuEventElapsedTime", ctypes.byref(span), events[(done - 1) % RING], events[done % RING]) == 0:
                spans_ms.append(span.value)
    usual = statistics.median(spans_ms)
    long = sorted(span - usual for span in spans_ms if span > usual + 0.2)
    between, run = [], 0
    for span in spans_ms:
        run += 1
        if span > usual + 0.2:
            between.append(run * usual)
            run = 0
    say(
        kernels=len(spans_ms), usual_ms=usual, share=len(spans_ms) * usual / sum(spans_ms),
        num_turns=len(long), turn_of_others_ms=[long[len(long) * q // 10] for q in (0, 1, 5, 9)] if long else [],
        own_turn_ms=[sorted(between)[len(between) * q // 10] for q in (0, 1, 5, 9)] if between else [],
    )  # fmt: skip


main()
