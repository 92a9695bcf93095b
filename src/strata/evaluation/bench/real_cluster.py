"""Gangs through a real API server: until all pods have nodes, by strata, by kube-scheduler alone, and by nobody.

The cluster is somebody's who runs the parts to be measured: API server, kube-controller-manager, kube-scheduler,
strata's webhook and controller. Its nodes are made here and have no machines: timed is who decides, and what the
API server takes; nothing starts. Pods that are made with a node need no scheduler: no scheduler of the jobs' pods
can be faster.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any, Final, Literal

import numpy as np

from strata.cluster.agent.daemon import PublishInterval
from strata.cluster.api.client import Api
from strata.cluster.api.crd.compute_node import compute_node
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import (
    COMPUTE_NODE,
    JOB,
    NODE,
    POD,
    Object,
    annotations_of,
    meta,
    moment,
    name_of,
)  # fmt: skip
from strata.cluster.api.placement_annotation import MANAGED, PLACEMENT, decode
from strata.cluster.api.watch import Listed, News, Watcher
from strata.errors import StrataError
from strata.evaluation.bench.api_traffic import per_pod, traffic
from strata.fleet.catalogue import accelerator
from strata.fleet.fingerprint import Device, Fingerprint

MODEL: Final = "A100-SXM4-80GB"
RESOURCE: Final = "nvidia.com/gpu"
DEVICES: Final = 8
GANGS: Final = (8, 16, 32, 64, 128, 256, 512)
"""Pods of a gang, of a device each, as many of each size that fit."""
LABEL: Final = "strata-bench"
LIMIT_S: Final = 1800.0
WRITERS: Final = 8
"""Nodes made or taken away at a time."""
_LOOK_S: Final = 0.2

PlacedBy = Literal["strata", "kube-scheduler", "nobody"]


@dataclass
class Bound:
    """When each pod of the load was first seen with a node, by the watch; the pods themselves."""

    at_s: dict[str, float] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)

    def hear(self, news: News) -> None:
        """Take what the watch tells."""
        now_s = time.monotonic()
        for pod in news.objects if isinstance(news, Listed) else [news.obj]:
            if not isinstance(news, Listed) and news.type == "DELETED":
                self.pods.pop(name_of(pod), None)
            elif (pod.get("spec") or {}).get("nodeName"):
                self.at_s.setdefault(name_of(pod), now_s)
                self.pods[name_of(pod)] = pod


def measure_real(api: Api, *, nodes: int, pods: int, seed: int, namespace: str = "default") -> dict[str, Any]:
    """Return how fast the same gangs got nodes by strata, by kube-scheduler alone and by nobody, one by one.

    Makes `nodes` nodes of eight devices, and takes them away. Raises StrataError where the gangs do not fit them,
    or are not placed within half an hour; ApiFailed.
    """
    sizes = list(gangs_of(pods, random.Random(seed)))
    if sum(sizes) > nodes * DEVICES:
        raise StrataError(f"{pods} pods of a device do not fit {nodes} nodes of {DEVICES}", hint="--nodes, --pods")
    prints = [fingerprint(f"{LABEL}-{i:05}") for i in range(nodes)]
    try:
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(partial(_add, api), prints))
        with _beating(api, prints):
            run = partial(_placed, api, prints, sizes, namespace)
            ours, alone, unscheduled = run("strata"), run("kube-scheduler"), run("nobody")
    finally:
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(partial(_remove, api), prints))
    peers = {"kube-scheduler": alone, "nobody": unscheduled}
    return {"nodes": nodes, "pods": sum(sizes), "gangs": len(sizes), **ours, "peers": peers}


def gangs_of(pods: int, rng: random.Random) -> Iterator[int]:
    """Yield the sizes of gangs that come to so many pods, the last one what is left."""
    left = pods
    while left > 0:
        size = min(left, rng.choice([size for size in GANGS if size <= max(GANGS[0], left // 4)]))
        left -= size
        yield size


def fingerprint(name: str) -> Fingerprint:
    """Return what an agent finds on a node."""
    card = accelerator(MODEL)
    devices = tuple(Device(i, f"{name}-{i}", MODEL, card.vendor, card.memory_bytes, card) for i in range(DEVICES))
    pairs = {(i, j): "nvlink" for i in range(DEVICES) for j in range(i + 1, DEVICES)}
    return Fingerprint(name, devices, pairs)


def _add(api: Api, node: Fingerprint) -> None:
    labels = {"kubernetes.io/hostname": node.node, LABEL: "true"}
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", RESOURCE: str(DEVICES)}
    ready = {"type": "Ready", "status": "True", "reason": "Bench"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    made = api.create(NODE, {"metadata": {"name": node.node, "labels": labels}, "status": status})
    obj = compute_node(node, at=moment(time.time()))
    # As the controller would have it: it would write to each while the gangs wait.
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.node, "uid": meta(made)["uid"]}
    obj = {**obj, "metadata": {**meta(obj), "ownerReferences": [owner]}}
    api.apply(COMPUTE_NODE, {key: value for key, value in obj.items() if key != "status"})
    api.apply(COMPUTE_NODE, obj, subresource="status")


def _remove(api: Api, node: Fingerprint) -> None:
    api.delete(COMPUTE_NODE, node.node)
    api.delete(NODE, node.node)


@contextmanager
def _beating(api: Api, prints: Sequence[Fingerprint]) -> Iterator[None]:
    """Have every node publish as its agent would while nothing happens there, one after the other."""
    stopped = threading.Event()
    whole = [compute_node(node, at=moment(time.time())) for node in prints]

    def beat() -> None:
        begun_s = time.monotonic()
        for number, obj in enumerate(cycle(whole)):
            due_s = begun_s + number * PublishInterval().heartbeat_s / len(whole)
            if stopped.wait(max(0.0, due_s - time.monotonic())):
                return
            status = {**obj["status"], "observedAt": moment(time.time(), "milliseconds")}
            with suppress(ApiFailed):  # a busy one is told at the next turn
                api.apply(COMPUTE_NODE, {**obj, "status": status}, subresource="status")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _placed(
    api: Api, prints: list[Fingerprint], sizes: list[int], namespace: str, placed_by: PlacedBy
) -> dict[str, Any]:
    """Submit the gangs at once, wait until every pod has a node, and take them away."""
    bound = Bound()
    watcher = Watcher(api, POD, bound.hear, rng=random.Random(0), labels=LABEL).start()
    made_s: dict[str, float] = {}
    before = traffic(api)
    begun_s = time.monotonic()
    try:
        for number, size in enumerate(sizes):
            job = _job(f"{LABEL}-{number}", size, placed_by, node=prints[number % len(prints)].node)
            made_s[job["metadata"]["name"]] = time.monotonic()
            api.create(JOB, {**job, "metadata": {**job["metadata"], "namespace": namespace}})
        while len(bound.at_s) < sum(sizes):
            if time.monotonic() - begun_s > LIMIT_S:
                raise StrataError(f"{len(bound.at_s)} of {sum(sizes)} pods have nodes after {LIMIT_S:.0f} s")
            time.sleep(_LOOK_S)
        pods, counted = list(bound.pods.values()), per_pod(before, traffic(api), sum(sizes))
    finally:
        for name in made_s:
            api.delete(JOB, name, namespace)
        while api.list(POD, namespace=namespace, labels=LABEL)[0]:
            time.sleep(_LOOK_S)
        watcher.stop()
    figures = _figures(pods, bound.at_s, made_s, begun_s) | counted
    if placed_by == "nobody":
        return figures  # a gang's pods all name one node: nobody counts its devices
    return figures | {"double_booked": double_booked(pods, is_managed=placed_by == "strata")}


def _job(name: str, size: int, placed_by: PlacedBy, *, node: str) -> dict[str, Any]:
    limits = {"limits": {RESOURCE: "1"}}
    container = {"name": "main", "image": "none:1", "command": ["none"], "resources": limits}
    labels = {LABEL: "true", **({MANAGED: "true"} if placed_by == "strata" else {})}
    template = {
        "metadata": {"labels": {LABEL: "true"}},
        "spec": {
            "containers": [container],
            "restartPolicy": "Never",
            "nodeSelector": {LABEL: "true"},
            **({"nodeName": node} if placed_by == "nobody" else {}),
            "terminationGracePeriodSeconds": 0,
        },
    }
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "template": template}
    return {
        "apiVersion": JOB.api_version,
        "kind": JOB.kind,
        "metadata": {"name": name, "labels": labels, "annotations": {}},
        "spec": spec,
    }


def _figures(
    pods: list[Object], at_s: Mapping[str, float], made_s: Mapping[str, float], begun_s: float
) -> dict[str, Any]:
    took = [at_s[name_of(pod)] - made_s[str(meta(pod)["labels"]["batch.kubernetes.io/job-name"])] for pod in pods]
    whole: dict[str, float] = {}
    for pod in pods:
        job = str(meta(pod)["labels"]["batch.kubernetes.io/job-name"])
        whole[job] = max(whole.get(job, 0.0), at_s[name_of(pod)])
    last_s = max(at_s.values()) - begun_s
    p50, p99 = np.quantile(took, (0.5, 0.99))
    return {
        "placed_per_s": len(pods) / last_s,
        "gangs_per_s": len(whole) / last_s,
        "p50_s": float(p50),
        "p99_s": float(p99),
        "longest_s": float(max(took)),
        "trust": "measured",
    }


def double_booked(pods: list[Object], *, is_managed: bool) -> int:
    """Return how many devices two pods were sent to, and of nodes how many pods have more devices than it has."""
    on_node = Counter(str(pod["spec"]["nodeName"]) for pod in pods)
    over = sum(max(0, count - DEVICES) for count in on_node.values())
    if not is_managed:
        return over
    places = [decode(annotations_of(pod)[PLACEMENT], where=name_of(pod)).pods[0] for pod in pods]
    taken = Counter((place.node, device) for place in places for device in place.devices)
    return over + sum(count - 1 for count in taken.values())
