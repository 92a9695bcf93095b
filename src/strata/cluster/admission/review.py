"""What the API server is answered when it asks about an object that is being created.

A job of ours is held back until it is routed. A pod whose gang was placed gets everything it needs there; one that
comes alone is placed here and now, or gated until there is room, made for the kind of card it waits for.

References
----------
admission.k8s.io/v1 AdmissionReview; warnings above 256 characters are cut by the API server.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from strata.cluster.admission.inject import inject
from strata.cluster.admission.job_defaults import job_defaults, without_written
from strata.cluster.admission.patch import json_patch
from strata.cluster.api import jobs
from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.kinds import Object, annotations_of, labels_of, meta
from strata.cluster.api.placement_annotation import (
    GANG,
    GATE,
    MANAGED,
    PLACEMENT,
    WAITING,
    decode,
    encode,
    place_of,
)
from strata.cluster.api.pod_claims import CLAIM, claim_of_pod, job_claim
from strata.cluster.api.pod_form import check_job, check_pod, where_of
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.errors import BadFile, Fault, UsageError
from strata.names import closest

_MOST_WARNED: Final = 200


@dataclass(frozen=True, slots=True)
class Routed:
    """Where a pod that comes alone goes. placement: None where there is no room now.

    preferred: then the kind of card it should wait for, as a placement whose places do not count; None where no
    card could ever do. sentence: why, for the user.
    """

    placement: Placement | None
    preferred: Placement | None = None
    sentence: str = ""


Route = Callable[[Object, bool], Routed]
"""From a pod, with its namespace and gang, and whether nothing may be remembered (a dry run), to where it goes.

