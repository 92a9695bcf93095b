"""A pod made to run where it was placed: all that must be in it when it is created, since it never changes later.

One container gets the devices: the one that counts a vendor's, else the first; `ai.compute/container` names it.
Sidecars only lose vendors' resources. A variable the user set keeps the user's value, but for those that say which
devices a pod sees and what a fraction is limited to; library paths and preloads are joined.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Final

from strata.cluster.admission.code import code_layer
from strata.cluster.admission.container import Runtime, own_mount, put, with_runtime, without_accelerators
from strata.cluster.api.affinity import on_nodes
from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.forms import IMAGE, is_bare_path
from strata.cluster.api.kinds import Object, annotations_of, meta
from strata.cluster.api.placement_annotation import (
    CHECKPOINT,
    CONTAINER,
    COUNTED,
    GATE,
    INJECTED,
    LIMITS,
    PLACEMENT,
    VISIBLE,
    WAITING,
    decode,
    encode,
    place_of,
)  # fmt: skip
from strata.cluster.api.pod_claims import counted, devices_counted
from strata.cluster.api.pod_form import check_pod, where_of
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.errors import BadFile, Fault
from strata.fleet.slices import (
    LIBRARY,
    LIMITS_FILE,
    PRELOAD,
    PRELOAD_FILE,
    QuotaLimits,
    limits_file,
    slice_environment,
)
from strata.names import closest

CODE_IMAGE: Final = PREFIX + "code-image"
"""Annotation: an image whose files appear at the profile's `code_mount`."""
ENGINE: Final = PREFIX + "engine"
"""Annotation: an entrypoint of the profile, which replaces the container's command; its arguments stay."""
CHECKPOINT_ENV: Final = "STRATA_CHECKPOINT"
LEDGER_FOLDER: Final = "/var/run/strata"
"""Where processes of a fraction count together, in the container; a folder in memory of the pod's own."""

HOST_NUMBERS: Final = ("NVIDIA_VISIBLE_DEVICES", "ASCEND_VISIBLE_DEVICES", "MTHREADS_VISIBLE_DEVICES")
"""Variables a container runtime reads. For whole devices the device plugin sets them. What a pod's spec says would
count instead (the kubelet puts it last), and the container would use devices that the kubelet gives to others."""

_LIBRARY_FOLDER: Final = str(PurePosixPath(LIBRARY).parent)
_HOST: Final = "strata-host-"


def inject(pod: Object, placement: Placement, profile: RuntimeProfile, *, server_minor: int) -> Object:
    """Return the pod as it should be created, and leave the one given as it was; doing it twice changes nothing.

    placement: of the pod's gang. One whose places have no nodes is of a pod that waits (`placed.WAITING`): what
    depends on the node is left to `release`. server_minor: of the API server; below 34 there are no image volumes.
    Raises BadFile for what cannot be injected, with all faults.
    """
    check_pod(pod)
    injection = _Injection(pod, placement, profile)
    injection.check()
    spec: dict[str, Any] = copy.deepcopy(pod["spec"])
    after: dict[str, Any] = {**pod, "spec": spec}  # its metadata is replaced below, not changed
    layer = code_layer(injection.code_image, profile.code_mount, server_minor=server_minor)
    runtime = injection.runtime(layer.mounts)
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [without_accelerators(container) for container in spec[kind]]
    chosen = with_runtime(pod["spec"]["containers"][injection.number], runtime)
    spec["containers"][injection.number] = chosen
    if layer.init:
        spec["initContainers"] = put(spec.get("initContainers") or [], layer.init)
    mounted = {mount["name"] for mount in chosen.get("volumeMounts") or []}
    for volume in (*_volumes(profile, injection.memory_bytes), *layer.volumes):
        if volume["name"] in mounted:
            spec["volumes"] = put(spec.get("volumes") or [], volume)
    if profile.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **profile.node_selector}
    there = spec.get("tolerations") or []
    if new := [dict(toleration) for toleration in profile.tolerations if toleration not in there]:
        spec["tolerations"] = [*there, *new]
    if placement.nodes:
        nodes = (injection.own.node,) if injection.own else placement.nodes
        spec["affinity"] = on_nodes(spec, nodes, instead_of=placement.nodes)
    annotations = {CONTAINER: injection.name, INJECTED: profile.name, **injection.counted()}
    if limits := injection.limits():
        annotations[LIMITS] = limits_file(limits, container=injection.name)
    if injection.own and injection.own.node:
        # Its own place alone: each pod of a thousand would carry a thousand, and all who watch would read them.
        annotations[PLACEMENT] = encode(replace(placement, pods=(injection.own,)))
    _annotate(after, annotations)
    return after


