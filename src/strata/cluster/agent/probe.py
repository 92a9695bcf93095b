"""A device's benchmark in a process of its own: its hold on the device ends with it, and a driver that hangs takes
nobody along.

`measure` asks for one; the process is this module, which prints one JSON object. Of the vendors only NVIDIA's way
was tried.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final, Literal

from strata.cluster.agent import benchmark
from strata.cluster.agent.benchmark import Timing
from strata.errors import MissingPart, StrataError, need
from strata.fleet.discovery import tools
from strata.fleet.discovery.collect import Run
from strata.fleet.fingerprint import Device, Probe

What = Literal["device", "links", "probe"]

PROBE_S: Final = 2.0
"""Longer than the second over which cards average their power."""

LIMIT_S: Final[Mapping[What, float]] = {"device": 180.0, "links": 300.0, "probe": 90.0}
"""Most of it goes into loading libraries."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How a vendor's devices are picked, what torch calls them, and the plug-in that teaches it to."""

    variable: str
    kind: str
    plugin: str = "torch"


WAYS: Final[Mapping[str, _Way]] = {
    "NVIDIA": _Way("CUDA_VISIBLE_DEVICES", "cuda"),
    "Huawei": _Way("ASCEND_RT_VISIBLE_DEVICES", "npu", "torch_npu"),
    "Cambricon": _Way("MLU_VISIBLE_DEVICES", "mlu", "torch_mlu"),
    "Hygon": _Way("HIP_VISIBLE_DEVICES", "cuda"),
    "Moore Threads": _Way("MUSA_VISIBLE_DEVICES", "musa", "torch_musa"),
}


def measure(what: What, devices: Sequence[Device], *, run: Run | None = None) -> dict[str, Any]:
    """Return what the benchmark of these devices, all of one vendor, printed. Raises StrataError."""
    vendor = devices[0].vendor
    way = WAYS.get(vendor)
    if way is None:
        raise StrataError(f"no benchmark is known for devices of {vendor}")
    # NVIDIA's indexes are not CUDA's; its uuids are.
    names = [device.uuid if device.uuid.startswith("GPU-") else str(device.index) for device in devices]
    command = ["env", f"{way.variable}={','.join(names)}", sys.executable, "-m", __name__]
    runner = run or partial(tools.run, timeout_s=LIMIT_S[what])
    text = runner([*command, what, way.plugin, *(f"{way.kind}:{i}" for i in range(len(devices)))])
    if text is None:
        raise MissingPart("the benchmark needs `env`, which is not here")
    try:
        # Libraries like to say something first.
        result = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise StrataError(f"benchmark of {', '.join(names)}: it printed no result but {text.strip()[:200]!r}")
    return result


def timings_of(result: Mapping[str, Any]) -> list[Timing]:
    """Return the timings that `device` and `links` print."""
    return [
        Timing(
            timing["what"],
            timing["work"],
            tuple(timing["seconds"]),
            tuple(timing["pair"]) if timing["pair"] else None,
        )
        for timing in result["timings"]
    ]


def probe_of(result: Mapping[str, Any], at_s: float) -> Probe:
    """Return what `probe` prints."""
    return Probe(at_s, result["rate_flops"], result["power_w"])


def time_probe(
    device: str,
    *,
    seconds: float = PROBE_S,
    size: int = benchmark.MATMUL,
    power: Callable[[], float | None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float | None]:
    """Return FLOP/s of FP16 matrix products for some seconds, and the power drawn at their end.

    Raises MissingPart without torch, StrataError where the device cannot do it.
    """
    torch = need("torch", extra="train")
    a = benchmark.made(partial(torch.rand, (size, size), device=device, dtype=torch.float16), device)
    work = partial(torch.matmul, a, a, out=benchmark.made(partial(torch.empty_like, a), device))
    benchmark.made(work, device)
    benchmark.finish([device])
    drawn, done, start = None, 0, clock()
    while (elapsed := clock() - start) < seconds:
        for _ in range(benchmark.BATCH):
            benchmark.made(work, device)
        drawn = power()  # while it is busy
        benchmark.finish([device])
        done += benchmark.BATCH
    return done * 2.0 * size**3 / elapsed, drawn


def _power_w(kind: str) -> float | None:
    torch = need("torch", extra="train")
    draw = getattr(getattr(torch, kind), "power_draw", None)
    if draw is None or getattr(torch.version, "hip", None):
        return None
    try:
        watts = draw(0) / 1000
    except (RuntimeError, ImportError):  # no NVML there
        return None
    return watts if math.isfinite(watts) else None


def main(arguments: Sequence[str]) -> int:
    """Run one benchmark, print its result, return the exit code."""
    what, plugin, *devices = arguments
    try:
        need("torch", extra="train")
        try:
            importlib.import_module(plugin)
        except ImportError as error:
            raise MissingPart(f"the benchmark needs {plugin}: {error}") from error
        sys.stdout.write(json.dumps(_result(what, devices)) + "\n")
    except StrataError as error:
        sys.stdout.write(f"{error}\n")
        return error.exit_code
    return 0


def _result(what: str, devices: Sequence[str]) -> dict[str, Any]:
    if what == "probe":
        kind = devices[0].partition(":")[0]
        rate, power_w = time_probe(devices[0], power=lambda: _power_w(kind))
        return {"rate_flops": rate, "power_w": power_w}
    timings = benchmark.time_device(devices[0]) if what == "device" else benchmark.time_links(devices)
    return {"timings": [asdict(timing) for timing in timings]}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the host's cores are others'
    sys.exit(main(sys.argv[1:]))
