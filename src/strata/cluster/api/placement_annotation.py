"""A placement as an annotation: what the controller writes into a job's template, and the webhook reads.

`ai.compute/placement` holds one compact JSON object, the same for all pods of a gang. Which of its places is a
pod's own follows from the index the job's controller gives it (`place_of`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.kinds import Object, annotations_of, labels_of, meta, namespace_of
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.errors import BadFile, Fault

PLACEMENT: Final = PREFIX + "placement"
"""Annotation of templates and pods: the gang's placement."""
GANG: Final = PREFIX + "gang"
"""Annotation of templates and pods: `Kind/namespace/name` of what was placed, so that no pod counts twice."""
FIRST: Final = PREFIX + "first-place"
"""Annotation of a template: where its own pods begin among the gang's places; 0 where it is absent."""
MANAGED: Final = PREFIX + "managed"
"""Label of jobs and pods that are ours: "true"; what the webhook selects by."""
CHECKPOINT: Final = PREFIX + "checkpoint"
"""Annotation: the newest complete checkpoint a job should go on from."""
GATE: Final = PREFIX + "room"
"""The scheduling gate of pods that wait for room."""
WAITING: Final = PREFIX + "waiting"
"""Annotation of a pod behind the gate: a placement without nodes, what was injected and cannot change any more."""
VISIBLE: Final = PREFIX + "visible"
"""Annotation of a pod that waited: the numbers of its devices, which its environment refers to."""
INJECTED: Final = PREFIX + "injected"
"""Annotation of a pod: the profile that was injected."""
CONTAINER: Final = PREFIX + "container"
"""Annotation of a pod: the container that gets the devices."""
COUNTED: Final = PREFIX + "counted"
"""Annotation of a pod: the vendor's resource it counted devices by, before its own was injected."""
LIMITS: Final = PREFIX + "limits"
"""Annotation of a pod with a fraction: what its container finds in a file (`slices.LIMITS_FILE`)."""

_GANG: Final = re.compile(r"[A-Za-z]{1,63}/([a-z0-9-]{1,63})/[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")

INDEXES: Final = (
    "batch.kubernetes.io/job-completion-index",
    "training.kubeflow.org/replica-index",
    "ray.io/replica-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
)
"""Labels or annotations that number the pods of one template."""
JOB_INDEX: Final = "jobset.sigs.k8s.io/job-index"
"""Numbers the jobs of one replicated job; each has as many pods as `PER_JOB` says."""
PER_JOB: Final = PREFIX + "pods-per-job"

_ALONE: Final = 1
_RUNS: Final = 2
"""Forms: an entry of `pods` is one pod, or as many on one node as have `devices` each of the devices it lists."""
_NODE: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,98}[A-Za-z0-9+])?")
_MOST_CHARACTERS: Final = 200_000
_LEVELS: Final = ("node", "rdma", "rack", "any")


def encode(placement: Placement) -> str:
    """Return a placement as the annotation's value."""
    entries = list(_entries(placement))
    fields: dict[str, Any] = {
        "v": _ALONE if len(entries) == len(placement.pods) else _RUNS,
        "profile": placement.profile,
        "model": placement.model,
        "devices": placement.devices_per_pod,
        "level": placement.level,
        "p2p": placement.can_p2p,
        "pods": entries,
    }
    if placement.pods and placement.pods[0].memory_bytes is not None:
        fields["memory"] = int(placement.pods[0].memory_bytes)
        fields["cores"] = placement.cores_share or 0.0
    return json.dumps(fields, separators=(",", ":"))


def _entries(placement: Placement) -> Iterator[list[Any]]:
    """Yield entries that stand for all pods, in their order: each pod of a job is created with all of them."""
    is_even = all(0 < len(pod.devices) == placement.devices_per_pod for pod in placement.pods)
    for (node, _, _), run in groupby(
        enumerate(placement.pods), lambda item: (item[1].node, bool(item[1].numbers), is_even or item[0])
    ):
        pods = [pod for _, pod in run]
        numbers = [number for pod in pods for number in pod.numbers]
        yield [node, [device for pod in pods for device in pod.devices], *([numbers] if numbers else [])]


