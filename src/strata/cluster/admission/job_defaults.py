"""How a managed job is created: held back, its templates say what is asked for, no copied placement."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from strata.cluster.admission.inject import CODE_IMAGE, ENGINE
from strata.cluster.api import jobs
from strata.cluster.api.annotations import PREEMPTIBLE, PREFIX
from strata.cluster.api.forms import IMAGE
from strata.cluster.api.kinds import Object, annotations_of, labels_of, meta, name_of
from strata.cluster.api.placement_annotation import (
    CONTAINER,
    COUNTED,
    FIRST,
    GANG,
    INJECTED,
    LIMITS,
    MANAGED,
    PER_JOB,
    PLACEMENT,
    VISIBLE,
    WAITING,
)
from strata.errors import BadFile, Fault

WRITTEN: Final = (PLACEMENT, GANG, FIRST, PER_JOB, INJECTED, COUNTED, WAITING, VISIBLE, LIMITS, PREFIX + "offer")
"""Annotations only strata writes: what a new job brings along of them was copied from another."""


def job_defaults(job: Object, engines: Collection[str] | None = None) -> Object:
    """Return a managed job as it should be created: held back, and its pods' templates know what is asked.

    Templates get the label and the job's annotations; pods that only steer are left alone, and so is a job that
    another one of ours makes. What a copied job brings along of an earlier placement goes. Raises BadFile where a
    template asks for something else than its job, the code's image is none, or its pods would be refused for what
    they name: a container that is not there, or an engine that is none of `engines`, those of all profiles.
    """
    if any(jobs.kind_of(owner) for owner in meta(job).get("ownerReferences") or ()):
        return job
    job = without_written(job)
    annotations = {key: value for key, value in annotations_of(job).items() if key.startswith(PREFIX)}
    templates: list[Object] = []
    faults: list[Fault] = []
    image = annotations.get(CODE_IMAGE)
    if image and not IMAGE.fullmatch(image):
        # Later its pods would be refused, one after another, of a job that was let go.
        message = f"{image[:80]!a} is not an image with a tag or a digest"
        fault = Fault(f"{job.get('kind')} {name_of(job) or '-'}", message, where=CODE_IMAGE)
        raise BadFile([fault], hint="team/code:1")
    if annotations.get(PREEMPTIBLE, "true") not in ("true", "false"):
        message = f"{annotations[PREEMPTIBLE][:60]!a} should be true or false"
        faults.append(Fault(f"{job.get('kind')} {name_of(job) or '-'}", message, where=PREEMPTIBLE))
    for pod_set in jobs.pod_sets(job):
        if not pod_set.has_devices:
            templates.append(pod_set.template)
            continue
        template = without_written(pod_set.template)
        own = annotations_of(template)
        for key in sorted(annotations.keys() & own.keys()):
            if own[key] != annotations[key]:
                message = (
                    f"{own[key][:60]!a} in template {pod_set.name} contradicts {annotations[key][:60]!a} "
                    "of the job"
                )
                faults.append(Fault(f"{job.get('kind')} {name_of(job) or '-'}", message, where=ascii(key)[1:-1]))
        names = [container.get("name") for container in (template.get("spec") or {}).get("containers") or ()]
        named, engine = ({**own, **annotations}.get(key, "") for key in (CONTAINER, ENGINE))
        if named and names and named not in names:
            message = f"there is no container {named[:63]!a} in template {pod_set.name}"
            faults.append(Fault(f"{job.get('kind')} {name_of(job) or '-'}", message, where=CONTAINER))
        if engine and engines is not None and engine not in engines:
            message = f"no profile has {engine[:63]!a} (known: {', '.join(sorted(engines)) or 'none'})"
            faults.append(Fault(f"{job.get('kind')} {name_of(job) or '-'}", message, where=ENGINE))
        metadata = {**meta(template), "labels": {**labels_of(template), MANAGED: "true"}}
        if annotations:
            metadata["annotations"] = {**own, **annotations}
        templates.append({**template, "metadata": metadata})
    if faults:
        raise BadFile(faults, hint="a template asks for what its job asks; say it on the job alone")
    return jobs.changed(job, templates, is_suspended=True)


def without_written(obj: Object) -> Object:
    """Return an object without what only strata writes."""
    own = annotations_of(obj)
    if not any(key in WRITTEN for key in own):
        return obj
    kept = {key: value for key, value in own.items() if key not in WRITTEN}
    return {**obj, "metadata": {**meta(obj), "annotations": kept}}
