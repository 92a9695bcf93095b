"""What a pod asks: its annotations, and the vendor's devices it counts in its resources.

A vendor's resource counts that vendor's devices: `nvidia.com/gpu: 2` is `ai.compute/devices: "2"` of NVIDIA's
cards. `ai.compute/accelerator` says which card that was, and then others may stand in for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from strata.cluster.api import affinity, jobs
from strata.cluster.api.annotations import PREFIX, has_claim, read_claim
from strata.cluster.api.crd.compute_claim import claim_of
from strata.cluster.api.kinds import Object, annotations_of, meta, name_of, namespace_of
from strata.cluster.api.placement_annotation import (
    COUNTED,
    INJECTED,
    MANAGED,
    PLACEMENT,
    WAITING,
    decode,
)  # fmt: skip
from strata.cluster.api.pod_form import check_pod, where_of
from strata.cluster.api.pod_requests import requests_of_gang
from strata.cluster.scheduling.claim import Claim, Where
from strata.errors import BadFile, Fault
from strata.fleet.acu import Need
from strata.fleet.catalogue import accelerator
from strata.fleet.vendor_resources import is_accelerator, vendor_of

CLAIM: Final = PREFIX + "claim"
"""Annotation: the ComputeClaim that says what is asked for, instead of annotations."""
GANG_SIZE: Final = PREFIX + "gang-size"
"""Annotation: how many pods are placed as one; a job's own pods without it."""

_COUNT: Final = re.compile(r"([a-z0-9./A-Z_-]{1,317})=([0-9]{1,9})")


class Counted(NamedTuple):
    """What a container asks of a vendor's device plugin. where: the container; `spec.` path."""

    where: str
    container: str
    resource: str
    amount: str


def counted(pod: Object) -> Iterator[Counted]:
    """Yield what a pod's containers ask of vendors' device plugins; amounts of none are left out."""
    spec = pod.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or ()):
            resources = container.get("resources") or {}
            amounts: dict[str, Any] = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
            for resource, amount in amounts.items():
                if is_accelerator(resource) and str(amount) != "0":
                    yield Counted(f"spec.{kind}[{number}]", str(container.get("name")), resource, str(amount))


def claim_of_pod(pod: Object) -> Claim:
    """Return what a pod asks for, also after its resources were replaced by what it got instead.

    Raises BadFile for what contradicts itself, with both sides named, and where nothing is asked for.
    """
    check_pod(pod)
    about, where = meta(pod), where_of(pod)
    annotations = about.get("annotations") or {}
    resource, count, faults = devices_counted(pod)
    claim_annotations: dict[str, str] = dict(annotations)
    if resource:
        claim_annotations.setdefault(PREFIX + "devices", str(count))
    elif not faults and not has_claim(annotations):
        faults.append(Fault(where, "asks for nothing: no amount of ours, no vendor's resource", where=MANAGED))
    try:
        name = about.get("name") or about.get("generateName") or "pod"
        claim = read_claim(claim_annotations, name=name, namespace=about.get("namespace") or "default")
    except BadFile as error:
        raise BadFile([*error.faults, *faults], hint=error.hint) from None
    if resource:
        faults += _contradictions(claim, resource, count, where=where)
        claim = claim if claim.accelerator else replace(claim, vendor=vendor_of(resource))
    if faults:
        raise BadFile(faults, hint=f'{PREFIX}vram: 16Gi, or {PREFIX}devices: "2"')
    return _as_pod(claim, pod)


def _as_pod(claim: Claim, pod: Object) -> Claim:
    """Return a claim with what a pod's own spec says: where it may go, and what it requests of its node."""
    return replace(claim, where=allowed(pod), requests=requests_of_gang((pod,)))


def allowed(pod: Object) -> Where:
    """Return where a pod's own spec lets it go, without what a placement before narrowed it to."""
    before: tuple[str, ...] = ()
    if text := annotations_of(pod).get(PLACEMENT):
        with suppress(BadFile):  # somebody's own writing: then nothing was narrowed by us
            before = decode(text, where=where_of(pod)).nodes
    return affinity.where_of(pod.get("spec") or {}, placed_on=before)


def claim_of_gated(pod: Object) -> Claim:
    """Return what a pod behind the gate can still be given: the profile, card and devices it was injected for.

    Raises BadFile.
    """
    text = annotations_of(pod).get(WAITING, "")
    waiting = decode(text, where=where_of(pod), key=WAITING)
    memory_bytes = waiting.pods[0].memory_bytes if waiting.pods else None
    names_claim = CLAIM in annotations_of(pod)
    return replace(
        _as_pod(Claim(name_of(pod), namespace_of(pod) or "default"), pod) if names_claim else claim_of_pod(pod),
        profile=waiting.profile,
        framework="",
        accelerator=waiting.model,
        vendor="",
        substitution="never",
        need=Need({}),
        devices=waiting.devices_per_pod,
        is_fractional=memory_bytes is not None,
        memory_bytes=memory_bytes or 0.0,
        cores_share=None if memory_bytes is None else waiting.cores_share,
    )