def as_written(placement: Placement) -> Placement:
    """Return a placement as its annotation will show it, so that it can be told when it shows."""
    return decode(encode(placement), where="")


def decode(text: str, *, where: str, key: str = PLACEMENT) -> Placement:
    """Return the placement an annotation holds; that of `WAITING` has no nodes' names.

    Raises BadFile, naming `where`, for what `encode` never writes.
    """
    try:
        return _decode(text, has_nodes=key != WAITING)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        fault = Fault(where, f"is not a valid placement ({type(error).__name__}: {str(error)[:80]})", where=key)
        raise BadFile([fault], hint="leave the annotation to the controller") from None


@lru_cache(64)  # every pod of a gang carries the same
def _decode(text: str, *, has_nodes: bool) -> Placement:
    if len(text) > _MOST_CHARACTERS:
        raise ValueError("too long")
    fields = json.loads(text)
    if fields["v"] not in (_ALONE, _RUNS):
        raise ValueError(f"form {fields['v']!r} is unknown")
    memory, cores = fields.get("memory"), fields.get("cores")
    if memory is not None and not 0 < _whole(memory) < 2**60:
        raise ValueError("memory is not an amount")
    if cores is not None and not 0 <= float(cores) <= 1:
        raise ValueError("cores is not a share")
    pods, each = [], _whole(fields["devices"])
    for node, devices, *rest in fields["pods"]:
        (numbers,) = rest or ((),)
        if not _NODE.fullmatch(node) if has_nodes else node != "":
            raise ValueError("not the name of a node")
        if any(not 0 <= _whole(device) < 1024 for device in (*devices, *numbers)):
            raise ValueError("not the number of a device")
        if rest and len(numbers) != len(devices):
            raise ValueError("not a number for each device")
        many = each if fields["v"] == _RUNS else max(1, len(devices))
        if many < 1 or len(devices) % many:
            raise ValueError("not so many devices for each pod")
        for first in range(0, max(1, len(devices)), many):
            pod = tuple(devices[first : first + many]), None if memory is None else float(memory)
            pods.append(PodPlace(node, *pod, tuple(numbers[first : first + many])))
    if fields["level"] not in _LEVELS or not isinstance(fields["p2p"], bool):
        raise ValueError("level or p2p")
    if not _NAME.fullmatch(fields["profile"]) or not _NAME.fullmatch(fields["model"]):
        raise ValueError("the profile or the model is not a valid name")
    return Placement(
        fields["profile"],
        tuple(pods),
        each,
        math.inf,
        model=fields["model"],
        level=fields["level"],
        can_p2p=fields["p2p"],
        cores_share=None if cores is None else float(cores),
    )


def gang_of(pod: Object) -> str:
    """Return what a pod was placed with, else the pod itself: a gang of another namespace is nobody's to join."""
    namespace = namespace_of(pod)
    match = _GANG.fullmatch(annotations_of(pod).get(GANG, ""))
    return match[0] if match and match[1] == namespace else f"Pod/{namespace}/{meta(pod).get('name') or ''}"


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a whole number")
    return value


def index_of(pod: Object) -> int | None:
    """Return which pod of its gang this is; None where its job's controller numbers none."""
    metadata: Mapping[str, str] = {**labels_of(pod), **annotations_of(pod)}
    numbers = [_number(metadata[key]) for key in INDEXES if key in metadata]
    if not numbers or None in numbers:
        return None
    job, per_job, first = (_number(metadata.get(key, default)) for key, default in _OFFSETS)
    if job is None or per_job is None or first is None:
        return None
    return first + job * per_job + (numbers[0] or 0)


_OFFSETS: Final = ((JOB_INDEX, "0"), (PER_JOB, "0"), (FIRST, "0"))


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text) else None


def place_of(pod: Object, placement: Placement) -> PodPlace | None:
    """Return a pod's own place: by its index, or the only one there is; None where it may be any of several.

    A Job that runs fewer pods at a time than it completes has indexes beyond its places.
    """
    if len(placement.pods) == 1:
        return placement.pods[0]
    number = index_of(pod)
    return placement.pods[number] if number is not None and number < len(placement.pods) else None
