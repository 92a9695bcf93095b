"""Made-up clusters, traces and nodes, for benchmarks: figures on them say nothing about a real site."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.host import PodRequests
from strata.cluster.scheduling.snapshot import Cluster, NodeState
from strata.decision import Trust
from strata.evaluation.placement.quality import Gang
from strata.fleet.catalogue import accelerator
from strata.fleet.fingerprint import Device, Fingerprint
from strata.fleet.vendor_resources import usual_resource

DEVICES: Final = 8
NODES_PER_RDMA_GROUP: Final = 16
NODES_PER_RACK: Final = 4
_BUILDS: Final = (
    ("A100-SXM4-80GB", "nvlink", "nvlink"),
    ("A100-PCIe-80GB", "pix", "sys"),
    ("Ascend910B3", "hccs", "hccs"),
)
"""A model, and its links within half a node and between the halves."""
_SIZES: Final = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 4), (2, 4), (4, 4), (8, 2), (8, 4))
"""Devices a pod and pods, drawn alike."""
_FRACTION_BYTES: Final = 16 * 2**30
HOST: Final = {"cpu": 128_000, "memory": 1056 * 2**30, "ephemeral-storage": 2**40, "pods": 110}
"""What pods may request of a node, as kube-scheduler counts."""
POD_REQUESTS: Final = PodRequests({"cpu": 4000, "memory": 16 * 2**30, "pods": 1})


def synthetic_cluster(nodes: int, rng: np.random.Generator, *, busy: float = 0.0) -> Cluster:
    """Return nodes of eight devices, of three models; on half of them a share `busy` of the devices is taken."""
    return Cluster(tuple(_node(number, rng, busy) for number in range(nodes)))


def _node(number: int, rng: np.random.Generator, busy: float) -> NodeState:
    model, near, far = _BUILDS[number // NODES_PER_RDMA_GROUP % len(_BUILDS)]
    card, half = accelerator(model), DEVICES // 2
    name = f"node-{number:05d}"
    devices = tuple(
        Device(i, f"{name}-{i}", model, card.vendor, card.memory_bytes, card, numa_node=i // half)
        for i in range(DEVICES)
    )
    links = {
        (i, j): near if i // half == j // half else far for i in range(DEVICES) for j in range(i + 1, DEVICES)
    }
    is_free = np.ones(DEVICES, dtype=bool) if rng.random() < 0.5 else rng.random(DEVICES) >= busy
    group = number // NODES_PER_RDMA_GROUP
    return NodeState(
        Fingerprint(name, devices, links, trust=Trust.ASSUMED),
        tuple(card.memory_bytes if free else 0.0 for free in is_free),
        tuple(1.0 if free else 0.0 for free in is_free),
        rdma_group=f"rdma-{group}",
        rack=f"rack-{group // NODES_PER_RACK}",
        allocatable={**HOST, usual_resource(card.vendor) or "": DEVICES},
        requested=PodRequests(
            {**POD_REQUESTS.amounts, usual_resource(card.vendor) or "": DEVICES - int(is_free.sum())}
        ),
    )


def synthetic_trace(
    gangs: int, rng: np.random.Generator, *, rate_per_s: float, mean_s: float = 600.0
) -> list[Gang]:
    """Return gangs of one to 32 devices, one in six a fraction: Poisson arrivals, exponential durations."""
    trace, now = [], 0.0
    for number in range(gangs):
        now += float(rng.exponential(1 / rate_per_s))
        devices, pods = _SIZES[int(rng.integers(len(_SIZES)))]
        claim = Claim(f"job-{number}", devices=devices, pods=pods, requests=POD_REQUESTS)
        if rng.random() < 1 / 6:
            claim = replace(
                claim, devices=None, pods=1, is_fractional=True, memory_bytes=_FRACTION_BYTES, cores_share=0.2
            )
        trace.append(Gang(now, float(rng.exponential(mean_s)), claim))
    return trace


def synthetic_node_object(name: str) -> dict[str, Any]:
    """Return a Node as the API server shows it, of about 9.5 KB: half of it are the images it holds."""
    labels = {f"label-{number}.example.com/of-the-node": f"value-{number}" for number in range(40)}
    capacity = {"cpu": "128", "memory": "1056Gi", "pods": "110", "nvidia.com/gpu": str(DEVICES)}
    conditions = [
        {
            "type": kind,
            "status": "False",
            "reason": f"Kubelet{kind}",
            "message": f"kubelet says of {kind}: all well",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [
        {"names": [f"registry.example.com/team/image-{n}@sha256:{n:064x}"], "sizeBytes": 10**9} for n in range(47)
    ]
    status = {"capacity": capacity, "allocatable": capacity, "conditions": conditions, "images": images}
    return {
        "metadata": {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}},
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"cloud://{name}"},
        "status": {**status, "nodeInfo": {"machineID": "0" * 32, "kubeletVersion": "v1.36.0"}},
    }
