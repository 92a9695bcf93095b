"""Pods and jobs of the form Kubernetes gives them, as far as it is read: admission comes before validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from strata.cluster.api.kinds import Object
from strata.cluster.api.pod_requests import is_quantity
from strata.errors import BadFile, Fault

_TEXTS: Final = {"*": str}
_AMOUNTS: Final = {"*": float}
"""Quantities of resources, whichever way they are written."""
_TERM: Final[Mapping[str, Any]] = {"matchExpressions": [{}], "matchFields": [{}]}
_CONTAINER: Final = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [{"name": str}],
    "volumeMounts": [{"name": str, "mountPath": str}],
    "resources": {"requests": _AMOUNTS, "limits": _AMOUNTS},
    "ports": [{}],
}
_STATUS: Final = {"name": str, "resources": {"requests": {}}, "allocatedResources": {}}
_POD: Final[Mapping[str, Any]] = {
    "metadata": {"name": str, "generateName": str, "namespace": str, "labels": _TEXTS, "annotations": _TEXTS},
    "spec": {
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "volumes": [{"name": str}],
        "tolerations": [{}],
        "nodeSelector": _TEXTS,
        "resources": _CONTAINER["resources"],
        "overhead": _AMOUNTS,
        "schedulingGates": [{"name": str}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]}}
        },
    },
}
_PODS: Final = {"parallelism": int, "completions": int, "template": _POD}
_REPLICAS: Final = {"replicas": int, "template": _POD}
_JOB: Final[Mapping[str, Any]] = {
    "metadata": {**_POD["metadata"], "ownerReferences": [{}]},
    "spec": {
        "runPolicy": {},
        "trainer": {"numNodes": int},
        **_PODS,
        "replicatedJobs": [{"replicas": int, "template": {"spec": _PODS}}],
        "pytorchReplicaSpecs": {"*": _REPLICAS},
        "rayClusterSpec": {"headGroupSpec": {"template": _POD}, "workerGroupSpecs": [_REPLICAS]},
        "podTemplateOverrides": [{**_POD, "targetJobs": [{}]}],
    },
}
"""All kinds at once: what one has, another has not."""
_ANY: Final[Mapping[str, Any]] = {
    "metadata": _JOB["metadata"],
    "spec": {**_POD["spec"], **_JOB["spec"], "taints": [{}]},
    "status": {
        "allocatable": {},
        "conditions": [{}],
        "nodes": [{}],
        "decision": {"reasons": [{}]},
        "containerStatuses": [_STATUS],
        "initContainerStatuses": [_STATUS],
    },
}
"""What is read of nodes and claims as well."""

# A mapping has some keys of a form, or (`*`) all of one; a list has items of one. Only names have to be there.


def where_of(pod: Object) -> str:
    """Return how a pod is called in messages."""
    meta = pod.get("metadata") or {}
    name = meta.get("name") or meta.get("generateName") or "-"
    return f"pod {str(meta.get('namespace') or 'default')[:63]}/{str(name)[:253]}"


def check_pod(pod: Object) -> None:
    """Raise BadFile for a pod that has something else where Kubernetes has text, a list or a mapping."""
    _check("pod", pod, _POD)


def check_job(job: Object) -> None:
    """Raise BadFile for a job of any kind that is odd in the same way."""
    _check("job", job, _JOB)


def faults_of(obj: Object, path: str, *, under: str = "") -> list[Fault]:
    """Return what of an object of any kind is odd in the same way. under: its place in the file at `path`."""
    return [Fault(path, message, where=field) for field, message in _odd(under, obj, _ANY)]


def _check(what: str, obj: Object, form: Any) -> None:
    if faults := [Fault(what, message, where=path) for path, message in _odd("", obj, form)]:
        raise BadFile(faults)


def _odd(path: str, value: Any, form: Any) -> Iterator[tuple[str, str]]:
    if form is str:
        if not isinstance(value, str):
            yield path, "should be text"
    elif form is int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            yield path, f"{str(value)[:40]!a} is not a number of pods"
    elif form is float:
        if not is_quantity(value):
            yield path, f"{str(value)[:40]!a} is not an amount of a resource: 500m, 8, 16Gi"
    elif isinstance(form, list):
        if not isinstance(value, list):
            yield path, "should be a list"
            return
        for number, item in enumerate(value):
            yield from _odd(f"{path}[{number}]", item, form[0])
            if (
                isinstance(form[0], Mapping)
                and "name" in form[0]
                and isinstance(item, Mapping)
                and not item.get("name")
            ):
                yield f"{path}[{number}].name", "is missing"
    elif not isinstance(value, Mapping):
        yield path, "should be a mapping"
    else:
        every = form.get("*")
        for key, below in value.items():
            wanted = every or form.get(key)
            if wanted is not None and (below is not None or every):
                shown = ascii(key)[1:-1] if isinstance(key, str) else "?"
                yield from _odd(f"{path}.{shown}".lstrip("."), below, wanted)
