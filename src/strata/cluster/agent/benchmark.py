"""What a card really does: a short benchmark that turns its nominal figures into measured ones.

`time_device` and `time_links` run work with torch and return timings; the rest is arithmetic on them. Run them on
idle devices only (`is_idle`): they take a few seconds, and two gigabytes of the device's memory at most.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from strata.decision import Trust
from strata.errors import StrataError, need
from strata.fleet.accelerator import Accelerator
from strata.fleet.fingerprint import Device

What = Literal["fp16", "fp32", "memory_bandwidth", "link"]

MATMUL: Final = 8192
COPY_BYTES: Final = 1 << 30
REPEATS: Final = 5
BATCH: Final = 8
"""Operations between two looks at the clock, so that starting them does not count."""

PLAUSIBLE: Final = 1.2
"""Above this share of the nominal rate a timing is wrong: nothing waited for the device."""

IDLE_SHARE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Timing:
    """`work` FLOP or bytes, done once in each of `seconds`. pair: of links, places of source and destination."""

    what: What
    work: float
    seconds: tuple[float, ...]
    pair: tuple[int, int] | None = None

    def rate(self) -> float:
        """Return work per second, by the median time. Raises StrataError for times that cannot be."""
        if not self.seconds or not all(math.isfinite(second) and second > 0 for second in self.seconds):
            raise StrataError(f"benchmark: {self.what}: times {self.seconds} are not all positive")
        return self.work / statistics.median(self.seconds)


def is_idle(device: Device) -> bool:
    """Whether a benchmark disturbs nobody there; a device of which that is not known is not idle."""
    used = device.memory_used_bytes
    return (
        device.health > 0
        and device.utilisation is not None
        and device.utilisation <= IDLE_SHARE
        and used is not None
        and used <= max(IDLE_SHARE * device.memory_bytes, 4 * 2**30)
    )


def measured_card(device: Device, timings: Iterable[Timing]) -> Accelerator:
    """Return the device's card with its own measured figures; one the catalogue has not gets these alone.

    Raises StrataError where a figure is above what the card can do on paper.
    """
    card = device.card or Accelerator(
        device.model, device.vendor, device.memory_bytes, trust=Trust.MEASURED, source="measured on the node"
    )
    nominal: Mapping[What, float | None] = {
        "fp16": card.fp16_flops,
        "fp32": card.fp32_flops,
        "memory_bandwidth": card.memory_bandwidth_bytes_per_s,
    }
    rates: dict[What, float] = {timing.what: timing.rate() for timing in timings if timing.what != "link"}
    for what, rate in rates.items():
        on_paper = nominal[what]
        if on_paper is not None and rate > PLAUSIBLE * on_paper:
            raise StrataError(
                f"benchmark: {what} of {device.model} came out at {rate / on_paper:.1f} times its nominal rate",
                hint="run it again; if it stays, the catalogue's figure or the card's name is wrong",
            )
    return replace(
        card,
        fp16_flops_measured=rates.get("fp16", card.fp16_flops_measured),
        fp32_flops_measured=rates.get("fp32", card.fp32_flops_measured),
        memory_bandwidth_measured_bytes_per_s=rates.get(
            "memory_bandwidth", card.memory_bandwidth_measured_bytes_per_s
        ),
    )


def link_rates(timings: Iterable[Timing]) -> dict[tuple[int, int], float]:
    """Return bytes/s of each pair i < j; of two directions the slower."""
    rates: dict[tuple[int, int], float] = {}
    for timing in timings:
        if timing.what == "link" and timing.pair is not None and timing.pair[0] != timing.pair[1]:
            pair = (min(timing.pair), max(timing.pair))
            rates[pair] = min(timing.rate(), rates.get(pair, math.inf))
    return rates


def time_device(
    device: str,
    *,
    size: int = MATMUL,
    copy_bytes: int = COPY_BYTES,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time matrix products in FP16 and FP32 and a copy in memory, on a torch device (`cuda:0`, `npu:1`, `cpu`).

    Raises MissingPart without torch, StrataError where the device cannot do it.
    """
    torch = need("torch", extra="train")
    timings = []
    kinds: dict[What, Any] = {"fp16": torch.float16, "fp32": torch.float32}
    for what, dtype in kinds.items():
        a = made(partial(torch.rand, (size, size), device=device, dtype=dtype), device)
        out = made(partial(torch.empty_like, a), device)
        seconds = _timed(partial(torch.matmul, a, a, out=out), [device], repeats, clock)
        timings.append(Timing(what, 2.0 * size**3, seconds))
        del a, out
    source = made(partial(torch.zeros, copy_bytes, device=device, dtype=torch.uint8), device)
    dest = made(partial(torch.empty_like, source), device)
    seconds = _timed(partial(dest.copy_, source), [device], repeats, clock)
    # Each byte is read once and written once.
    return [*timings, Timing("memory_bandwidth", 2.0 * copy_bytes, seconds)]


def time_links(
    devices: Sequence[str],
    *,
    copy_bytes: int = COPY_BYTES,
    repeats: int = REPEATS,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time a copy from each device to each other, one at a time. Raises as `time_device`."""
    torch = need("torch", extra="train")
    timings = []
    for i, device in enumerate(devices):
        for j, other in enumerate(devices):
            if i == j:
                continue
            source = made(partial(torch.zeros, copy_bytes, device=device, dtype=torch.uint8), device)
            dest = made(partial(torch.empty, copy_bytes, device=other, dtype=torch.uint8), other)
            seconds = _timed(partial(dest.copy_, source), [device, other], repeats, clock)
            timings.append(Timing("link", float(copy_bytes), seconds, (i, j)))
    return timings


def made(make: Callable[[], Any], device: str) -> Any:
    """Return what a call on a device makes. Raises StrataError where the device cannot do it."""
    try:
        return make()
    # torch's own for a device, a type or a size it cannot do, and for a kind it was built without
    except (RuntimeError, AssertionError) as error:
        first = str(error).partition("\n")[0]
        raise StrataError(f"benchmark: {device}: {first}") from error


def _timed(
    work: Callable[[], object], devices: Sequence[str], repeats: int, clock: Callable[[], float]
) -> tuple[float, ...]:
    """Return seconds of one `work`, `repeats` times; a first round is not counted: libraries load, clocks rise."""
    seconds = []
    for _ in range(repeats + 1):
        finish(devices)
        start = clock()
        for _ in range(BATCH):
            made(work, devices[0])
        finish(devices)
        seconds.append((clock() - start) / BATCH)
    return tuple(seconds[1:])


def finish(devices: Sequence[str]) -> None:
    """Wait until the devices have done what was asked of them."""
    torch = need("torch", extra="train")
    for device in devices:
        kind = device.partition(":")[0]
        if kind != "cpu":
            made(partial(getattr(torch, kind).synchronize, device), device)
