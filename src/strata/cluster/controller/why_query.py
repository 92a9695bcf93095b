"""Why one job or pod is where it is, or waits: as its ComputeClaim says, or decided anew where there is none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strata.cluster.admission.job_defaults import job_defaults
from strata.cluster.api import kinds
from strata.cluster.api.crd.claim_schema import DecidedClaim
from strata.cluster.api.crd.compute_claim import claim_status
from strata.cluster.api.crd.document import ObjectDocument
from strata.cluster.api.jobs import is_managed, read_job
from strata.cluster.api.kinds import Object, ObjectKind, annotations_of, name_of, namespace_of
from strata.cluster.api.placement_annotation import PLACEMENT, WAITING, decode, gang_of
from strata.cluster.api.pod_claims import claim_of_gated, claim_of_pod, job_claim
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.gather import Objects
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.explain import explain
from strata.cluster.scheduling.snapshot import Placement
from strata.errors import UsageError
from strata.names import closest

KINDS: Final = (kinds.POD, *kinds.SUSPENDABLE, kinds.COMPUTE_CLAIM)


@dataclass(frozen=True, slots=True)
class Answer:
    """subject: `Kind/namespace/name` of what was placed as one. status: as of a ComputeClaim.

    is_recorded: somebody decided it then; else it is what would be decided now. placement: None where it has none.
    is_managed: False for what nobody will route, since it has not our label. bound_to: the node of a pod that
    somebody else sent there; then nothing else is said.
    """

    subject: str
    status: Mapping[str, Any]
    is_recorded: bool
    placement: Placement | None
    is_managed: bool = True
    bound_to: str = ""


def answer(cache: ClusterCache, objects: Objects, target: str, *, namespace: str, source: str = "") -> Answer:
    """Return the answer for `NAME` (a pod) or `KIND/NAME`. source: the files the objects are from, for errors.

    Changes `cache`: what is decided now is decided as if the subject had no places yet. Raises UsageError for what
    is not there, BadFile for what asks for nothing, or for what contradicts itself.
    """
    kind, obj = target_object(objects, target, namespace, source=source)
    if kind == kinds.COMPUTE_CLAIM:
        owner: Mapping[str, Any] = next(iter(kinds.meta(obj).get("ownerReferences") or ()), {})
        subject = "/".join((str(owner.get("kind", kind.kind)), namespace, str(owner.get("name", name_of(obj)))))
        recorded: Object | None = obj
    else:
        subject = gang_of(obj) if kind == kinds.POD else f"{kind.kind}/{namespace}/{name_of(obj)}"
        recorded = _claim_object(objects, subject)
    if recorded and recorded.get("status"):
        ObjectDocument(recorded).check(DecidedClaim)
    status = (recorded or {}).get("status") or {}
    if status.get("conditions"):
        text = status.get("placement")
        return Answer(subject, status, True, decode(text, where=f"claim of {subject}") if text else None)
    if kind == kinds.COMPUTE_CLAIM:
        raise UsageError(
            f"{target}: nothing was decided yet", hint=f"strata kube why {subject.partition('/')[0]}/NAME"
        )
    if kind == kinds.POD and PLACEMENT in annotations_of(obj):
        # Its own place was decided before it was made; what others took since says nothing of that.
        placement = decode(annotations_of(obj)[PLACEMENT], where=f"pod {namespace}/{name_of(obj)}")
        return Answer(subject, _placed(placement), True, placement)
    if kind == kinds.POD and (node := (obj.get("spec") or {}).get("nodeName")):
        return Answer(subject, {}, True, None, is_managed(obj), str(node))
    if kind != kinds.POD and (job := read_job(obj)).runs and job.placement is not None:
        # Its claim is gone, and its pods hold what would be decided on.
        return Answer(subject, _placed(job.placement), True, job.placement, job.is_managed)
    claim = _claim(kind, obj, objects)
    cache.changed(kind, obj, is_gone=True)
    decision = explain(evaluate(cache.index, claim, cache.profiles))
    status = claim_status(decision, None, now="", generation=0)
    return Answer(subject, status, False, decision.choice, is_managed(obj))


def target_of(new: Objects, path: str, target: str | None) -> tuple[str, str]:
    """Return which job or pod of a file is meant, as KIND/NAME, and its namespace.

    Where none is named it is the only one; UsageError where the file has more, or none.
    """
    namespaces = {
        f"{kind.kind.lower()}/{name_of(obj)}": namespace_of(obj) for kind in KINDS[:-1] for obj in new[kind]
    }
    if target is not None or len(namespaces) == 1:
        target = target or next(iter(namespaces))
        return target, namespaces.get(target.lower(), "")
    if not namespaces:
        known = ", ".join(kind.kind for kind in KINDS[:-1])
        raise UsageError(f"{path} creates no job and no pod", hint=f"one of {known}")
    first = next(iter(namespaces))
    raise UsageError(f"{path} creates {len(namespaces)} jobs and pods", hint=f"strata kube why -f {path} {first}")


def as_created(new: Objects) -> Objects:
    """Return the objects of a file as our webhook would have them created. Raises BadFile for what it refuses."""
    return {
        kind: [job_defaults(obj) if kind in kinds.SUSPENDABLE and is_managed(obj) else obj for obj in some]
        for kind, some in new.items()
    }


def _claim(kind: ObjectKind, obj: Object, objects: Objects) -> Claim:
    if kind != kinds.POD:
        return job_claim(read_job(obj), _claims(objects))
    return claim_of_gated(obj) if WAITING in annotations_of(obj) else claim_of_pod(obj)


def _placed(placement: Placement) -> Mapping[str, Any]:
    return {
        "profile": placement.profile,
        "model": placement.model,
        "devices": placement.devices_per_pod * len(placement.pods),
    }


def _claim_object(objects: Objects, subject: str) -> Object | None:
    """Return the ComputeClaim of a job; its name is made of the job's kind and name."""
    kind, namespace, name = (*subject.split("/", 2), "", "")[:3]
    return _claims(objects).get(f"{namespace}/{kind}-{name}".lower())