def devices_counted(pod: Object) -> tuple[str, int, list[Fault]]:
    """Return the vendor's resource a pod counts devices by, how many, and what is wrong; no name where none."""
    annotations = annotations_of(pod)
    if INJECTED in annotations:
        match = _COUNT.fullmatch(annotations.get(COUNTED, ""))
        return (match[1], int(match[2]), []) if match and vendor_of(match[1]) else ("", 0, [])
    requests = list(counted(pod))
    faults: list[Fault] = []
    for request in requests:
        if request.where.startswith("spec.init"):
            message = f"{request.resource}: init containers get no devices"
        elif not vendor_of(request.resource):
            message = (
                f"{request.resource} does not count whole devices; ask by {PREFIX}vram and {PREFIX}cores instead"
            )
        elif not re.fullmatch(r"[0-9]{1,9}", request.amount):
            message = f"{request.resource}: {request.amount[:40]!a} is not a number of devices"
        elif request[1:3] != requests[0][1:3]:
            message = (
                f"{request.resource} in {request.container}, "
                f"beside {requests[0].resource} in {requests[0].container}: "
                "a pod's devices are of one vendor and for one container"
            )
        else:
            continue
        faults.append(Fault(where_of(pod), message, where=f"{request.where}.resources"))
    return ("", 0, faults) if faults or not requests else (requests[0].resource, int(requests[0].amount), faults)


def _contradictions(claim: Claim, resource: str, count: int, *, where: str) -> Iterator[Fault]:
    if claim.devices != count:
        message = f"{claim.devices} contradicts {resource}: {count}; give one of them"
        yield Fault(where, message, where=PREFIX + "devices")
    if claim.accelerator and accelerator(claim.accelerator).vendor != vendor_of(resource):
        message = f"{claim.accelerator} contradicts {resource}: {count}, which {vendor_of(resource)} makes"
        yield Fault(where, message, where=PREFIX + "accelerator")


def job_claim(job: jobs.Job, claims: Mapping[str, Object]) -> Claim:
    """Return what a job asks for: a ComputeClaim it names, else its annotations and those of its first template.

    claims: ComputeClaims by `namespace/name`. Its pods are those of all its templates, unless it names a gang's
    size; 0 while it runs none. Raises BadFile, also for a gang of more pods than the job has.
    """
    sets = [pod_set for pod_set in job.pod_sets if pod_set.has_devices and pod_set.pods]
    template: Mapping[str, Any] = sets[0].template if sets else {}
    annotations = {**annotations_of(template), **job.annotations}
    metadata = {"name": job.ref.name, "namespace": job.ref.namespace, "annotations": annotations}
    like = {"metadata": metadata, "spec": template.get("spec") or {}}
    if CLAIM in annotations:
        claim = named_claim(claims, like, job.ref.kind.kind)
        has_size = claim.pods > 1
    else:
        try:
            claim = claim_of_pod(like)
        except BadFile as error:
            faults = [_of_job(fault, job, sets[0].path if sets else ()) for fault in error.faults]
            raise BadFile(faults, hint=error.hint) from None
        has_size = GANG_SIZE in annotations
    claim, pods = replace(claim, requests=job.requests), sum(pod_set.pods for pod_set in sets)
    if not any(pod_set.pods for pod_set in job.pod_sets):
        return replace(claim, pods=0)
    if not has_size:
        return replace(claim, pods=max(1, pods))
    if 0 < pods < claim.pods:
        where = f"{job.ref.kind.kind} {job.ref.namespace}/{job.ref.name}"
        message = f"{claim.pods} pods are to be placed together, and the job has {pods} with devices"
        fault = Fault(where, message, where=CLAIM if CLAIM in annotations else GANG_SIZE)
        raise BadFile([fault], hint=f"a gang of at most {pods}, or more pods")
    return claim


def _of_job(fault: Fault, job: jobs.Job, template: jobs.Path) -> Fault:
    """Return a fault of a template, which was read as a pod, as one of its job."""
    where = fault.where
    if where.startswith("spec."):
        path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in template)
        where = f"{path}.{where}".lstrip(".")
    return replace(fault, path=f"{job.ref.kind.kind} {job.ref.namespace}/{job.ref.name}", where=where)


def named_claim(claims: Mapping[str, Object], obj: Object, kind: str) -> Claim:
    """Return the claim that a pod, or a job as one, names, as its own. Raises BadFile."""
    name, namespace = annotations_of(obj)[CLAIM], namespace_of(obj)
    if f"{namespace}/{name}" not in claims:
        where = f"{kind} {namespace}/{name_of(obj)}"
        fault = Fault(where, f"there is no ComputeClaim {name[:80]!a} in namespace {namespace}", where=CLAIM)
        raise BadFile([fault], hint="kubectl get computeclaims")
    claim = claim_of(claims[f"{namespace}/{name}"])
    return _as_pod(replace(claim, name=name_of(obj), namespace=namespace), obj)
