"""From a bus error that the kernel counts to the ComputeNode's patch leaving the agent, and what watching costs.

    python benchmarks/agent_faults.py [--faults 200] [--devices 8] [--seed 0]

A tree like /sys is made up in a temporary folder; the agent's own threads watch it and publish to an API server
that accepts at once. Errors come at random times, so that some fall into the pause after a publication. Each
device has two (fatal, nonfatal), then a new agent starts. Prints JSON; times are wall-clock milliseconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import queue
import random
import resource
import statistics
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from strata.cluster.agent.daemon import Agent
from strata.cluster.agent.meters import AgentMetrics
from strata.cluster.agent.publish import Publisher
from strata.cluster.agent.run import AgentRunner
from strata.cluster.agent.sources import POLL_S, watch_errors, watch_presence
from strata.cluster.agent.watch import BusWatch, Presence
from strata.fleet.catalogue import accelerator
from strata.fleet.discovery.collect import Collected
from strata.fleet.fingerprint import Device, Fingerprint

KINDS = {"fatal": "TOTAL_ERR_FATAL", "nonfatal": "TOTAL_ERR_NONFATAL"}
WAIT_S = 10.0


def address(i: int) -> str:
    return f"0000:{0x10 + i:02x}:00.0"


def make_tree(root: Path, num_devices: int) -> None:
    for i in range(num_devices):
        folder = root / "bus/pci/devices" / address(i)
        folder.mkdir(parents=True)
        (folder / "config").write_bytes(b"\xde\x10\x30\x23")
        for kind, total in KINDS.items():
            # As long as the kernel's: a line for each of seventeen errors.
            rows = "".join(f"Error{row} 0\n" for row in range(17))
            (folder / f"aer_dev_{kind}").write_text(f"{rows}{total} 0\n")


class Server:
    """Accepts everything; the time and the faults of each status go into a queue."""

    def __init__(self) -> None:
        self.seen: queue.SimpleQueue[tuple[float, set[tuple[str, str]]]] = queue.SimpleQueue()

    def apply(self, kind: Any, obj: Any, *, subresource: str = "", manager: str = "") -> Any:
        devices = obj.get("status", {}).get("devices", [])
        faults = {(device["busId"], word) for device in devices for word in device.get("faults", [])}
        self.seen.put((time.perf_counter(), faults))
        return obj


def round_of(root: Path, faults: list[tuple[int, str]], num_devices: int, rng: random.Random) -> list[float]:
    """One agent's life: its faults one after the other; seconds from each to the status that has it."""
    make_tree(root, num_devices)
    card = accelerator("H100-SXM5-80GB")
    devices = tuple(
        Device(i, f"GPU-{i}", card.name, card.vendor, card.memory_bytes, card, bus_id=address(i))
        for i in range(num_devices)
    )
    server = Server()

    runner = AgentRunner(Agent(rng=rng), publish=Publisher(server), meters=AgentMetrics())

    def addresses() -> tuple[str, ...]:
        return runner.addresses

    more: dict[str, Any] = {"stopped": runner.stopped, "clock": runner.clock, "root": root}
    runner.start(*(partial(source, addresses, runner.put, **more) for source in (watch_errors, watch_presence)))
    runner.put(Collected(Fingerprint("node", devices)))
    server.seen.get(timeout=WAIT_S)
    pause = threading.Event()
    pause.wait(1.0)  # the watch has opened its files
    took = []
    for i, kind in faults:
        pause.wait(rng.uniform(0.0, 0.4))
        path = root / "bus/pci/devices" / address(i) / f"aer_dev_{kind}"
        start = time.perf_counter()
        path.write_text(f"{KINDS[kind]} 1\n")
        at, known = server.seen.get(timeout=WAIT_S)
        while (address(i), f"aer-{kind}") not in known:
            at, known = server.seen.get(timeout=WAIT_S)
        took.append(at - start)
    runner.stop()
    return took


def cost_of_a_look(num_devices: int, looks: int = 5000) -> float:
    """CPU seconds of one look at all devices' files."""
    with tempfile.TemporaryDirectory() as folder:
        make_tree(Path(folder), num_devices)
        addresses = [address(i) for i in range(num_devices)]
        watch, presence = BusWatch(addresses, root=Path(folder)), Presence(addresses, root=Path(folder))
        start = time.process_time()
        for _ in range(looks):
            watch.poll(0.0)
            presence.poll(0.0)
        spent = time.process_time() - start
        watch.close()
        presence.close()
    return spent / looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    logging.disable()  # it says every fault
    rng = random.Random(told.seed)
    took: list[float] = []
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    while len(took) < told.faults:
        faults = [(i, kind) for i in range(told.devices) for kind in KINDS]
        rng.shuffle(faults)
        with tempfile.TemporaryDirectory() as folder:
            took += round_of(Path(folder), faults[: told.faults - len(took)], told.devices, rng)
    after = resource.getrusage(resource.RUSAGE_SELF)
    wall_s = time.perf_counter() - start
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    look_s = cost_of_a_look(told.devices)
    answer = {
        "faults": len(took),
        "devices": told.devices,
        "poll_ms": POLL_S * 1e3,
        "p50_ms": round(cuts[49] * 1e3, 1),
        "p99_ms": round(cuts[98] * 1e3, 1),
        "max_ms": round(max(took) * 1e3, 1),
        "look_us": round(look_s * 1e6, 1),
        "watching_share_of_a_core": round(look_s / POLL_S, 6),
        "agent_share_of_a_core": round(cpu_s / wall_s, 4),
    }
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
