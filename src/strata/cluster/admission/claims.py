"""What a pod asks: its annotations, and the vendor's devices it counts in its resources.

A vendor's resource counts that vendor's devices: `nvidia.com/gpu: 2` is `ai.compute/devices: "2"` of NVIDIA's
cards. `ai.compute/accelerator` says which card that was, and then others may stand in for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from strata.cluster import affinity, jobs
from strata.cluster.admission.form import check_pod, where_of
from strata.cluster.admission.vendors import counted
from strata.cluster.annotations import PREFIX, has_claim, read_claim
from strata.cluster.claim import Claim, Where
from strata.cluster.kinds import Object, annotations_of, labels_of, meta, name_of, namespace_of
from strata.cluster.placed import (
    COUNTED,
    FIRST,
    GANG,
    INJECTED,
    MANAGED,
    PER_JOB,
    PLACEMENT,
    VISIBLE,
    WAITING,
    decode,
    nodes_of,
)  # fmt: skip
from strata.errors import BadFile, Fault
from strata.fleet.acu import Need
from strata.fleet.catalogue import accelerator
from strata.fleet.vendor_resources import vendor_of

CLAIM: Final = PREFIX + "claim"
"""Annotation: the ComputeClaim that says what is asked for, instead of annotations."""
WRITTEN: Final = (PLACEMENT, GANG, FIRST, PER_JOB, INJECTED, COUNTED, WAITING, VISIBLE, PREFIX + "offer")
"""Annotations only strata writes: what a new job brings along of them was copied from another."""

_COUNT: Final = re.compile(r"([a-z0-9./A-Z_-]{1,317})=([0-9]{1,9})")


def claim_of_pod(pod: Object) -> Claim:
    """Return what a pod asks for, also after its resources were replaced by what it got instead.

    Raises BadFile for what contradicts itself, with both sides named, and where nothing is asked for.
    """
    check_pod(pod)
    where, annotations = where_of(pod), annotations_of(pod)
    resource, count, faults = devices_counted(pod)
    asked: dict[str, str] = dict(annotations)
    if resource:
        asked.setdefault(PREFIX + "devices", str(count))
    elif not faults and not has_claim(annotations):
        faults.append(Fault(where, "is managed, and asks for nothing", where=MANAGED))
    try:
        name, namespace = name_of(pod) or "pod", namespace_of(pod) or "default"
        claim = read_claim(asked, name=name, namespace=namespace)
    except BadFile as error:
        raise BadFile([*error.faults, *faults], hint=error.hint) from None
    if resource:
        faults += _contradictions(claim, resource, count, where=where)
        claim = claim if claim.accelerator else replace(claim, vendor=vendor_of(resource))
    if faults:
        raise BadFile(faults, hint=f'{PREFIX}vram: 16Gi, or {PREFIX}devices: "2"')
    return replace(claim, where=allowed(pod))


def allowed(pod: Object) -> Where:
    """Return where a pod's own spec lets it go, without what a placement before narrowed it to."""
    before: tuple[str, ...] = ()
    if text := annotations_of(pod).get(PLACEMENT):
        with suppress(BadFile):  # somebody's own writing: then nothing was narrowed by us
            before = nodes_of(decode(text, where=where_of(pod)).pods)
    return affinity.where_of(pod.get("spec") or {}, placed_on=before)


def claim_of_waiting(pod: Object) -> Claim:
    """Return what a pod behind the gate can still be given: the profile, card and devices it was injected for.

    Raises BadFile.
    """
    said = annotations_of(pod).get(WAITING, "")
    waiting = decode(said, where=where_of(pod), key=WAITING)
    memory_bytes = waiting.pods[0].memory_bytes if waiting.pods else None
    names_claim = CLAIM in annotations_of(pod)
    return replace(
        Claim(name_of(pod), namespace_of(pod) or "default") if names_claim else claim_of_pod(pod),
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
    found = list(counted(pod))
    faults: list[Fault] = []
    for one in found:
        if one.where.startswith("spec.init"):
            message = f"{one.resource}: init containers get no devices"
        elif not vendor_of(one.resource):
            message = f"{one.resource} counts no whole devices; say {PREFIX}vram and {PREFIX}cores instead"
        elif not re.fullmatch(r"[0-9]{1,9}", one.amount):
            message = f"{one.resource}: {one.amount[:40]!a} is no number of devices"
        elif one[1:3] != found[0][1:3]:
            message = (
                f"{one.resource} in {one.container}, beside {found[0].resource} in {found[0].container}: "
                "a pod's devices are of one vendor and for one container"
            )
        else:
            continue
        faults.append(Fault(where_of(pod), message, where=f"{one.where}.resources"))
    return ("", 0, faults) if faults or not found else (found[0].resource, int(found[0].amount), faults)


def _contradictions(claim: Claim, resource: str, count: int, *, where: str) -> Iterator[Fault]:
    if claim.devices != count:
        message = f"{claim.devices} contradicts {resource}: {count}; give one of them"
        yield Fault(where, message, where=PREFIX + "devices")
    if claim.accelerator and accelerator(claim.accelerator).vendor != vendor_of(resource):
        message = f"{claim.accelerator} contradicts {resource}: {count}, which {vendor_of(resource)} makes"
        yield Fault(where, message, where=PREFIX + "accelerator")


def job_defaults(job: Object) -> Object:
    """Return a managed job as it should be created: held back, and its pods' templates know what is asked.

    Templates get the label and the job's annotations; pods that only steer are left alone, and so is a job that
    another one of ours makes. What a copied job brings along of an earlier placement goes. Raises BadFile where a
    template asks for something else than its job.
    """
    if any(jobs.kind_of(owner) for owner in meta(job).get("ownerReferences") or ()):
        return job
    job = without_written(job)
    said = {key: value for key, value in annotations_of(job).items() if key.startswith(PREFIX)}
    templates: list[Object] = []
    faults: list[Fault] = []
    for one in jobs.pod_sets(job):
        if not one.has_devices:
            templates.append(one.template)
            continue
        template = without_written(one.template)
        own = annotations_of(template)
        for key in sorted(said.keys() & own.keys()):
            if own[key] != said[key]:
                message = f"{own[key][:60]!a} in template {one.name} contradicts {said[key][:60]!a} of the job"
                faults.append(Fault(f"{job.get('kind')} {name_of(job) or '-'}", message, where=ascii(key)[1:-1]))
        told = {**meta(template), "labels": {**labels_of(template), MANAGED: "true"}}
        if said:
            told["annotations"] = {**own, **said}
        templates.append({**template, "metadata": told})
    if faults:
        raise BadFile(faults, hint="say it on the job alone")
    changed: Object = _merged(_merged(job, jobs.with_templates(job, templates)), jobs.suspension(job, wanted=True))
    return changed


def without_written(obj: Object) -> Object:
    """Return an object without what only strata writes."""
    own = annotations_of(obj)
    if not any(key in WRITTEN for key in own):
        return obj
    kept = {key: value for key, value in own.items() if key not in WRITTEN}
    return {**obj, "metadata": {**meta(obj), "annotations": kept}}


def _merged(obj: Any, patch: Any) -> Any:
    """Return an object after a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    after = dict(obj) if isinstance(obj, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _merged(after.get(key), value)
    return after
