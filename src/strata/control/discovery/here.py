"""This machine: its accelerators as the vendors' tools tell, else its CPU cores, whose rates are measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from strata.cluster.agent.benchmark import is_idle
from strata.cluster.scheduling.index import MIN_HEALTH
from strata.decision import Trust
from strata.fleet.discovery.cards import card_of_devices, intra_bandwidth, show_rate
from strata.fleet.discovery.collect import Collected
from strata.fleet.discovery.fleet_file import Card, FoundDomain, Told
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
    made = []
    for model, places in by_model.items():
        count = Told(len(places), Trust.MEASURED, print_.tool)
        devices = [print_.devices[place] for place in places]
        free = _free(devices, collected)
        keys = {"num_gpus": count, **({"free_gpus": free} if free else {}), "gpus_per_node": count}
        card = card_of_devices(devices, source=print_.tool)
        joined = intra_bandwidth(print_, places, source=print_.tool)
        if joined is not None:
            keys["intra_bandwidth"] = joined
        elif card.inline:
            keys["intra_bandwidth"] = Told("1GB/s", Trust.ASSUMED, "a single card")
        name = node if len(by_model) == 1 else f"{node}-{model}"
        made.append(FoundDomain(name, card, keys, {"kind": "local"}))
    return made


def _free(devices: Sequence[Device], collected: Collected) -> Told | None:
    """Return how many devices are well and run nothing, None where the tool tells of neither load nor memory.

    In a container the driver may not tell of processes outside it, so their memory counts as well.
    """
    if any(device.utilisation is None or device.memory_used_bytes is None for device in devices if device.health):
        return None
    readings = [collected.readings.get(device.uuid) for device in devices]
    processes = [None if reading is None else reading.processes for reading in readings]
    count = sum(
        device.health >= MIN_HEALTH and is_idle(device) and not number
        for device, number in zip(devices, processes, strict=True)
    )
    if None in processes:
        return Told(count, Trust.ANALYTIC, f"{collected.fingerprint.tool}: no load, little memory in use")
    return Told(count, Trust.MEASURED, f"{collected.fingerprint.tool}: no process, no load, little memory in use")


def core_rates() -> Mapping[str, float]:
    """Return what one core of this machine does: `core_rate` in a process of its own, with one thread."""
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "strata.control.discovery.core_rate"], env={**os.environ, **threads},
        capture_output=True, text=True, check=True, timeout=_LATE_S,
    )  # fmt: skip
    rates: Mapping[str, float] = json.loads(done.stdout)
    return rates


def _cores(node: str, rates: Mapping[str, float]) -> FoundDomain:
    count = len(os.sched_getaffinity(0))
    total = int(Path("/proc/meminfo").read_text(encoding="ascii").split()[1]) * 1024
    memory = f"{total / count / 1e9:.3g}GB"
    product, copy = "a product of matrices, one thread", "a copy of 64 MiB, one thread"
    card = {
        "vendor": Told("cpu", Trust.MEASURED, "no accelerator answered"),
        "memory": Told(memory, Trust.MEASURED, "/proc/meminfo, a core's share"),
        "fp32": Told(f"{rates['fp32_flops'] / 1e9:.3g}GFLOPS", Trust.MEASURED, product),
        "memory_bandwidth": Told(show_rate(rates["copy_bytes_per_s"]), Trust.MEASURED, copy),
    }
    cores = Told(count, Trust.MEASURED, "CPUs we may run on")
    loop = Told(show_rate(rates["copy_bytes_per_s"] / 2), Trust.ASSUMED, "half of a copy, through the kernel")
    keys = {"num_gpus": cores, "gpus_per_node": cores, "intra_bandwidth": loop}
    return FoundDomain(node, Card(Told("core", Trust.MEASURED, "this machine"), card), keys, {"kind": "local"})
