"""What a job is told: a ComputeClaim of its own with the decision and every node's reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from strata.cluster.api import kinds
from strata.cluster.api.actions import Action, Apply, Ref
from strata.cluster.api.crd.compute_claim import ROUTED, claim_status, spec_of
from strata.cluster.api.kinds import Object, annotations_of, meta
from strata.cluster.controller.pending import PendingWorkload
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Decision, Reason, Trust


def claim_of_job(
    claims: Mapping[str, Object], workload: PendingWorkload, decision: Decision[Placement], stamp: str
) -> Iterator[Action]:
    """Write what was decided about a job into a ComputeClaim of its own, which goes when the job goes."""
    ref = Ref(kinds.COMPUTE_CLAIM, claim_name(workload.ref), workload.ref.namespace)
    there = claims.get(f"{ref.namespace}/{ref.name}") or {}
    annotations = annotations_of(workload.obj)
    head = {"apiVersion": ref.kind.api_version, "kind": ref.kind.kind}
    owner = {
        "apiVersion": workload.ref.kind.api_version,
        "kind": workload.ref.kind.kind,
        "name": workload.ref.name,
    }
    metadata = {"name": ref.name, "namespace": ref.namespace}
    if workload.claim is not None and not there:
        spec = spec_of(annotations)
        owned = {**metadata, "ownerReferences": [{**owner, "uid": workload.ref.uid}]}
        yield Apply(ref, {**head, "metadata": owned, "spec": spec})
    if workload.claim is None and not there:
        return  # what cannot be read cannot be written as a spec; the event says so
    generation = int(meta(there).get("generation") or 1)
    status = claim_status(decision, there.get("status"), now=stamp, generation=generation)
    if status != there.get("status"):
        yield Apply(ref, {**head, "metadata": metadata, "status": status}, "status")


def claim_name(job: Ref) -> str:
    """Return the name of the ComputeClaim that tells about a job."""
    return f"{job.kind.kind}-{job.name}".lower()[:253]


def says_routed(claims: Mapping[str, Object], job: Ref) -> bool:
    """Return whether a job's claim says that it has its places; where there is none, nothing is wrong."""
    claim = claims.get(f"{job.namespace}/{claim_name(job)}")
    conditions = ((claim or {}).get("status") or {}).get("conditions") or ()
    return claim is None or any(
        (condition.get("type"), condition.get("status")) == (ROUTED, "True") for condition in conditions
    )


def just(reason: Reason, placement: Placement | None = None) -> Decision[Placement]:
    """Return a decision of which nothing else is known."""
    return Decision(placement, (), (reason,), Trust.MEASURED, "", 0, 0.0)


def offer_of(decision: Decision[Placement]) -> str:
    """Return what is offered in words, empty where nothing is."""
    wanted = next((reason for reason in decision.reasons if reason.token == "substitution-wanted"), None)
    return f"{wanted.data['offer']} ({wanted.data['profile']})" if wanted else ""
