"""Jobs that can be held back: where each kind says `suspend`, where its pods' templates are, how many pods.

Read and changed as plain objects; a change is a body for a JSON merge patch. Lists cannot be merged, so a kind
that keeps its templates in a list gets the whole list: send it with the resource version it was made from.

References
----------
Job: KEP-2926 (mutable scheduling directives). JobSet: jobset.x-k8s.io/v1alpha2. TrainJob:
trainer.kubeflow.org/v1alpha1 `podTemplateOverrides`. PyTorchJob: kubeflow.org/v1 `runPolicy`. RayJob: ray.io/v1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from strata.cluster.api import kinds
from strata.cluster.api.actions import Ref, ref_of
from strata.cluster.api.kinds import Object, ObjectKind, annotations_of, labels_of, meta, version_of
from strata.cluster.api.placement_annotation import MANAGED, PLACEMENT, decode
from strata.cluster.api.pod_requests import requests_of_gang
from strata.cluster.scheduling.host import NOTHING, PodRequests
from strata.cluster.scheduling.snapshot import Placement
from strata.errors import BadFile

Path = tuple[str | int, ...]

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
"""Label of jobs that Kueue lets go."""


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one template. `path` leads to the template in the job; an empty one is where the job has none yet.

    first: the place of its first pod in the gang. per_job: pods of each of its jobs, where it makes several.
    has_devices: False for pods that only steer (a Ray head): they get the runtime, but no device and no place.
    """

    name: str
    pods: int
    path: Path
    template: Object
    first: int = 0
    per_job: int = 0
    has_devices: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the controller needs it, read once: when the API server tells of it.

    gang: its key in the cache. version: of `obj`. since: when it was made. is_queued: Kueue starts it, not we.
    placement: as its templates have it; None where they have none, or `fault` says why it cannot be read.
    reset: the status patch it needs first (`start_reset`). is_quiet: as far as its status says, no pod of it runs.
    requests: what suffices for any of its pods that have devices, besides those.
    """

    gang: str
    ref: Ref
    obj: Object
    version: str
    since: str
    annotations: Mapping[str, str]
    pod_sets: tuple[PodSet, ...]
    is_managed: bool
    is_queued: bool
    is_suspended: bool
    is_finished: bool
    placement: Placement | None
    fault: str
    reset: Mapping[str, Any] | None
    is_quiet: bool
    requests: PodRequests = NOTHING

    @property
    def is_ours(self) -> bool:
        """Whether it is for us to start."""
        return self.is_managed and not self.is_queued

    @property
    def runs(self) -> bool:
        """Whether it holds the places of pods that are not there yet; one that is scaled to no pods needs none."""
        has_pods = any(pod_set.pods for pod_set in self.pod_sets if pod_set.has_devices)
        return has_pods and not self.is_suspended and not self.is_finished


def read_job(obj: Object) -> Job:
    """Return what a job of a kind with `suspend` says."""
    ref, placement, fault = ref_of(obj, _kind(obj)), None, ""
    sets = pod_sets(obj)
    try:
        placement = job_placement(obj)
    except BadFile as error:
        fault = str(error)
    return Job(
        str(ref),
        ref,
        obj,
        version_of(obj),
        str(meta(obj).get("creationTimestamp") or ""),
        annotations_of(obj),
        sets,
        is_managed(obj),
        is_queued(obj),
        is_suspended(obj),
        is_finished(obj),
        placement,
        fault,
        start_reset(obj),
        # Pods that are being deleted do not count: on a node that is dead they stay for ever. What they hold is
        # still held, by the cache.
        not (obj.get("status") or {}).get("active"),
        requests_of_gang(pod_set.template for pod_set in sets if pod_set.has_devices),
    )


def job_placement(obj: Object) -> Placement | None:
    """Return the placement a job's templates carry. Raises BadFile."""
    for pod_set in pod_sets(obj):
        if text := annotations_of(pod_set.template).get(PLACEMENT):
            return decode(text, where=f"{obj.get('kind')} {kinds.namespace_of(obj)}/{kinds.name_of(obj)}")
    return None


