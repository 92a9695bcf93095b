"""How fast this machine is: measured, in a second or so, on the device that will run the layers. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import torch

from strata.errors import UsageError
from strata.units import show_bytes

MATRIX: Final = {"cpu": 1024, "cuda": 8192}
COPIED_BYTES: Final = {"cpu": 2**26, "cuda": 2**30}
REPEATS: Final = 3
MEMORY_SHARE: Final = 0.5
"""Of what is free: a worker must not take a machine over that it was not told to."""


class Hardware(NamedTuple):
    """Dense rate in the precision the layers run in [FLOP/s], memory [bytes], its bandwidth [bytes/s]."""

    compute_capability: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float


def measure(device: str, memory_bytes: float | None = None, *, dtype: str = "float32") -> Hardware:
    """Return what the device does with layers of a precision; `memory_bytes` where said. Raises UsageError."""
    free_bytes, all_bytes = _memory_bytes(device)
    memory_bytes = MEMORY_SHARE * free_bytes if memory_bytes is None else memory_bytes
    if memory_bytes > all_bytes:
        text = f"--memory: {show_bytes(memory_bytes)} is more than all memory here ({show_bytes(all_bytes)})"
        raise UsageError(text, hint="without --memory half of what is free")
    side = MATRIX[device]
    a = torch.ones(side, side, device=device, dtype=getattr(torch, dtype))
    source = torch.ones(COPIED_BYTES[device] // 4, device=device)
    dest = torch.empty_like(source)
    # A copy reads every byte and writes it.
    return Hardware(
        2.0 * side**3 / _best_s(lambda: a @ a, device),
        memory_bytes,
        2.0 * COPIED_BYTES[device] / _best_s(lambda: dest.copy_(source), device),
    )


def _best_s(work: Callable[[], Any], device: str) -> float:
    """Return the least time of a few: what disturbs only adds."""
    best = float("inf")
    for _ in range(REPEATS):
        start = perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, perf_counter() - start)
    return best


def _memory_bytes(device: str) -> tuple[float, float]:
    """Return what is free of a device's memory, and all of it."""
    if device == "cuda":
        free_bytes, all_bytes = torch.cuda.mem_get_info()
        return free_bytes, all_bytes
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return 1024.0 * float(fields["MemAvailable"][0]), 1024.0 * float(fields["MemTotal"][0])