def _claims(objects: Objects) -> dict[str, Object]:
    return {f"{namespace_of(claim)}/{name_of(claim)}": claim for claim in objects[kinds.COMPUTE_CLAIM]}


def target_object(objects: Objects, target: str, namespace: str, *, source: str = "") -> tuple[ObjectKind, Object]:
    """Return the object that `NAME` (a pod) or `KIND/NAME` is. Raises UsageError where there is none."""
    word, slash, name = target.partition("/")
    if not slash:
        word, name = "pod", target
    kind = next((kind for kind in KINDS if word.lower() in (kind.kind.lower(), kind.plural)), None)
    if kind is None:
        known = ", ".join(kind.kind.lower() for kind in KINDS)
        raise UsageError(f"{word!r} is not a kind that strata places", hint=f"one of {known}")
    here = {name_of(obj): obj for obj in objects[kind] if namespace_of(obj) == namespace}
    if name not in here:
        raise UsageError(
            f"{source and f'{source}: '}there is no {kind.kind} {name!r} in namespace {namespace}",
            hint=_elsewhere(objects[kind], name, here),
        )
    return kind, here[name]


def _elsewhere(some: Any, name: str, here: Mapping[str, Object]) -> str | None:
    others = sorted({namespace_of(obj) for obj in some if name_of(obj) == name})
    if others:
        return f"--namespace {others[0]}"
    close = closest(name, here)
    return f"{close}, which is there" if close else None


def grouped(nodes: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[str]]]:
    """Return nodes by reason and message, the reason of most nodes first."""
    by_reason: dict[str, dict[str, list[str]]] = {}
    for node in nodes:
        by_reason.setdefault(node["reason"], {}).setdefault(node["message"], []).append(node["node"])
    order = sorted(by_reason, key=lambda token: (-sum(map(len, by_reason[token].values())), token))
    return {token: by_reason[token] for token in order}