def kind_of(obj: Object) -> ObjectKind | None:
    """Return which of the kinds with `suspend` an object is, None for any other; versions of a group are alike."""
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return next((kind for kind in kinds.SUSPENDABLE if (kind.group, kind.kind) == (group, obj.get("kind"))), None)


def is_managed(obj: Object) -> bool:
    """Return whether an object is ours to place."""
    return labels_of(obj).get(MANAGED) == "true"


def is_queued(job: Object) -> bool:
    """Return whether Kueue lets a job go: then `admission_checks.py` answers, and `suspend` is not ours."""
    return bool(labels_of(job).get(QUEUE_NAME))


def is_suspended(obj: Object) -> bool:
    """Return whether a job is held back."""
    return at(obj, _suspend_path(_kind(obj))) is True


def suspension(obj: Object, *, wanted: bool) -> dict[str, Any]:
    """Return the patch that holds a job back, or lets it go."""
    return _nested(_suspend_path(_kind(obj)), wanted)


def is_finished(obj: Object) -> bool:
    """Return whether a job is over, well or not: it holds nothing any more."""
    status = obj.get("status") or {}
    if meta(obj).get("deletionTimestamp"):
        return True
    if str(status.get("jobStatus", "")) in ("SUCCEEDED", "FAILED", "STOPPED"):
        return True
    return kinds.is_true(obj, "Complete", "Completed", "Succeeded", "Failed")


def start_reset(obj: Object) -> dict[str, Any] | None:
    """Return the status patch after which a suspended Job's template may change, None where it may already.

    The API server takes a Job that has a start time for one that runs; the Job controller leaves the time there
    when it suspends.
    """
    if _kind(obj) is kinds.JOB and (obj.get("status") or {}).get("startTime"):
        return {"status": {"startTime": None}}
    return None


def pod_sets(obj: Object) -> tuple[PodSet, ...]:
    """Return a job's templates in order, with the places of their pods. An absent count is one."""
    sets, first = [], 0
    for name, pods, path, per_job, has_devices in _SETS[_kind(obj)](obj.get("spec") or {}):
        template = at(obj, path) if path else _overrides(obj)[0]
        sets.append(PodSet(name, pods, path, template or {}, first, per_job, has_devices))
        first += pods if has_devices else 0
    return tuple(sets)


