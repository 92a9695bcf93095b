"""What a job is told: a ComputeClaim of its own with the decision and every node's reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from strata.cluster.api import kinds
from strata.cluster.api.actions import Action, Apply, Ref
from strata.cluster.api.crd.compute_claim import ROUTED, claim_status, spec_of
from strata.cluster.api.kinds import Object, is_true, meta
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Decision, Reason, Trust


def claim_of_job(
    claims: Mapping[str, Object],
    job: Ref,
    decision: Decision[Any],
    stamp: str,
    *,
    annotations: Mapping[str, str] | None = None,
    condition: str = ROUTED,
) -> Iterator[Action]:
    """Yield what writes a decision about a job into a ComputeClaim of its own, which goes when the job goes.

    condition: what the decision is about. annotations: the job's; without them no claim is made where there is
    none, since they are its spec.
    """
    ref = Ref(kinds.COMPUTE_CLAIM, claim_name(job), job.namespace)
    there = claims.get(f"{ref.namespace}/{ref.name}")
    if there is None:
        if annotations is None:
            return
        owner = {"apiVersion": job.kind.api_version, "kind": job.kind.kind, "name": job.name, "uid": job.uid}
        yield Apply(ref, {"metadata": {"ownerReferences": [owner]}, "spec": spec_of(annotations)})
    before = (there or {}).get("status")
    generation = int(meta(there or {}).get("generation") or 1)
    status = claim_status(decision, before, now=stamp, generation=generation, condition=condition)
    if status != before:
        yield Apply(ref, {"status": status}, "status")


def claim_name(job: Ref) -> str:
    """Return the name of the ComputeClaim that tells about a job."""
    return f"{job.kind.kind}-{job.name}".lower()[:253]


def says_routed(claims: Mapping[str, Object], job: Ref) -> bool:
    """Return whether a job's claim says that it has its places; where there is none, nothing is wrong."""
    claim = claims.get(f"{job.namespace}/{claim_name(job)}")
    return claim is None or is_true(claim, ROUTED)


def just(reason: Reason, placement: Placement | None = None) -> Decision[Placement]:
    """Return a decision of which nothing else is known."""
    return Decision(placement, (), (reason,), Trust.MEASURED, "", 0, 0.0)


def offer_of(decision: Decision[Placement]) -> str:
    """Return what is offered in words, empty where nothing is."""
    wanted = next((reason for reason in decision.reasons if reason.token == "substitution-wanted"), None)
    return f"{wanted.data['offer']} ({wanted.data['profile']})" if wanted else ""
