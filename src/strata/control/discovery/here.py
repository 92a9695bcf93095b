"""This machine: its accelerators as the vendors' tools tell, else its CPU cores, whose rates are measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

from strata.control.discovery.fleet_file import UNKNOWN_MEMORY, Card, FoundDomain, Told
from strata.decision import Trust
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Device

_LATE_S = 120.0


def domains_here(node: str, collected: Collected, rates: Callable[[], Mapping[str, float]]) -> list[FoundDomain]:
    """Return a domain for each kind of card, or of the cores where there is none; `rates` are those of a core."""
    print_ = collected.fingerprint
    by_model: dict[str, list[int]] = {}
    for place, device in enumerate(print_.devices):
        by_model.setdefault(device.model, []).append(place)
    if not by_model:
        return [_cores(node, rates())]
    bandwidth = print_.bandwidth()
    made = []
    for model, places in by_model.items():
        count = Told(len(places), Trust.MEASURED, print_.tool)
        keys = {"num_gpus": count, "gpus_per_node": count}
        card = _card(print_.devices[places[0]], print_.tool)
        pairs = set(combinations(places, 2))
        slowest = min((float(bandwidth[pair]) for pair in pairs), default=None)
        if slowest is not None:
            trust = Trust.MEASURED if print_.measured.keys() >= pairs else Trust.ASSUMED
            links = ", ".join(sorted({print_.links.get(pair, "sys") for pair in pairs}))
            keys["intra_bandwidth"] = Told(_bandwidth(slowest), trust, f"{print_.tool}: {links}")
        elif card.inline:
            keys["intra_bandwidth"] = Told("1GB/s", Trust.ASSUMED, "a single card")
        name = node if len(by_model) == 1 else f"{node}-{model}"
        made.append(FoundDomain(name, card, keys, {"kind": "local"}))
    return made


def core_rates() -> Mapping[str, float]:
    """Return what one core of this machine does: `core_rate` in a process of its own, with one thread."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "strata.control.discovery.core_rate"], env={**os.environ, **threads},
        capture_output=True, text=True, check=True, timeout=_LATE_S,
    )  # fmt: skip
    rates: Mapping[str, float] = json.loads(done.stdout)
    return rates


def _card(device: Device, tool: str) -> Card:
    name = Told(device.model, Trust.MEASURED, tool)
    if device.card is not None:
        return Card(Told(device.card.name, Trust.MEASURED, f"{tool}: {device.model}"))
    memory = Told(f"{device.memory_bytes / 1e9:.4g}GB", Trust.MEASURED, tool)
    if device.memory_bytes <= 0:
        memory = Told(UNKNOWN_MEMORY, Trust.ASSUMED, f"{tool} does not say")
    return Card(name, {"vendor": Told(device.vendor, Trust.MEASURED, tool), "memory": memory})


def _cores(node: str, rates: Mapping[str, float]) -> FoundDomain:
    count = len(os.sched_getaffinity(0))
    total = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1]) * 1024
    memory = f"{total / count / 1e9:.3g}GB"
    product, copy = "a product of matrices, one thread", "a copy of 64 MiB, one thread"
    card = {
        "vendor": Told("cpu", Trust.MEASURED, "no accelerator answered"),
        "memory": Told(memory, Trust.MEASURED, "/proc/meminfo, a core's share"),
        "fp32": Told(f"{rates['fp32_flops'] / 1e9:.3g}GFLOPS", Trust.MEASURED, product),
        "memory_bandwidth": Told(_bandwidth(rates["copy_bytes_per_s"]), Trust.MEASURED, copy),
    }
    cores = Told(count, Trust.MEASURED, "CPUs we may run on")
    loop = Told(_bandwidth(rates["copy_bytes_per_s"] / 2), Trust.ASSUMED, "half of a copy, through the kernel")
    keys = {"num_gpus": cores, "gpus_per_node": cores, "intra_bandwidth": loop}
    return FoundDomain(node, Card(Told("core", Trust.MEASURED, "this machine"), card), keys, {"kind": "local"})


def _bandwidth(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g}GB/s"
