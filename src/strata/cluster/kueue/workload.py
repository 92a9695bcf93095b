"""Kueue's admission check: where a workload goes once there is quota for it.

Kueue holds jobs back and counts quota. When it has reserved some, `answer` routes the gang on the cards of the
flavor that was chosen and puts the placement into the check's `podSetUpdates`, which Kueue merges into the
templates before it lets the job go; the webhook does the rest. Where there is no room the quota goes back, and
Kueue comes again: at once where another flavor has room, to which `steering.py` sends it, and else later.

With Kueue's ConcurrentAdmission a job has a workload for each flavor, a variant, owned by the job's own: they ask
for one gang, of which one at most is given a place.

References
----------
kubernetes-sigs/kueue apis/kueue/{v1beta1,v1beta2}/{workload,admissioncheck}_types.go, pkg/podset/podset.go (Merge:
a key that is there with another value is an error); read at ff69552e (0.19).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Any, Final, Literal

from strata.cluster.api import jobs
from strata.cluster.api.actions import Patch, ref_of
from strata.cluster.api.affinity import without_kept_off
from strata.cluster.api.annotations import has_claim
from strata.cluster.api.jobs import is_managed
from strata.cluster.api.kinds import (
    ADMISSION_CHECK,
    WORKLOAD,
    Object,
    annotations_of,
    conditions_of,
    is_true,
    meta,
    name_of,
    namespace_of,
    version_of,
)
from strata.cluster.api.placement_annotation import FIRST, GANG, MANAGED, PER_JOB, PLACEMENT, decode, encode
from strata.cluster.api.pod_claims import CLAIM, claim_of_pod, named_claim
from strata.cluster.kueue.flavors import CONTROLLER, FLAVOR_LABEL, MOST, each_once, flavor_name
from strata.cluster.kueue.steering import avoided, full_flavors, may_be_steered, steered
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.explain import explain
from strata.cluster.scheduling.host import PodRequests
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Decision
from strata.errors import BadFile, Fault

RETRY_S: Final = 60
STEERED_S: Final = 1
"""Long enough for the Workload to be changed before Kueue looks at it again."""
MOST_CHARACTERS: Final = 4000


def activation(check: Object, *, stamp: str) -> Patch | None:
    """Return the status without which Kueue admits nothing by a check; None where it has it, or is not ours."""
    if not is_ours(check) or is_true(check, "Active"):
        return None
    active = {
        "type": "Active",
        "status": "True",
        "reason": "Active",
        "message": "the router answers",
        "lastTransitionTime": stamp,
        "observedGeneration": meta(check).get("generation", 0),
    }
    others = [condition for condition in conditions_of(check) if condition.get("type") != "Active"]
    body = {"status": {"conditions": [*others, active]}}
    return Patch(ref_of(check, ADMISSION_CHECK), body, "status", version_of(check))


def is_ours(check: Object) -> bool:
    """Return whether an AdmissionCheck is ours to answer."""
    return (check.get("spec") or {}).get("controllerName") == CONTROLLER


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """placement: to be held for `gang` (its key in the cache) as soon as the patch is done; None for any other.

    is_substitute: on other cards than the job was written for. is_steered: once it has no quota, `steer` has Kueue
    try another flavor.
    """

    patch: Patch
    gang: str
    placement: Placement | None = None
    is_substitute: bool = False
    is_steered: bool = False


def answer(
    workload: Object,
    index: Index,
    profiles: Sequence[RuntimeProfile],
    *,
    checks: Collection[str],
    stamp: str,
    job: Object | None = None,
    claims: Mapping[str, Object] = MappingProxyType({}),
    workloads: Mapping[str, Object] = MappingProxyType({}),
    flavors: Mapping[str, Object] = MappingProxyType({}),
) -> CheckAnswer | None:
    """Return what to answer to a Workload's checks; None where nothing is asked of us now.

    checks: names of those that are ours. job: the owner, where it is of a kind with `suspend`: what stands there
    but not in the templates counts too. claims: ComputeClaims by `namespace/name`. stamp: the time as the API
    server writes it. flavors: Kueue's, by name: it has the pods go to nodes with their labels.
    """
    status = workload.get("status") or {}
    if not is_asked(workload, checks):
        return None
    gang = gang_of(workload, workloads)
    sets = _sets(workload, job)
    try:
        claim = _claim(workload, job, sets, claims)
    except BadFile as error:
        rejected = _check_state("Rejected", "; ".join(str(fault) for fault in error.faults))
        return CheckAnswer(_patch(workload, checks, "Pending", rejected, stamp), gang)
    if claim is None:
        state = _check_state("Ready", "asks for no accelerators of ours")
        return CheckAnswer(_patch(workload, checks, "Pending", state, stamp), gang)
    of_flavors = _of_flavors(status, profiles)
    labels = _labels(_assigned(status) - {flavor_name(profile) for profile in profiles}, flavors)
    claim = replace(claim, where=replace(claim.where, selector={**claim.where.selector, **labels}))
    evaluation = evaluate(index, claim, of_flavors)
    choice = evaluation.choice
    if choice.placement is None:
        full = full_flavors(index, claim, profiles) if may_be_steered(workload) else frozenset[str]()
        state = _without_room(explain(evaluation), full, avoided(workload))
        if not evaluation.demands and all(each.reason.token == "no-profile" for each in evaluation.refusals):
            cards = ", ".join(sorted(_assigned(status))) or "any profile"
            state["message"] = f"no node has cards of {cards}; {state['message']}"[:MOST_CHARACTERS]
        return CheckAnswer(
            _patch(workload, checks, "Pending", state, stamp), gang, is_steered=full != avoided(workload)
        )
    state = _with_room(explain(evaluation), choice.placement, profiles, sets, gang)
    is_substitute = choice.demand is not None and choice.demand.is_substitute
    patch = _patch(workload, checks, "Pending", state, stamp)
    return CheckAnswer(patch, gang, choice.placement, is_substitute)


def later(workload: Object, checks: Collection[str], why: str, *, stamp: str) -> Patch:
    """Return the patch by which a workload that asks gives its quota back for a while."""
    state = _check_state("Retry", why) | {"requeueAfterSeconds": RETRY_S}
    return _patch(workload, checks, "Pending", state, stamp)


def steer(
    workload: Object,
    index: Index,
    profiles: Sequence[RuntimeProfile],
    *,
    job: Object | None = None,
    claims: Mapping[str, Object] = MappingProxyType({}),
) -> Patch | None:
    """Return the patch that keeps a workload without quota off the flavors that are full now; None where it is."""
    sets = _sets(workload, job)
    try:
        claim = _claim(workload, job, sets, claims)
    except BadFile:
        return None  # it is told when it asks
    full = frozenset[str]() if claim is None else full_flavors(index, claim, profiles)
    if full == avoided(workload):
        return None
    return steered(workload, full, {pod_set.name for pod_set in sets if pod_set.has_devices})


def request_of(workload: Object, job: Object | None, claims: Mapping[str, Object]) -> Claim | None:
    """Return what a workload's gang asks for, None where it asks for nothing of ours. Raises BadFile."""
    return _claim(workload, job, _sets(workload, job), claims)