Raises BadFile for what the pod asks wrongly.
"""


def answer(
    review: Object, *, route: Route, profiles: Callable[[], Mapping[str, RuntimeProfile]], server_minor: int
) -> Object:
    """Return the review that answers an AdmissionReview. What is not ours, or not being created, passes."""
    request = review["request"]
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    obj = request.get("object")
    is_new = request.get("operation") == "CREATE" and not request.get("subResource")
    if is_new and isinstance(obj, Mapping):
        kind = request.get("kind") or {}
        version = f"{kind.get('group')}/{kind.get('version')}" if kind.get("group") else kind.get("version")
        before = {**obj, "apiVersion": version, "kind": kind.get("kind")}
        try:
            check_pod({"metadata": before.get("metadata")})
            if labels_of(before).get(MANAGED) == "true":
                if not meta(before).get("namespace"):
                    before["metadata"] = {**meta(before), "namespace": request.get("namespace") or "default"}
                decider = _Decider(route, profiles, server_minor, str(request["uid"]))
                after = decider.changed(before, is_dry_run=request.get("dryRun") is True)
                response |= _changes(before, after, decider.warnings)
        except UsageError as error:
            response |= _denial(error)
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


@dataclass
class _Decider:
    route: Route
    profiles: Callable[[], Mapping[str, RuntimeProfile]]
    server_minor: int
    uid: str

    def __post_init__(self) -> None:
        self.warnings: list[str] = []

    def changed(self, obj: Object, *, is_dry_run: bool) -> Object:
        """Return a managed object as it should be created. Raises UsageError."""
        if (obj["apiVersion"], obj["kind"]) == ("v1", "Pod"):
            check_pod(obj)
            pod, placement = self._placed(obj, is_dry_run=is_dry_run)
            return inject(pod, placement, self._profile(pod, placement.profile), server_minor=self.server_minor)
        if jobs.kind_of(obj) is None:
            return obj
        check_job(obj)
        engines = {engine for profile in self.profiles().values() for engine in profile.entrypoints}
        after = job_defaults(obj, engines)
        templates = [pod_set.template for pod_set in jobs.pod_sets(after)]
        if after is not obj and not any(CLAIM in annotations_of(manifest) for manifest in (after, *templates)):
            job_claim(jobs.read_job(after), {})
        return after

    def _placed(self, pod: Object, *, is_dry_run: bool) -> tuple[Object, Placement]:
        """Return a pod's placement, or what it waits for, and the pod as it says so."""
        annotations, where = annotations_of(pod), where_of(pod)
        if PLACEMENT in annotations:
            placement = decode(annotations[PLACEMENT], where=where)
            is_any = place_of(pod, placement) is None and len(set(placement.pods)) > 1
            if is_any and placement.pods[0].memory_bytes is not None:
                return self._gated(_without(pod, PLACEMENT), placement)
            return pod, placement
        if WAITING in annotations and _is_gated(pod):
            return pod, decode(annotations[WAITING], where=where, key=WAITING)
        pod = without_written(pod)
        if CLAIM not in annotations and claim_of_pod(pod).pods > 1:
            fault = Fault(where, "a single pod cannot be a gang", where=PREFIX + "gang-size")
            raise BadFile([fault], hint="make it a Job, which is placed as a whole")
        if (pod.get("spec") or {}).get("nodeName"):
            raise BadFile(
                [Fault(where, "a managed pod is placed by strata, so leave it out", where="spec.nodeName")]
            )
        # A pod with a generated name has none yet; the review's number tells it from others.
        pod = _with(pod, GANG, f"Pod/{meta(pod).get('namespace')}/{meta(pod).get('name') or self.uid}")
        routed = self.route(pod, is_dry_run)
        if routed.placement is not None:
            if routed.placement.pods[0].memory_bytes is not None:
                return self._gated(pod, routed.placement)
            return _with(pod, PLACEMENT, encode(routed.placement)), routed.placement
        if routed.preferred is None:
            raise UsageError(routed.sentence or f"{where} fits no card here")
        self._warn(f"waits for room: {routed.sentence}")
        return self._gated(pod, routed.preferred)

    def _gated(self, pod: Object, preferred: Placement) -> tuple[Object, Placement]:
        """Return a pod behind our gate, made for a kind of card; the controller says which it gets.

        A fraction always waits for that. Two webhooks that answer at the same moment know nothing of each other,
        and where whole devices are counted by the kubelet, nobody else counts the memory of one.
        """
        first = preferred.pods[0] if preferred.pods else PodPlace("", ())
        waiting = replace(preferred, pods=(PodPlace("", (), first.memory_bytes),))
        gates = (pod.get("spec") or {}).get("schedulingGates") or []
        spec = {**(pod.get("spec") or {}), "schedulingGates": [*gates, {"name": GATE}]}
        return {**_with(pod, WAITING, encode(waiting)), "spec": spec}, waiting

    def _profile(self, pod: Object, name: str) -> RuntimeProfile:
        profiles = self.profiles()
        profile = profiles.get(name)
        if profile is None:
            close = closest(name, profiles)
            meant = f"did you mean {close}?" if close else f"known: {', '.join(sorted(profiles)) or 'none'}"
            raise BadFile([Fault(where_of(pod), f"there is no profile {name!a} ({meant})", where=PLACEMENT)])
        if not profile.was_tried:
            self._warn(f"profile {name} was not tried on such a card by those who wrote it")
        return profile

    def _warn(self, text: str) -> None:
        shown = "".join(character if character.isprintable() else " " for character in f"strata: {text}")
        self.warnings.append(shown[:_MOST_WARNED])


def _changes(before: Object, after: Object, warnings: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {"warnings": warnings} if warnings else {}
    if patch := json_patch(before, after):
        changes |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return changes


def _denial(error: UsageError) -> dict[str, Any]:
    message = "; ".join(error.lines())
    return {
        "allowed": False,
        "status": {"status": "Failure", "code": 422, "reason": "Invalid", "message": message},
    }


def _is_gated(pod: Object) -> bool:
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return any(gate.get("name") == GATE for gate in gates)


def _without(obj: Object, key: str) -> Object:
    kept = {name: value for name, value in annotations_of(obj).items() if name != key}
    return {**obj, "metadata": {**meta(obj), "annotations": kept}}


def _with(obj: Object, key: str, value: str) -> Object:
    return {**obj, "metadata": {**meta(obj), "annotations": {**annotations_of(obj), key: value}}}
