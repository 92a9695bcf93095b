"""What a sign of life of a node costs an API server: the whole status of its ComputeNode, or a Lease.

    python benchmarks/heartbeats.py [--nodes 500] [--calls 2000]

Needs `make control-plane`: etcd and kube-apiserver alone, with six watches of either kind, as many as two
controllers, webhooks and extenders have. Costs are the API server's own CPU time, what was written to it and what
it sent to watches, less what it spends idle. Prints JSON: of one call, and of each schedule a node and minute.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from strata.cluster.api.client import Api, connect
from strata.cluster.api.crd.compute_node import compute_node
from strata.cluster.api.kinds import COMPUTE_NODE, LEASE, moment, name_of
from strata.cluster.api.watch import Watcher
from strata.evaluation.bench.api_traffic import traffic
from strata.evaluation.bench.real_cluster import LABEL, fingerprint
from tests.cluster.integration.control_plane import ControlPlane
from tests.cluster.integration.definitions import define

WATCHES = 6
IDLE_S = 20.0
SCHEDULES = {
    "status every 30 s": {"status": 2.0},
    "status every 150 s": {"status": 0.4},
    "Lease every 30 s, status every 300 s": {"lease": 2.0, "status": 0.2},
}
"""Calls of each kind a node and minute."""


def cost(api: Api, call: Callable[[int], object], calls: int, idle: Counter[str]) -> dict[str, float]:
    """Return what one call costs the API server, less what it did meanwhile without being asked."""
    before, begun_s = traffic(api), time.monotonic()
    for number in range(calls):
        call(number)
    took_s = time.monotonic() - begun_s
    time.sleep(2.0)  # watches are served a moment later
    spent = traffic(api)
    return {key: (spent[key] - before[key] - idle[key] * (took_s + 2.0) / IDLE_S) / calls for key in spent}


def main() -> None:
    """Measure both, print what a call costs and what that makes a node and minute."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--calls", type=int, default=2000)
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plane = stack.enter_context(ControlPlane(folder / "plane"))
        api = connect(kubeconfig=str(plane.kubeconfig()))
        stack.callback(api.close)
        define(api)
        costs = measured(api, stack, given.nodes, given.calls)
    of_schedules = {
        name: {key: sum(count * costs[what][key] for what, count in calls.items()) for key in costs["status"]}
        for name, calls in SCHEDULES.items()
    }
    print(json.dumps({**vars(given), "of_a_call": costs, "of_a_node_and_minute": of_schedules}, indent=1))


def measured(api: Api, stack: ExitStack, nodes: int, calls: int) -> dict[str, dict[str, float]]:
    """Return what a status and a Lease cost, by turns."""
    statuses = [compute_node(fingerprint(f"{LABEL}-{i:05}"), at=moment(0.0)) for i in range(nodes)]
    names = [name_of(status) for status in statuses]

    def publish(number: int) -> None:
        whole = statuses[number % nodes]
        status = {**whole["status"], "observedAt": moment(time.time(), "milliseconds")}
        api.apply(COMPUTE_NODE, {**whole, "status": status}, subresource="status")

    def renew(number: int) -> None:
        body = {"spec": {"renewTime": moment(time.time(), "microseconds")}}
        api.patch(LEASE, names[number % nodes], "default", body=body)

    for whole, name in zip(statuses, names, strict=True):
        api.apply(COMPUTE_NODE, {key: value for key, value in whole.items() if key != "status"})
        spec = {"holderIdentity": name, "leaseDurationSeconds": 180}
        api.create(LEASE, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    for kind in (COMPUTE_NODE, LEASE):
        for number in range(WATCHES):
            watcher = Watcher(api, kind, lambda news: None, rng=random.Random(number))
            stack.callback(watcher.stop)
            watcher.start()
    for number in range(nodes):
        publish(number)
    before = traffic(api)
    time.sleep(IDLE_S)
    idle = traffic(api) - before
    return {"status": cost(api, publish, calls, idle), "lease": cost(api, renew, calls, idle)}


if __name__ == "__main__":
    main()