def gang_of(workload: Object, workloads: Mapping[str, Object] = MappingProxyType({})) -> str:
    """Return the key of a workload's gang in the cache: its owner's, of a variant its parent's owner's."""
    owner, name = _owner(workload), name_of(workload)
    if owner.get("kind") == WORKLOAD.kind:
        name = str(owner.get("name"))
        owner = _owner(workloads.get(f"{namespace_of(workload)}/{name}") or {})
    return f"{owner.get('kind', WORKLOAD.kind)}/{namespace_of(workload)}/{owner.get('name', name)}"


def _owner(workload: Object) -> Mapping[str, Any]:
    owners = meta(workload).get("ownerReferences") or ()
    return next((owner for owner in owners if owner.get("controller")), {})


def is_asked(workload: Object, checks: Collection[str]) -> bool:
    """Return whether a workload has quota and waits for one of our checks."""
    return has_quota(workload) and any(state.get("state") == "Pending" for state in _states(workload, checks))


def is_waiting(workload: Object) -> bool:
    """Return whether a workload has no quota yet, and may still get some."""
    return not is_true(workload, "QuotaReserved", "Finished")


def is_held(workload: Object, checks: Collection[str]) -> bool:
    """Return whether one of our checks gave a workload a place that it still has."""
    given = (state for state in _states(workload, checks) if state.get("state") == "Ready")
    return has_quota(workload) and any(state.get("podSetUpdates") for state in given)