def changed(obj: Object, templates: Sequence[Object], *, is_suspended: bool) -> dict[str, Any]:
    """Return a job with these templates, in the order of `pod_sets`, held back or started."""
    after = copy.deepcopy(dict(obj))
    for pod_set, template in zip(pod_sets(obj), templates, strict=True):
        if pod_set.path:
            _put(after, pod_set.path, template)
        else:
            overrides = [*_overrides(obj)[1], {**_TO_TRAINERS, **template}]
            after["spec"] = {**(after.get("spec") or {}), "podTemplateOverrides": overrides}
    _put(after, _suspend_path(_kind(obj)), is_suspended)
    return after


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON merge patch (RFC 7386) that makes one object the other: null for what goes, lists whole."""
    body: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if value != old:
                body[key] = merge_patch(old, value)
        elif key not in before or value != old:
            body[key] = value
    return body


def at(obj: Any, path: Path) -> Any:
    """Return what stands at a path, None where nothing does."""
    for key in path:
        if isinstance(obj, Mapping):
            obj = obj.get(key)
        elif isinstance(obj, list) and isinstance(key, int) and key < len(obj):
            obj = obj[key]
        else:
            return None
    return obj


def _put(obj: Any, path: Path, value: Any) -> None:
    """Set what stands at a path, with mappings above it where nothing stands."""
    for key in path[:-1]:
        if isinstance(obj, dict) and obj.get(key) is None:
            obj[key] = {}
        obj = obj[key]
    obj[path[-1]] = value


class _Set(NamedTuple):
    name: str
    pods: int
    path: Path = ()
    per_job: int = 0
    has_devices: bool = True


def _job(spec: Mapping[str, Any]) -> Iterator[_Set]:
    yield _Set("main", _pods_of(spec), ("spec", "template"))


def _job_set(spec: Mapping[str, Any]) -> Iterator[_Set]:
    for i, replicated in enumerate(spec.get("replicatedJobs") or ()):
        per_job = _pods_of(at(replicated, ("template", "spec")) or {})
        path = ("spec", "replicatedJobs", i, "template", "spec", "template")
        yield _Set(str(replicated.get("name", i)), _count(replicated.get("replicas")) * per_job, path, per_job)


def _train_job(spec: Mapping[str, Any]) -> Iterator[_Set]:
    yield _Set("node", _count(at(spec, ("trainer", "numNodes"))))


def _pytorch_job(spec: Mapping[str, Any]) -> Iterator[_Set]:
    # The master is rank 0, and trains like the others.
    replicas = spec.get("pytorchReplicaSpecs") or {}
    for role in sorted(replicas, key=lambda role: (role != "Master", role)):
        yield _Set(role, _count(replicas[role].get("replicas")), ("spec", "pytorchReplicaSpecs", role, "template"))


def _ray_job(spec: Mapping[str, Any]) -> Iterator[_Set]:
    cluster = spec.get("rayClusterSpec") or {}
    path: Path = ("spec", "rayClusterSpec")
    workers = [
        _Set(
            str(group.get("groupName", i)),
            _count(group.get("replicas")),
            (*path, "workerGroupSpecs", i, "template"),
        )
        for i, group in enumerate(cluster.get("workerGroupSpecs") or ())
    ]
    if cluster.get("headGroupSpec"):
        # A head without workers does their work.
        is_alone = not any(group.pods for group in workers)
        yield _Set("head", 1, (*path, "headGroupSpec", "template"), has_devices=is_alone)
    yield from workers


_TO_TRAINERS: Final = {"targetJobs": [{"name": "node"}]}
"""The job of a TrainJob's runtime that holds its trainers."""

_SETS: Final[Mapping[ObjectKind, Callable[[Mapping[str, Any]], Iterator[_Set]]]] = {
    kinds.JOB: _job,
    kinds.JOB_SET: _job_set,
    kinds.TRAIN_JOB: _train_job,
    kinds.PYTORCH_JOB: _pytorch_job,
    kinds.RAY_JOB: _ray_job,
}


def _kind(obj: Object) -> ObjectKind:
    kind = kind_of(obj)
    assert kind is not None, f"{obj.get('kind')} has no suspend"
    return kind


def _suspend_path(kind: ObjectKind) -> tuple[str, ...]:
    return ("spec", "runPolicy", "suspend") if kind is kinds.PYTORCH_JOB else ("spec", "suspend")


def _pods_of(spec: Mapping[str, Any]) -> int:
    """Return how many pods of a Job run at a time."""
    parallel, completions = _count(spec.get("parallelism")), spec.get("completions")
    return min(parallel, completions) if isinstance(completions, int) else parallel


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 else 1


def _overrides(obj: Object) -> tuple[Object, list[Object]]:
    """Return what is said over a TrainJob's runtime, which holds the templates: of its trainers, and of others."""
    overrides = at(obj, ("spec", "podTemplateOverrides")) or ()
    ours = [override for override in overrides if override.get("targetJobs") == _TO_TRAINERS["targetJobs"]]
    first: Object = next(iter(ours), {})
    others = [override for override in overrides if override not in ours]
    return {key: value for key, value in first.items() if key not in _TO_TRAINERS}, others


def _nested(path: Path, value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict), "a path has a beginning"
    return value
