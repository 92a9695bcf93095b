"""What the API server lets be changed of a pod or a job's template after it was created, as a check.

    field                                      gated          pending  bound
    containers[*].image, initContainers[*]     yes            yes      yes
    labels, annotations                        yes            yes      yes
    tolerations                                added          added    added
    nodeSelector, required node affinity       narrowed       no       no
    preferred node affinity                    yes            no       no
    schedulingGates                            removed        -        -
    everything else of the spec                no             no       no

On CREATE everything may be changed. A suspended job's template: labels, annotations, node affinity, nodeSelector,
tolerations and gates; resources of containers too since 1.36. Never image or environment.

References
----------
ValidatePodUpdate, validateNodeAffinityMutation (pkg/apis/core/validation) and validatePodTemplateUpdate
(pkg/apis/batch/validation) of Kubernetes 1.36.3; KEP-3838, KEP-2926, KEP-5440.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from strata.cluster.admission.patch import json_patch
from strata.cluster.api.kinds import Object
from strata.errors import Fault

Phase = Literal["create", "gated", "pending", "bound"]

MUTABLE_RESOURCES: Final = 36
"""The first minor version where resources of a suspended job's template may change (off by default in 35)."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def forbidden(before: Object, after: Object, *, phase: Phase) -> tuple[Fault, ...]:
    """Return what of a change to a pod the API server would refuse; nothing where it is legal."""
    old, new = _plain(before), _plain(after)
    faults = list(_identity(old, new))
    spec, changed = old.get("spec", {}), new.get("spec", {})
    if phase == "create":
        if changed.get("nodeName") and changed.get("schedulingGates"):
            faults.append(_fault("spec.schedulingGates", "a pod with a node cannot be gated"))
        return tuple(faults)
    for kind in ("containers", "initContainers"):
        if len(spec.get(kind, ())) == len(changed.get(kind, ())):
            for one, other in zip(spec.get(kind, ()), changed.get(kind, ()), strict=True):
                other["image"] = one.get("image")
    faults += _tolerations(spec, changed)
    faults += _gates(spec, changed)
    if phase == "gated":
        faults += _selector(spec, changed)
        faults += _node_affinity(spec, changed)
    return (*faults, *_rest("spec", spec, changed))


def forbidden_template(before: Object, after: Object, *, server_minor: int) -> tuple[Fault, ...]:
    """Return what of a change to a suspended job's template the API server would refuse.

    The job must not count as started (`status.startTime`) below 1.36; that is not seen here.
    """
    old, new = _plain(before), _plain(after)
    spec, changed = old.get("spec", {}), new.get("spec", {})
    for part in (spec, changed):
        part.get("affinity", {}).pop("nodeAffinity", None)
        for key in ("nodeSelector", "tolerations", "schedulingGates"):
            part.pop(key, None)
        if server_minor >= MUTABLE_RESOURCES:
            for container in (*part.get("containers", ()), *part.get("initContainers", ())):
                container.pop("resources", None)
    for part in (old, new):
        part.pop("spec", None)
        for key in ("labels", "annotations"):
            part.get("metadata", {}).pop(key, None)
    return (*_rest("", _plain(old), _plain(new)), *_rest("spec", _plain(spec), _plain(changed)))


def _identity(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Fault]:
    for key in ("name", "generateName", "namespace", "uid"):
        if old.get("metadata", {}).get(key) != new.get("metadata", {}).get(key):
            yield _fault(f"metadata.{key}", "cannot change")


def _tolerations(spec: Mapping[str, Any], changed: dict[str, Any]) -> Iterator[Fault]:
    there = [_without_seconds(one) for one in changed.pop("tolerations", ())]
    if any(_without_seconds(one) not in there for one in spec.get("tolerations", ())):
        yield _fault("spec.tolerations", "may only be added")
    _copy_over(spec, changed, "tolerations")


def _without_seconds(toleration: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _gates(spec: Mapping[str, Any], changed: dict[str, Any]) -> Iterator[Fault]:
    if any(one not in spec.get("schedulingGates", ()) for one in changed.pop("schedulingGates", ())):
        yield _fault("spec.schedulingGates", "may only be removed")
    _copy_over(spec, changed, "schedulingGates")


def _selector(spec: Mapping[str, Any], changed: dict[str, Any]) -> Iterator[Fault]:
    new = changed.pop("nodeSelector", {})
    if any(new.get(key) != value for key, value in spec.get("nodeSelector", {}).items()):
        yield _fault("spec.nodeSelector", "may only be added to")
    _copy_over(spec, changed, "nodeSelector")


def _node_affinity(spec: Mapping[str, Any], changed: dict[str, Any]) -> Iterator[Fault]:
    old, new = (_terms(part.get("affinity", {}).get("nodeAffinity", {})) for part in (spec, changed))
    if old and len(old) != len(new):
        yield _fault("spec.affinity.nodeAffinity", "terms are alternatives, and none may be added or removed")
    elif old:
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            if not _is_narrowed(one, other):
                yield _fault(f"spec.affinity.nodeAffinity.{number}", "may only be added to, at its end")
    affinity = changed.setdefault("affinity", {})
    affinity.pop("nodeAffinity", None)
    _copy_over(spec.get("affinity", {}), affinity, "nodeAffinity")
    if not affinity:
        del changed["affinity"]


def _terms(node_affinity: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(node_affinity.get(_REQUIRED, {}).get("nodeSelectorTerms", ()))


def _is_narrowed(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    if not old:
        return not new
    return all(
        list(new.get(key, ()))[: len(old.get(key, ()))] == list(old.get(key, ()))
        for key in ("matchExpressions", "matchFields")
    )


def _rest(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Fault, ...]:
    paths = {one["path"].removesuffix("/-") for one in json_patch(old, new)}
    return tuple(
        _fault(f"{path}{one.replace('/', '.')}".lstrip("."), "cannot change any more") for one in sorted(paths)
    )


def _copy_over(old: Mapping[str, Any], new: dict[str, Any], key: str) -> None:
    if key in old:
        new[key] = old[key]


def _plain(value: Any) -> Any:
    """Return an object without what says nothing: to Kubernetes no list and an empty one are the same."""
    if isinstance(value, Mapping):
        kept = {key: _plain(below) for key, below in value.items()}
        return {key: below for key, below in kept.items() if below is not None and below != {} and below != []}
    return [_plain(one) for one in value] if isinstance(value, list) else copy.copy(value)


def _fault(where: str, message: str) -> Fault:
    return Fault("pod", message, where=where)
