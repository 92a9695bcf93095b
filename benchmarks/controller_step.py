"""How long one step of the controller takes while many jobs wait, in this process, without an API server.

    python benchmarks/controller_step.py [--nodes 500] [--jobs 1000] [--alike]

Half of the nodes are of NVIDIA, half of Ascend; every job fits nowhere, and each asks for something else unless
`--alike`. Prints JSON, wall-clock milliseconds: of the first step (each job is read and routed, and explained as
far as a step goes), of one where nothing has changed, and of one after a node got room. longest_hold: of its lock.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from strata.cluster.api import kinds
from strata.cluster.api.actions import Action
from strata.cluster.api.applier import Failure
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.controller.controller import Controller
from tests.cluster import objects
from tests.cluster.builders import A100, B3, PROFILES

STAMP = "2026-11-21T10:00:00Z"


class Lock:
    """The lock of a cache, and how long it was held at a time."""

    def __init__(self) -> None:
        self.longest_s = self._since_s = 0.0

    def __enter__(self) -> None:
        self._since_s = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.longest_s = max(self.longest_s, time.perf_counter() - self._since_s)


def apply(actions: Iterable[Action]) -> tuple[Failure, ...]:
    """Do nothing, with all of them."""
    deque(actions, maxlen=0)
    return ()


def main() -> None:
    """Measure and print."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--nodes", type=int, default=500)
    ask.add_argument("--jobs", type=int, default=1000)
    ask.add_argument("--alike", action="store_true")
    given = ask.parse_args()
    cache, lock = ClusterCache(PROFILES), Lock()
    controller = Controller(cache, apply, lock)
    models = {f"n{number:05}": (A100, B3)[number % 2] for number in range(given.nodes)}
    cache.listed(kinds.NODE, [objects.node(name, model) for name, model in models.items()])
    cache.listed(kinds.COMPUTE_NODE, [objects.devices(name, model) for name, model in models.items()])
    busy = objects.pod("busy", on="n00000", resource="nvidia.com/gpu", count=8)
    cache.changed(kinds.POD, busy)
    sizes = [given.nodes * 2 + (0 if given.alike else number) for number in range(given.jobs)]
    words = {"devices": 8, "accelerator": A100, "substitution": "never"}
    waiting = [objects.job(f"j{number:05}", pods=pods, **words) for number, pods in enumerate(sizes)]
    cache.listed(kinds.JOB, waiting)
    _ = cache.index

    def step(at_s: float) -> dict[str, float]:
        begun, lock.longest_s = time.perf_counter(), 0.0
        controller.cycle(at_s, stamp=STAMP)
        return {"all_ms": 1000 * (time.perf_counter() - begun), "longest_hold_ms": 1000 * lock.longest_s}

    found = {"first": step(0.0)}
    steps = 1
    while step(1.0)["all_ms"] > 1000 * controller.policy.explain_s:
        steps += 1
    found |= {"unchanged": step(2.0)}
    cache.changed(kinds.POD, busy, is_gone=True)
    found |= {"roomier": step(3.0)}
    shown = {what: {key: round(value, 1) for key, value in times.items()} for what, times in found.items()}
    print(json.dumps({**vars(given), **shown, "steps_until_all_are_told": steps}))


if __name__ == "__main__":
    main()
