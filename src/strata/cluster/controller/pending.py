"""Who waits for a place: suspended jobs of ours, and pods that were let in behind a gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from strata.cluster.api import jobs, kinds
from strata.cluster.api.actions import Ref, ref_of
from strata.cluster.api.jobs import is_managed, is_queued
from strata.cluster.api.kinds import Object, annotations_of, meta, name_of, namespace_of
from strata.cluster.api.placement_annotation import GANG
from strata.cluster.api.pod_claims import CLAIM, claim_of_gated, job_claim
from strata.cluster.scheduling.claim import Claim
from strata.errors import BadFile


@dataclass(frozen=True, slots=True)
class PendingWorkload:
    """One job or pod without a place. claim: None where it cannot be read; `fault` then says why.

    gang: its key in the book. of: the gang whose places a gated pod may have, empty for one that came alone.
    since: when it was made, as the API server writes it, for the order.
    asks: the same for all that ask for the same, whoever they are.
    """

    gang: str
    ref: Ref
    obj: Object
    claim: Claim | None
    fault: str = ""
    since: str = ""
    asks: str = ""
    of: str = ""

    @property
    def order(self) -> tuple[int, str, str]:
        """Priority first, then age, then name, so that the order never depends on the API server's."""
        return (-(self.claim.priority if self.claim else 0), self.since, self.gang)


def pending_jobs(
    all_jobs: Mapping[str, Object],
    claims: Mapping[str, Object],
    known: Mapping[str, PendingWorkload] | None = None,
) -> Iterator[PendingWorkload]:
    """Yield the jobs of ours that are suspended and not over, but those Kueue lets go.

    known: of before, by gang; what has not changed is not read again.
    """
    for gang, obj in all_jobs.items():
        if is_managed(obj) and not is_queued(obj) and jobs.is_suspended(obj) and not jobs.is_finished(obj):
            kind = jobs.kind_of(obj)
            assert kind is not None, "only kinds with suspend are kept"
            old = (known or {}).get(gang)
            if old is not None and old.obj is obj and not _names_claim(obj):
                yield old
            else:
                yield _waiting(gang, obj, kind, lambda job: job_claim(job, claims))


def pending_pods(
    gated: Mapping[str, Object], known: Mapping[str, PendingWorkload] | None = None
) -> Iterator[PendingWorkload]:
    """Yield the pods behind our gate, asking for what was injected: that can no longer be changed."""
    for pod in gated.values():
        gang = gang_of_gated(pod)
        old = (known or {}).get(gang)
        if old is not None and old.obj is pod:
            yield old
        else:
            annotated_gang = annotations_of(pod).get(GANG) or gang
            workload = _waiting(gang, pod, kinds.POD, claim_of_gated)
            yield workload if annotated_gang == gang else replace(workload, of=annotated_gang)


def gang_of_gated(pod: Object) -> str:
    """Return what a gated pod is called in the book while it waits: by itself, whatever job made it."""
    annotated_gang = annotations_of(pod).get(GANG, "")
    return annotated_gang if annotated_gang.startswith("Pod/") else f"Pod/{namespace_of(pod)}/{name_of(pod)}"


def _waiting(gang: str, obj: Object, kind: kinds.ObjectKind, read: Callable[[Object], Claim]) -> PendingWorkload:
    ref, since = ref_of(obj, kind), str(meta(obj).get("creationTimestamp") or "")
    try:
        claim = read(obj)
    except BadFile as error:
        return PendingWorkload(gang, ref, obj, None, str(error), since)
    return PendingWorkload(
        gang, ref, obj, claim, "", since, str(replace(claim, name="", namespace="", priority=0))
    )


def _names_claim(job: Object) -> bool:
    return any(CLAIM in annotations_of(obj) for obj in (job, *(each.template for each in jobs.pod_sets(job))))