def release(pod: Object, placement: Placement) -> Object:
    """Return a pod that waited behind the gate as it is let go: its place, its devices' numbers, the gate gone.

    Only what the API server lets be changed of a gated pod. placement: for what was injected
    (`claims.claim_of_waiting`), with one place. Raises BadFile where the pod waits for something else.
    """
    where = where_of(pod)
    waited = decode(annotations_of(pod).get(WAITING, ""), where=where, key=WAITING)
    got = (placement.profile, placement.model, placement.devices_per_pod)
    if got != (waited.profile, waited.model, waited.devices_per_pod) or len(placement.pods) != 1:
        fault = Fault(where, f"waits for {waited.devices_per_pod}x {waited.model} under {waited.profile}")
        raise BadFile([fault])
    place = placement.pods[0]
    after: dict[str, Any] = copy.deepcopy(dict(pod))
    spec = after["spec"]
    spec["affinity"] = on_nodes(spec, [place.node])
    spec["schedulingGates"] = [gate for gate in spec.get("schedulingGates") or [] if gate.get("name") != GATE]
    del after["metadata"]["annotations"][WAITING]
    _annotate(after, {PLACEMENT: encode(placement), VISIBLE: _numbers(place)})
    return after


class _Injection:
    """What a pod and its placement come to: the container, its place, and what annotations say."""

    def __init__(self, pod: Object, placement: Placement, profile: RuntimeProfile) -> None:
        self.pod, self.placement, self.profile = pod, placement, profile
        self.where = where_of(pod)
        self.faults: list[Fault] = []
        annotations = annotations_of(pod)
        self.code_image = annotations.get(CODE_IMAGE, "")
        self.engine = annotations.get(ENGINE, "")
        self.checkpoint = annotations.get(CHECKPOINT, "")
        self.containers = (pod.get("spec") or {}).get("containers") or []
        self.number = self._number(annotations.get(CONTAINER, ""))
        self.own = place_of(pod, placement) or _only(placement)
        self.memory_bytes = placement.pods[0].memory_bytes if placement.pods else None

    @property
    def name(self) -> str:
        return str(self.containers[self.number]["name"])

    def fault(self, where: str, message: str) -> None:
        self.faults.append(Fault(self.where, message, where=where))

    def _number(self, named: str) -> int:
        """Return the place of the container that gets the devices."""
        names = [container.get("name") for container in self.containers]
        if not names:
            self.fault("spec.containers", "there is none")
        elif named and named not in names:
            self.fault(CONTAINER, f"there is no container {named[:63]!a}")
        elif named:
            return names.index(named)
        else:
            counting = {
                resource.container
                for resource in counted(self.pod)
                if resource.where.startswith("spec.containers")
            }
            return min((names.index(name) for name in counting), default=0)
        return 0

    def check(self) -> None:
        """Raise BadFile with everything that is wrong."""
        profile, spec = self.profile, self.pod.get("spec") or {}
        self.faults += devices_counted(self.pod)[2]
        if not profile.image:
            self.fault(INJECTED, f"profile {profile.name} names no image")
        if self.code_image and not IMAGE.fullmatch(self.code_image):
            self.fault(CODE_IMAGE, f"{self.code_image[:80]!a} is not an image with a tag or a digest")
        if self.checkpoint and not is_bare_path(self.checkpoint):
            self.fault(CHECKPOINT, f"{self.checkpoint[:80]!a} is not a plain absolute path")
        if self.engine and self.engine not in profile.entrypoints:
            known = ", ".join(profile.entrypoints) or "none"
            self.fault(
                ENGINE, f"profile {profile.name} has no {self.engine[:63]!a} ({_meant(self.engine, known)})"
            )
        for key, value in profile.node_selector.items():
            own = (spec.get("nodeSelector") or {}).get(key, value)
            if own != value:
                self.fault(f"spec.nodeSelector.{key}", f"{own[:63]!a} contradicts {value!a} of {profile.name}")
        if self.containers and not self.faults:
            self._check_container(self.containers[self.number])
        if self.memory_bytes is not None and self.own is None:
            message = (
                "which device a fraction is of is not known: no index tells its place (completionMode: Indexed)"
            )
            self.fault(PLACEMENT, message)
        if self.faults:
            raise BadFile(self.faults)

    def _check_container(self, container: Object) -> None:
        taken = own_mount(container, self.profile.code_mount) if self.code_image else ""
        if taken not in ("", "strata-code"):
            self.fault(CODE_IMAGE, f"{self.profile.code_mount} of {self.name} is taken by volume {taken[:63]!a}")
        preloads = [variable for variable in container.get("env") or [] if variable["name"] == PRELOAD]
        if self.memory_bytes is not None and preloads and "valueFrom" in preloads[-1]:
            self.fault(PRELOAD, f"of {self.name} is a reference, and the quota library's cannot be joined to it")

    def counted(self) -> dict[str, str]:
        """Return what the pod counted by, where it is not injected yet."""
        resource, count, _ = devices_counted(self.pod)
        return {COUNTED: f"{resource}={count}"} if resource else {}

    def runtime(self, code_mounts: tuple[Mapping[str, Any], ...]) -> Runtime:
        """Return what the container gets."""
        profile, is_fraction = self.profile, self.memory_bytes is not None
        defaults = dict(profile.env)
        if not self.placement.can_p2p and self.placement.devices_per_pod * len(self.placement.pods) > 1:
            defaults |= profile.no_p2p_env
        limits = (
            {"name": "strata-quota", "mountPath": _LIBRARY_FOLDER, "readOnly": True},
            {"name": "strata-ledger", "mountPath": LEDGER_FOLDER},
            # For who comes without the environment: a login, `env -i`.
            {"name": "strata-preload", "mountPath": PRELOAD_FILE, "readOnly": True},
            {"name": "strata-limits", "mountPath": LIMITS_FILE, "subPath": "limits", "readOnly": True},
        )
        mounts = [
            {"name": _volume(mount.name), "mountPath": mount.container_path, "readOnly": mount.is_read_only}
            for mount in profile.mounts
        ]
        return Runtime(
            profile.image,
            profile.resource,
            0 if is_fraction else self.placement.devices_per_pod,
            command=profile.entrypoints[self.engine] if self.engine else None,
            defaults=defaults,
            env=tuple(self._env()),
            mounts=(*mounts, *code_mounts),
            limits=limits if is_fraction else (),
            is_fraction=is_fraction,
            dropped=profile.devices_env if not is_fraction and profile.devices_env in HOST_NUMBERS else "",
        )

    def _env(self) -> list[Mapping[str, Any]]:
        env: list[Mapping[str, Any]] = []
        name, is_fraction = self.profile.devices_env, self.memory_bytes is not None
        if name and self.own is not None and is_fraction:
            if self.own.node:
                env.append({"name": name, "value": _numbers(self.own)})
            else:
                reference = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE}']"}}
                env.append({"name": name, "valueFrom": reference})
        if self.checkpoint:
            env.append({"name": CHECKPOINT_ENV, "value": self.checkpoint})
        env += ({"name": name, "value": value} for name, value in self.limits().items())
        return env

    def limits(self) -> dict[str, str]:
        """Return the variables that limit a fraction; none for whole devices."""
        if self.memory_bytes is None:
            return {}
        # The container sees one device, so in there it is number 0.
        limits = QuotaLimits(int(self.memory_bytes), self.placement.cores_share or None, device=0)
        return slice_environment(limits, ledger=f"{LEDGER_FOLDER}/quota.ledger")


