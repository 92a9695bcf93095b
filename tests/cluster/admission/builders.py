"""Pods, jobs and reviews as the API server sends them, in one line each."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

from strata.cluster.api.placement_annotation import MANAGED, PLACEMENT, encode
from strata.cluster.api.profile_schema import load_profile
from strata.cluster.scheduling.profile import Mount, RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement, PodPlace

GIB = 2**30
A100 = "A100-SXM4-80GB"
B3 = "Ascend910B3"
ASCEND = load_profile("pytorch-ascend-a2")
NVIDIA = load_profile("pytorch-nvidia")
VLLM = load_profile("vllm-ascend-a2")
OWN = RuntimeProfile(
    "own",
    "NVIDIA",
    (A100,),
    "pytorch",
    "own:1",
    "nvidia.com/gpu",
    env={"A": "1", "LD_LIBRARY_PATH": "/x:/y"},
    mounts=(Mount("lib.v1", "/opt/lib", "/opt/lib"),),
    node_selector={"pool": "train"},
    tolerations=({"key": "nvidia.com/gpu", "operator": "Exists"},),
    devices_env="NVIDIA_VISIBLE_DEVICES",
    was_tried=True,
)
PROFILES = {profile.name: profile for profile in (ASCEND, NVIDIA, VLLM, OWN)}


def container(name: str = "main", *, env: Any = None, **more: Any) -> dict[str, Any]:
    """A container; `env` as a mapping, `gpu=2` for NVIDIA's resource."""
    said: dict[str, Any] = {"name": name, "image": "me/train:1"}
    if env is not None:
        said["env"] = [{"name": key, "value": value} for key, value in env.items()]
    if gpu := more.pop("gpu", None):
        said["resources"] = {"limits": {"nvidia.com/gpu": str(gpu)}, "requests": {"nvidia.com/gpu": str(gpu)}}
    return {**said, **more}


def pod(
    *containers: Any, annotations: Any = None, labels: Any = None, name: str = "p", **spec: Any
) -> dict[str, Any]:
    """A managed pod; annotations without their prefix, but for those that have a slash."""
    said = {key if "/" in key else f"ai.compute/{key}": value for key, value in (annotations or {}).items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {MANAGED: "true", **(labels or {})},
            "annotations": said,
        },
        "spec": {"containers": list(containers or [container()]), **spec},
    }


def placed(thing: dict[str, Any], placement: Placement) -> dict[str, Any]:
    """The pod with its gang's placement."""
    after = copy.deepcopy(thing)
    after["metadata"]["annotations"][PLACEMENT] = encode(placement)
    return after


def placement(profile: RuntimeProfile = ASCEND, *places: Any, model: str = B3, **more: Any) -> Placement:
    """A placement of whole devices: `("n1", 0, 1)` is node n1 and its devices 0 and 1."""
    pods = tuple(PodPlace(node, tuple(devices)) for node, *devices in places or [("n1", 0, 1)])
    return Placement(profile.name, pods, len(pods[0].devices), float("inf"), model=model, **more)


def fraction(profile: RuntimeProfile = ASCEND, *places: Any, gib: float = 16, cores: float = 0.3) -> Placement:
    """A placement of fractions: `("n1", 3)` is device 3 of node n1."""
    pods = tuple(PodPlace(node, (device,), gib * GIB) for node, device in places or [("n1", 3)])
    return Placement(profile.name, pods, 1, float("inf"), model=B3, cores_share=cores)


def job(*containers: Any, annotations: Any = None, **spec: Any) -> dict[str, Any]:
    """A managed batch/v1 Job."""
    said = pod(*containers, annotations=annotations, name="train")
    template = {"spec": {**said["spec"], "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": said["metadata"],
        "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed", **spec, "template": template},
    }


def review(obj: Any, **request: Any) -> dict[str, Any]:
    """An AdmissionReview of an object that is created."""
    group, _, version = str(obj["apiVersion"]).rpartition("/")
    asked = {
        "uid": "7f0e",
        "kind": {"group": group, "version": version, "kind": obj["kind"]},
        "operation": "CREATE",
        "namespace": "team",
        "dryRun": False,
        "object": obj,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**asked, **request}}


def patch_of(answer: Any) -> list[dict[str, Any]]:
    """The JSON patch of an answer, empty where there is none."""
    return json.loads(base64.b64decode(answer["response"].get("patch", "W10=")))  # type: ignore[no-any-return]


def apply(patch: list[dict[str, Any]], before: Any) -> Any:
    """What RFC 6902 makes of a document, for add, replace and remove."""
    document = copy.deepcopy(before)
    for one in patch:
        keys = [key.replace("~1", "/").replace("~0", "~") for key in one["path"].split("/")[1:]]
        value = copy.deepcopy(one.get("value"))
        if not keys:
            document = value
            continue
        parent = document
        for key in keys[:-1]:
            parent = parent[int(key)] if isinstance(parent, list) else parent[key]
        last = keys[-1]
        if isinstance(parent, list):
            assert one["op"] != "remove"
            if last == "-":
                assert one["op"] == "add"
                parent.append(value)
            else:
                assert one["op"] == "replace"
                parent[int(last)] = value
        elif one["op"] == "remove":
            del parent[last]
        else:
            assert (last in parent) == (one["op"] == "replace")
            parent[last] = value
    return document
