"""Workloads of the manager cluster as MultiKueue has them: who waits for a cluster, and what it is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from strata.cluster.api.actions import Action, Patch, pascal, ref_of
from strata.cluster.api.jobs import Job
from strata.cluster.api.kinds import WORKLOAD, Object, conditions_of, is_true, meta, version_of
from strata.cluster.controller.status_writer import claim_of_job
from strata.cluster.kueue.workload import has_quota
from strata.cluster.multikueue.nomination import OfferRefusal
from strata.cluster.multikueue.refusals import condition_of, refusals_of
from strata.decision import Decision, Reason, Trust, digest

CONTROLLER: Final = "kueue.x-k8s.io/multikueue"
"""`controllerName` of AdmissionChecks that send workloads to other clusters."""
NOMINATED: Final = "ai.compute/Nominated"
"""The condition of a Workload that says which clusters are nominated, and why those."""
CLAIM_NOMINATED: Final = "Nominated"
"""The same, of its job's ComputeClaim."""
MOST: Final = 20
"""Clusters that may be nominated."""
MOST_CHARACTERS: Final = 4000


def lists_of(checks: Mapping[str, Object], configs: Mapping[str, Object]) -> dict[str, tuple[str, ...]]:
    """Return the worker clusters of each of MultiKueue's AdmissionChecks, in the order of its config."""
    made = {}
    for name, check in checks.items():
        spec = check.get("spec") or {}
        if spec.get("controllerName") == CONTROLLER:
            config = configs.get(str((spec.get("parameters") or {}).get("name"))) or {}
            made[name] = tuple(map(str, (config.get("spec") or {}).get("clusters") or ()))
    return made


def waits(workload: Object, checks: Collection[str]) -> bool:
    """Return whether a workload has quota and waits for a cluster, all other checks being Ready."""
    states = (workload.get("status") or {}).get("admissionChecks") or ()
    ours = [state.get("state") for state in states if state.get("name") in checks]
    others = [state.get("state") for state in states if state.get("name") not in checks]
    is_pending = ours[:1] == ["Pending"] and set(others) <= {"Ready"}
    return (
        is_pending
        and has_quota(workload)
        and not cluster_of(workload)
        and not meta(workload).get("deletionTimestamp")
    )


def clusters_of(workload: Object, lists: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the clusters that a workload may go to."""
    for state in (workload.get("status") or {}).get("admissionChecks") or ():
        if state.get("name") in lists:
            return lists[state["name"]]
    return ()


def cluster_of(workload: Object) -> str:
    """Return the cluster that has a workload, empty where none has."""
    return str((workload.get("status") or {}).get("clusterName") or "")


def nominated(workload: Object) -> tuple[str, ...]:
    """Return the clusters that are nominated."""
    return tuple((workload.get("status") or {}).get("nominatedClusterNames") or ())


def queue_of(workload: Object) -> str:
    """Return a workload's queue: quota is counted by queue, so refusals are, too."""
    return f"{meta(workload).get('namespace')}/{(workload.get('spec') or {}).get('queueName')}"


def why_it_came_back(workload: Object) -> str:
    """Return why a cluster that had a workload has it no longer, empty where that was not the cluster's doing."""
    for condition in conditions_of(workload):
        if condition.get("type") == "Evicted" and condition.get("reason") == "AdmissionCheck":
            return f"gave it back: {condition.get('message')}"
    return ""


def fault(cluster: Object | None) -> str:
    """Return why a MultiKueueCluster cannot be offered anything, empty where it can."""
    if cluster is None:
        return "there is no such MultiKueueCluster"
    if is_true(cluster, "Active"):
        return ""
    active = next((each for each in conditions_of(cluster) if each.get("type") == "Active"), {})
    return str(active.get("message") or active.get("reason") or "Kueue is not connected to it yet")


def report(
    workload: Object,
    clusters: Sequence[str],
    reasons: Sequence[Reason],
    *,
    refusals: Mapping[str, OfferRefusal],
    stamp: str,
) -> list[Action]:
    """Return what nominates clusters and says in conditions why, and who refused; nothing where all is said."""
    message = "; ".join(map(str, reasons))[:MOST_CHARACTERS]
    status = "True" if clusters else "False"
    conditions = conditions_of(workload)
    before = next((each for each in conditions if each.get("type") == NOMINATED), {})
    is_told = refusals == refusals_of(workload)
    if tuple(clusters) == nominated(workload) and before.get("message") == message and is_told:
        return []
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    condition = {
        "type": NOMINATED,
        "status": status,
        "reason": pascal(reasons[0].token),
        "message": message,
        "lastTransitionTime": since or stamp,
        "observedGeneration": meta(workload).get("generation", 0),
    }
    ours = [condition] if is_told else [condition, condition_of(refusals, stamp=stamp)]
    types = {each["type"] for each in ours}
    others = [each for each in conditions if each.get("type") not in types]
    body: dict[str, Any] = {"conditions": [*others, *ours]}
    if tuple(clusters) != nominated(workload):
        body["nominatedClusterNames"] = list(clusters) or None
    # The lists go whole, so not over newer ones.
    return [Patch(ref_of(workload, WORKLOAD), {"status": body}, "status", version_of(workload))]


def report_in_claim(
    claims: Mapping[str, Object], job: Job, clusters: Sequence[str], reasons: Sequence[Reason], *, stamp: str
) -> list[Action]:
    """Return what writes the same into the job's ComputeClaim."""
    decision = Decision(
        tuple(clusters) or None, (), tuple(reasons), Trust.ASSUMED, digest(list(map(str, reasons))), 0, 0.0
    )
    annotations = dict(job.annotations)
    return list(claim_of_job(claims, job.ref, decision, stamp, annotations=annotations, condition=CLAIM_NOMINATED))