def held(workload: Object, checks: Collection[str]) -> Placement | None:
    """Return the placement a workload was given and still has. Raises BadFile where somebody wrote into it."""
    if not is_held(workload, checks):
        return None
    updates = (update for state in _states(workload, checks) for update in state.get("podSetUpdates") or ())
    text = next((annotations_of({"metadata": update}).get(PLACEMENT) for update in updates), None)
    return decode(text, where=f"workload {namespace_of(workload)}/{name_of(workload)}") if text else None


def send_back(workload: Object, checks: Collection[str], message: str, *, stamp: str) -> Patch:
    """Return the patch by which Kueue takes a workload's pods down and queues it again."""
    state = _check_state("Retry", message) | {"requeueAfterSeconds": 0}
    return _patch(workload, checks, "Ready", state, stamp)


def _states(workload: Object, checks: Collection[str]) -> list[Mapping[str, Any]]:
    states = (workload.get("status") or {}).get("admissionChecks") or ()
    return [state for state in states if state.get("name") in checks]


def _patch(workload: Object, checks: Collection[str], state: str, changes: Mapping[str, Any], stamp: str) -> Patch:
    """Return the patch that changes our checks in some state; the list goes whole, so not over a newer one."""
    after = [
        {**_kept(check), **changes, "lastTransitionTime": stamp}
        if check.get("name") in checks and check.get("state") == state
        else check
        for check in (workload.get("status") or {}).get("admissionChecks") or ()
    ]
    body = {"status": {"admissionChecks": after}}
    return Patch(ref_of(workload, WORKLOAD), body, "status", version_of(workload))


def _with_room(
    decision: Decision[Placement],
    placement: Placement,
    profiles: Sequence[RuntimeProfile],
    sets: Sequence[jobs.PodSet],
    gang: str,
) -> dict[str, Any]:
    profile = next(profile for profile in profiles if profile.name == placement.profile)
    updates = [_update(pod_set, placement, profile, gang) for pod_set in sets if pod_set.has_devices]
    return _check_state("Ready", "; ".join(map(str, decision.reasons))) | {"podSetUpdates": updates}


def _without_room(decision: Decision[Placement], full: frozenset[str], kept_off: frozenset[str]) -> dict[str, Any]:
    """Return what to say where the flavor has no room. full: flavors without, where others have some."""
    message, after_s = _why_not(decision), RETRY_S
    if full and full != kept_off:
        message, after_s = f"{message}; the next flavor is tried", STEERED_S
    elif full:
        labels = ", ".join(FLAVOR_LABEL + flavor for flavor in sorted(full))
        message = f"{message}; another flavor has room, and Kueue tries none: flavors need labels ({labels})"
    return _check_state("Retry", message) | {"requeueAfterSeconds": after_s}


def _check_state(state: Literal["Ready", "Retry", "Rejected"], message: str) -> dict[str, Any]:
    return {"state": state, "message": message[:MOST_CHARACTERS]}


