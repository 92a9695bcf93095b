"""Objects of an API server in one line each: nodes with their devices, jobs and pods that ask for some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from strata.cluster.api.crd.compute_node import compute_node
from strata.cluster.api.kinds import ADMISSION_CHECK, Object
from strata.cluster.api.placement_annotation import MANAGED
from strata.cluster.kueue.flavors import CONTROLLER
from strata.fleet.fingerprint import Probe
from tests.cluster.builders import A100, B3
from tests.cluster.builders import node as node_state

RESOURCE = {A100: "nvidia.com/gpu", B3: "huawei.com/Ascend910"}
HOST = {"cpu": "64", "memory": "512Gi", "pods": "110"}
AT = "2026-11-21T10:00:00Z"
_MADE = iter(range(1, 10**9))


def node(
    name: str,
    model: str = A100,
    count: int = 8,
    *,
    allocatable: int | None = None,
    host: Mapping[str, str] = HOST,
    **spec: Any,
) -> dict[str, Any]:
    """A ready node whose device plugin offers `allocatable` devices, all unless said otherwise."""
    offered = {**host, RESOURCE[model]: str(count if allocatable is None else allocatable)}
    status = {"allocatable": offered, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": spec, "status": status}


def devices(
    name: str,
    model: str = A100,
    count: int = 8,
    *,
    rate: float | None = None,
    rates: Mapping[int, float] | None = None,
    rate_at_s: float = 0.0,
    held: Mapping[str, Sequence[str]] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The ComputeNode of a node with like devices; `rate` of a probe, others for `rates`; `held` by pod."""
    found = node_state(name, model, count, **more).fingerprint
    found = replace(found, held={pod: {RESOURCE[model]: tuple(ids)} for pod, ids in (held or {}).items()})
    if rate is not None:
        each = [replace(one, probe=Probe(rate_at_s, (rates or {}).get(one.index, rate))) for one in found.devices]
        found = replace(found, devices=tuple(each))
    return dict(compute_node(found, at=AT))


def asks(**words: Any) -> dict[str, str]:
    """Annotations: `asks(devices=2, gang_size=4)`."""
    return {f"ai.compute/{word.replace('_', '-')}": str(value) for word, value in words.items()}


def pod_spec(
    resource: str = "", count: int = 0, *, image: str = "user:1", requests: Mapping[str, str] | None = None
) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": image, "command": ["python", "train.py"]}
    if resource:
        container["resources"] = {"limits": {resource: str(count)}}
    if requests:
        container.setdefault("resources", {})["requests"] = dict(requests)
    return {"containers": [container]}


def pod(
    name: str,
    *,
    on: str = "",
    resource: str = "",
    count: int = 0,
    requests: Mapping[str, str] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    spec = pod_spec(resource, count, requests=requests) | ({"nodeName": on} if on else {})
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", **meta}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def webhook() -> dict[str, Any]:
    """The configuration that has pods of ours sent to their places."""
    hook = {"objectSelector": {"matchLabels": {MANAGED: "true"}}, "rules": [{"resources": ["pods"]}]}
    return {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "strata-webhook"}, "webhooks": [hook]}


def allocated(pod: dict[str, Any], *ids: str, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    """The pod as the kubelet says which devices its plugin gave it."""
    entries = [{"resourceID": device_id, "health": "Healthy"} for device_id in ids]
    container = {"name": "main", "allocatedResourcesStatus": [{"name": resource, "resources": entries}]}
    return {**pod, "status": {**pod["status"], "phase": "Running", "containerStatuses": [container]}}


def job(
    name: str, *, pods: int = 1, suspend: bool = True, requests: Mapping[str, str] | None = None, **words: Any
) -> dict[str, Any]:
    """A managed Job of some pods that asks by annotations."""
    number = next(_MADE)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": str(number),
            "creationTimestamp": AT,
            "labels": {MANAGED: "true"},
            "annotations": asks(**words),
        },
        "spec": {
            "suspend": suspend,
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"metadata": {}, "spec": pod_spec(requests=requests) | {"restartPolicy": "Never"}},
        },
    }


def admission_check(name: str = "strata") -> Object:
    """Return the AdmissionCheck that a ClusterQueue names to have its workloads routed."""
    return {
        "apiVersion": ADMISSION_CHECK.api_version,
        "kind": ADMISSION_CHECK.kind,
        "metadata": {"name": name},
        "spec": {"controllerName": CONTROLLER},
    }
