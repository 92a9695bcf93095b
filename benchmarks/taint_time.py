"""From a fault in a ComputeNode to the taint on its Node, on a real control plane.

    python benchmarks/taint_time.py [--faults 100] [--waiting 0] [--burst 1] [--heartbeats 0] [--seed 0]

Needs `make control-plane`. One node a fault; etcd, kube-apiserver and `strata kube controller` are processes of
their own, and all nodes may be out at a time. A time is from just before the status is sent until a watch of the
Nodes shows the taint. waiting: suspended jobs that fit nowhere meanwhile. burst: faults sent at the same moment.
heartbeats: ComputeNodes of other nodes, so many a second, that are published meanwhile. Prints JSON, times as
wall-clock ms.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from strata.cluster.api.client import connect
from strata.cluster.api.kinds import COMPUTE_CLAIM, COMPUTE_NODE, NODE, name_of
from strata.cluster.api.watch import Listed, Watcher
from tests.cluster import objects
from tests.cluster.builders import A100
from tests.cluster.integration.control_plane import ControlPlane
from tests.cluster.integration.stand_in_nodes import StandInNodes
from tests.cluster.integration.strata_on_kubernetes import Strata
from tests.support.real_processes import until


class Taints:
    """When each node was first seen with a taint of ours."""

    def __init__(self, api) -> None:
        self.seen_s: dict[str, float] = {}
        self.watcher = Watcher(api, NODE, self._heard, rng=random.Random(2)).start()

    def _heard(self, news) -> None:
        now_s = time.perf_counter()
        for node in news.objects if isinstance(news, Listed) else [news.obj]:
            taints = node["spec"].get("taints") or ()
            if any(one["key"] == "ai.compute/unhealthy" for one in taints):
                self.seen_s.setdefault(name_of(node), now_s)


def measure(given: argparse.Namespace, folder: Path) -> list[float]:
    """Return the times [s], one a fault."""
    rng, names = random.Random(given.seed), [f"n{number:04}" for number in range(given.faults)]
    with ExitStack() as ends:
        plane = ends.enter_context(ControlPlane(_made(folder / "plane")))
        api = connect(kubeconfig=str(plane.kubeconfig()))
        strata = ends.enter_context(Strata(plane, api, _made(folder / "strata")))
        nodes = StandInNodes(plane, api)
        ends.callback(nodes.close)
        beating_names = [f"well{number}" for number in range(min(given.heartbeats, 20))]
        for name in (*names, *beating_names):
            strata.devices(nodes, name)
        plane.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
        strata.controller("--isolate-at-most", "1.0")
        taints = Taints(api)
        ends.callback(taints.watcher.stop)
        for number in range(given.waiting):
            pods = 10 * given.faults + number
            job = objects.job(f"j{number}", pods=pods, devices=8, accelerator=A100, substitution="never")
            strata.submit("bench", job)
        last = f"job-j{given.waiting - 1}"
        until(lambda: not given.waiting or api.get(COMPUTE_CLAIM, last, "bench"), lambda: "jobs to be told")
        stopped = threading.Event()

        def beat() -> None:
            while not stopped.wait(1 / given.heartbeats):
                strata.found(rng.choice(beating_names))

        sent_s: dict[str, float] = {}
        beating = threading.Thread(target=beat, daemon=True)
        if given.heartbeats:
            beating.start()
            ends.callback(beating.join)
        ends.callback(stopped.set)
        for first in range(0, len(names), given.burst):
            some = names[first : first + given.burst]

            def fault(name: str, status) -> None:
                sent_s[name] = time.perf_counter()
                api.apply(COMPUTE_NODE, status, subresource="status", manager="strata-agent")

            sick = {name: objects.devices(name, sick=(3,)) for name in some}
            at_once = [threading.Thread(target=fault, args=one) for one in sick.items()]
            for thread in at_once:
                thread.start()
            for thread in at_once:
                thread.join()
            until(lambda some=some: all(name in taints.seen_s for name in some), lambda some=some: str(some))
            time.sleep(rng.uniform(0.0, 0.4))
        return [taints.seen_s[name] - sent_s[name] for name in names]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def main() -> None:
    """Measure and print."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--faults", type=int, default=100)
    ask.add_argument("--waiting", type=int, default=0)
    ask.add_argument("--burst", type=int, default=1)
    ask.add_argument("--heartbeats", type=int, default=0)
    ask.add_argument("--seed", type=int, default=0)
    given = ask.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = sorted(1000 * one for one in measure(given, Path(folder)))
    percentiles = statistics.quantiles(found, n=100, method="inclusive")
    shown = {"p50_ms": percentiles[49], "p99_ms": percentiles[98], "most_ms": found[-1]}
    print(json.dumps({**vars(given), **{key: round(value, 1) for key, value in shown.items()}}))


if __name__ == "__main__":
    main()
