"""Keeps the device at work for some seconds with kernels of given lengths, and says for how long it was.

Words: turns of a loop that the device makes in a microsecond (0: measure and say it, and what events add), what
a kernel takes of the device beside its turns in microseconds, seconds, then microseconds of each kernel of a
round, as 20x100 or 2000000; +15: the program computes so long after each launch. A round ends with a wait.
Turns are counted and not time, since a kernel's clock goes on while another tenant has its turn. Start and end
of a kernel are counted with it: nobody else has the device then, and of kernels of 10 us they are a fifth."""

import ctypes
import statistics
import sys
import time

from cu import begin, check, say

PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 turns, .param .u64 out)
{
    .reg .pred %p;
    .reg .u64 %left, %sum, %at;
    ld.param.u64 %left, [turns];
    ld.param.u64 %at, [out];
    mov.u64 %sum, 1;
again:
    mad.lo.u64 %sum, %sum, %left, 1;
    sub.u64 %left, %left, 1;
    setp.ne.u64 %p, %left, 0;
    @%p bra again;
    st.global.u64 [%at], %sum;
    ret;
}
"""


def main() -> None:
    begin()
    module, kernel, out = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    check("cuModuleLoadData", ctypes.byref(module), PTX)
    check("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    check("cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(8))

    def launch(turns: int) -> None:
        value = ctypes.c_uint64(turns)
        parameters = (ctypes.c_void_p * 2)(ctypes.addressof(value), ctypes.addressof(out))
        check("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)

    if float(sys.argv[1]) == 0:
        per_us = measure(launch)
        start_us = measure_start(launch, int(100 * per_us))
        say(per_us=per_us, start_us=start_us, marks_us=measure_marks(launch, int(20 * per_us)) - 20 - start_us)
        return
    per_us, start_us, seconds, spans, computes_s = *map(float, sys.argv[1:4]), [], 0.0
    for word in sys.argv[4:]:
        if word.startswith("+"):
            computes_s = float(word) / 1e6
            continue
        count, _, span = word.rpartition("x")
        spans += [int(span)] * int(count or 1)
    begun, worked_us, longest_s = time.monotonic(), 0, 0.0
    while time.monotonic() - begun < seconds:
        for span in spans:
            at = time.monotonic()
            launch(max(1, int(per_us * span)))
            launched = time.monotonic()
            longest_s = max(longest_s, launched - at)
            while time.monotonic() - launched < computes_s:
                pass
        check("cuCtxSynchronize")
        worked_us += sum(spans) + start_us * len(spans)
    say(share=worked_us / 1e6 / (time.monotonic() - begun), longest_launch_s=longest_s)


def measure(launch) -> float:
    turns, best_s = 20_000_000, float("inf")
    for _ in range(5):
        begun = time.monotonic()
        launch(turns)
        check("cuCtxSynchronize")
        best_s = min(best_s, time.monotonic() - begun)
    return turns / (1e6 * best_s)


def measure_start(launch, turns_of_100_us: int) -> float:
    """Return what kernels that lie back to back, launched faster than they run, take beside their turns."""
    count, best_s = 2000, float("inf")
    for _ in range(3):
        begun = time.monotonic()
        for _ in range(count):
            launch(turns_of_100_us)
        check("cuCtxSynchronize")
        best_s = min(best_s, time.monotonic() - begun)
    return 1e6 * best_s / count - 100


def measure_marks(launch, turns: int) -> float:
    """Return the time between events around a kernel that an idle device waits for, less its launch call's.

    So the library measures a short launch; what is more than the kernel takes, the slice is charged too much.
    """
    events, spans_us = [ctypes.c_void_p(), ctypes.c_void_p()], []
    for event in events:
        check("cuEventCreate", ctypes.byref(event), 0)
    for _ in range(2000):
        check("cuEventRecord", events[0], None)
        begun = time.perf_counter()
        launch(turns)
        launched_us = 1e6 * (time.perf_counter() - begun)
        check("cuEventRecord", events[1], None)
        check("cuCtxSynchronize")
        span_ms = ctypes.c_float()
        check("cuEventElapsedTime", ctypes.byref(span_ms), events[0], events[1])
        spans_us.append(1e3 * span_ms.value - launched_us)
    return statistics.median(spans_us)


if __name__ == "__main__":
    main()