def _volumes(profile: RuntimeProfile, memory_bytes: float | None) -> list[Mapping[str, Any]]:
    volumes: list[Mapping[str, Any]] = [
        {"name": _volume(mount.name), "hostPath": {"path": mount.host_path}} for mount in profile.mounts
    ]
    if memory_bytes is not None:
        # A pod whose node lacks the library does not start, rather than run without its limit.
        volumes += [
            {"name": "strata-quota", "hostPath": {"path": _LIBRARY_FOLDER, "type": "Directory"}},
            {"name": "strata-ledger", "emptyDir": {"medium": "Memory", "sizeLimit": "16Mi"}},
            {
                "name": "strata-preload",
                "hostPath": {"path": f"{_LIBRARY_FOLDER}/{PurePosixPath(PRELOAD_FILE).name}", "type": "File"},
            },
            # The limits for the container; all three for who exports what the node's slices hold (`node_slices`).
            {"name": "strata-limits", "downwardAPI": {"items": [_item(*each) for each in _TOLD]}},
        ]
    return volumes


_TOLD: Final = (
    ("limits", f"metadata.annotations['{LIMITS}']"),
    ("pod", "metadata.name"),
    ("namespace", "metadata.namespace"),
)


def _item(path: str, field: str) -> Mapping[str, Any]:
    return {"path": path, "fieldRef": {"apiVersion": "v1", "fieldPath": field}}


def _volume(name: str) -> str:
    return f"{_HOST}{name.replace('.', '-')}"[:63].rstrip("-")


def _only(placement: Placement) -> PodPlace | None:
    """Return the place all pods of a gang have; None where they have several."""
    return placement.pods[0] if len(set(placement.pods)) == 1 else None


def _numbers(place: PodPlace) -> str:
    return ",".join(map(str, place.numbers or place.devices))


def _meant(engine: str, known: str) -> str:
    close = closest(engine, known.split(", "))
    return f"did you mean {close}?" if close else f"known: {known}"


def _annotate(pod: dict[str, Any], annotations: Mapping[str, str]) -> None:
    pod["metadata"] = {**meta(pod), "annotations": {**annotations_of(pod), **annotations}}
