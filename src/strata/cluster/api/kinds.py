"""Kinds of Kubernetes objects that are read or written here, and what is asked of any object.

An object is the mapping the API server sends: nothing of it is copied into classes of our own that it outgrows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

Object = Mapping[str, Any]
"""An API object as JSON."""

GROUP: Final = "ai.compute"
VERSION: Final = "v1alpha1"


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """Where objects of a kind live: `/apis/{group}/{version}/{plural}`, `/api/{version}` for the empty group."""

    group: str
    version: str
    kind: str
    plural: str
    is_namespaced: bool = True
    api_version: str = field(init=False, compare=False)
    """`apiVersion` of an object."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "api_version", f"{self.group}/{self.version}" if self.group else self.version)


NODE: Final = ObjectKind("", "v1", "Node", "nodes", is_namespaced=False)
POD: Final = ObjectKind("", "v1", "Pod", "pods")
EVENT: Final = ObjectKind("events.k8s.io", "v1", "Event", "events")
LEASE: Final = ObjectKind("coordination.k8s.io", "v1", "Lease", "leases")
SECRET: Final = ObjectKind("", "v1", "Secret", "secrets")
CRD: Final = ObjectKind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", is_namespaced=False
)
MUTATING_WEBHOOK: Final = ObjectKind(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
    is_namespaced=False,
)

COMPUTE_NODE: Final = ObjectKind(GROUP, VERSION, "ComputeNode", "computenodes", is_namespaced=False)
RUNTIME_PROFILE: Final = ObjectKind(GROUP, VERSION, "RuntimeProfile", "runtimeprofiles", is_namespaced=False)
COMPUTE_CLAIM: Final = ObjectKind(GROUP, VERSION, "ComputeClaim", "computeclaims")

JOB: Final = ObjectKind("batch", "v1", "Job", "jobs")
JOB_SET: Final = ObjectKind("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
TRAIN_JOB: Final = ObjectKind("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs")
PYTORCH_JOB: Final = ObjectKind("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs")
RAY_JOB: Final = ObjectKind("ray.io", "v1", "RayJob", "rayjobs")
SUSPENDABLE: Final = (JOB, JOB_SET, TRAIN_JOB, PYTORCH_JOB, RAY_JOB)
"""Kinds that are held back by a field `suspend` until they are routed."""

RESOURCE_SLICE: Final = ObjectKind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices", is_namespaced=False)
RESOURCE_CLAIM: Final = ObjectKind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims")

ADMISSION_CHECK: Final = ObjectKind(
    "kueue.x-k8s.io", "v1beta2", "AdmissionCheck", "admissionchecks", is_namespaced=False
)
WORKLOAD: Final = ObjectKind("kueue.x-k8s.io", "v1beta2", "Workload", "workloads")
RESOURCE_FLAVOR: Final = ObjectKind(
    "kueue.x-k8s.io", "v1beta2", "ResourceFlavor", "resourceflavors", is_namespaced=False
)
MULTIKUEUE_CONFIG: Final = ObjectKind(
    "kueue.x-k8s.io", "v1beta2", "MultiKueueConfig", "multikueueconfigs", is_namespaced=False
)
MULTIKUEUE_CLUSTER: Final = ObjectKind(
    "kueue.x-k8s.io", "v1beta2", "MultiKueueCluster", "multikueueclusters", is_namespaced=False
)
KUEUE: Final = (ADMISSION_CHECK, WORKLOAD, RESOURCE_FLAVOR, MUTATING_WEBHOOK)
"""What is followed besides where Kueue lets jobs go; a place is promised only where a webhook sends pods to it."""


def meta(obj: Object) -> Mapping[str, Any]:
    """Return an object's metadata."""
    metadata: Mapping[str, Any] = obj.get("metadata") or {}
    return metadata


def name_of(obj: Object) -> str:
    """Return an object's name; a pod that is being created may only have the beginning of one."""
    return str(meta(obj).get("name") or meta(obj).get("generateName") or "")


def namespace_of(obj: Object) -> str:
    """Return an object's namespace, empty where it has none."""
    return str(meta(obj).get("namespace") or "")


def labels_of(obj: Object) -> Mapping[str, str]:
    """Return an object's labels."""
    return meta(obj).get("labels") or {}


def version_of(obj: Object) -> str:
    """Return the resource version an object was read at: with it, a write over a newer one is refused."""
    return str(meta(obj).get("resourceVersion") or "")


def conditions_of(obj: Object) -> Sequence[Mapping[str, Any]]:
    """Return the conditions in an object's status."""
    return (obj.get("status") or {}).get("conditions") or ()


def is_true(obj: Object, *types: str) -> bool:
    """Return whether an object has a condition of one of these types that is True."""
    return any(each.get("type") in types and each.get("status") == "True" for each in conditions_of(obj))


def moment(at_s: float, timespec: str = "seconds") -> str:
    """Return a time since the epoch as the API server writes it."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def annotations_of(obj: Object) -> Mapping[str, str]:
    """Return an object's annotations."""
    return meta(obj).get("annotations") or {}