def _kept(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a state is not ours to say, as the count of its retries."""
    return {key: value for key, value in state.items() if key not in ("podSetUpdates", "requeueAfterSeconds")}


def has_quota(workload: Object) -> bool:
    """Return whether quota is reserved and the workload neither over nor on its way out."""
    return is_true(workload, "QuotaReserved") and not is_true(workload, "Finished", "Evicted")


def _sets(workload: Object, job: Object | None) -> tuple[jobs.PodSet, ...]:
    """Return a workload's pods by template, with their places, as many as Kueue counted.

    Which have devices and how many a job of a JobSet makes is read from the job; without it those have devices
    that ask for something.
    """
    admission = (workload.get("status") or {}).get("admission") or {}
    counted = {
        assignment.get("name"): assignment.get("count") for assignment in admission.get("podSetAssignments") or ()
    }
    known = {}
    if job is not None and jobs.kind_of(job) is not None:
        known = {pod_set.name.lower(): pod_set for pod_set in jobs.pod_sets(job)}  # as Kueue names them
    pod_sets, first = [], 0
    for position, pod_set in enumerate((workload.get("spec") or {}).get("podSets") or ()):
        name, template = str(pod_set.get("name", "main")), pod_set.get("template") or {}
        count = counted.get(name)
        pods = int(pod_set.get("count", 1) if count is None else count)
        own = known.get(name)
        has_devices = own.has_devices if own else _asks(template, annotations_of(template))
        per_job = own.per_job if own else 0
        path = ("spec", "podSets", position, "template")
        pod_sets.append(jobs.PodSet(name, pods, path, template, first, per_job, has_devices and pods > 0))
        first += pods if has_devices else 0
    return tuple(pod_sets)


def _asks(template: Object, annotations: Mapping[str, str]) -> bool:
    return is_managed(template) or CLAIM in annotations or has_claim(annotations)


def _claim(
    workload: Object, job: Object | None, sets: Sequence[jobs.PodSet], claims: Mapping[str, Object]
) -> Claim | None:
    """Return what the gang asks for, None where nothing is asked. Raises BadFile, also for pods that differ."""
    over = annotations_of(job) if job is not None else {}
    claim_by_set: dict[str, Claim] = {}
    for pod_set in sets:
        annotations = {**annotations_of(pod_set.template), **over}
        if not pod_set.has_devices or not _asks(pod_set.template, annotations):
            continue
        metadata = {"name": name_of(workload), "namespace": namespace_of(workload), "annotations": annotations}
        spec = without_kept_off(pod_set.template.get("spec") or {}, FLAVOR_LABEL)
        pod = {"metadata": metadata, "spec": spec}
        claim_by_set[pod_set.name] = (
            named_claim(claims, pod, "Workload") if CLAIM in annotations else claim_of_pod(pod)
        )
    if not claim_by_set:
        return None
    (first, claim), *others = claim_by_set.items()
    for name, other in others:
        if replace(other, requests=claim.requests) != claim:
            where = f"workload {namespace_of(workload)}/{name_of(workload)}"
            fault = Fault(where, f"asks for something else than {first}; the pods of a gang are alike", where=name)
            raise BadFile([fault], hint="give both the same ai.compute/ annotations")
    largest = reduce(PodRequests.most, (other.requests for _, other in others), claim.requests)
    return replace(claim, pods=sum(each.pods for each in sets if each.has_devices), requests=largest)


def _of_flavors(status: Mapping[str, Any], profiles: Sequence[RuntimeProfile]) -> list[RuntimeProfile]:
    """Return the profiles of the flavors that quota was reserved of; all, where none of those is ours."""
    our_flavors = _assigned(status) & {flavor_name(profile) for profile in profiles}
    return [profile for profile in profiles if not our_flavors or flavor_name(profile) in our_flavors]


def _assigned(status: Mapping[str, Any]) -> set[str]:
    assignments = (status.get("admission") or {}).get("podSetAssignments") or ()
    return {flavor for assignment in assignments for flavor in (assignment.get("flavors") or {}).values()}


def _labels(names: Collection[str], flavors: Mapping[str, Object]) -> dict[str, str]:
    """Return the labels that flavors ask for; our own the controller puts on nodes itself, a moment late."""
    specs = ((flavors.get(name) or {}).get("spec") or {} for name in sorted(names))
    return {key: value for spec in specs for key, value in (spec.get("nodeLabels") or {}).items()}


def _why_not(decision: Decision[Placement]) -> str:
    """Return why a gang has no place: its own reasons, and of how many nodes each token was said."""
    tokens = Counter(
        alternative.reasons[0].token
        for alternative in decision.alternatives
        if alternative.choice is None and alternative.reasons
    )
    nodes = ", ".join(f"{count} {token}" for token, count in tokens.most_common())
    reasons = [f"{reason.token}: {reason}" for reason in decision.reasons]
    return "; ".join([*reasons, f"nodes: {nodes}"] if nodes else reasons)


def _update(pod_set: jobs.PodSet, placement: Placement, profile: RuntimeProfile, gang: str) -> dict[str, Any]:
    """Return a PodSetUpdate. It can hold no affinity, so no nodes: the webhook pins each pod to its place."""
    annotations = {PLACEMENT: encode(placement), GANG: gang}
    if pod_set.first:
        annotations[FIRST] = str(pod_set.first)
    if pod_set.per_job:
        annotations[PER_JOB] = str(pod_set.per_job)
    update: dict[str, Any] = {"name": pod_set.name, "labels": {MANAGED: "true"}, "annotations": annotations}
    if profile.node_selector:
        update["nodeSelector"] = dict(profile.node_selector)
    if profile.tolerations:
        update["tolerations"] = each_once(dict(toleration) for toleration in profile.tolerations)[:MOST]
    return update
