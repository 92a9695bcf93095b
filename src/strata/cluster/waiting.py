"""Who waits for a place: suspended jobs of ours, and pods that were let in behind a gate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from strata.cluster import jobs, kinds
from strata.cluster.actions import Ref
from strata.cluster.admission.claims import CLAIM, allowed, claim_of_pod, claim_of_waiting
from strata.cluster.annotations import PREFIX
from strata.cluster.claim import Claim
from strata.cluster.crd.compute_claim import claim_of
from strata.cluster.kinds import Object, annotations_of, labels_of, meta, name_of, namespace_of
from strata.cluster.placed import GANG, MANAGED
from strata.errors import BadFile, Fault

GANG_SIZE: Final = PREFIX + "gang-size"
QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
"""Label of jobs that Kueue lets go."""


@dataclass(frozen=True, slots=True)
class Waiting:
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


def is_managed(obj: Object) -> bool:
    """Return whether an object is ours to place."""
    return labels_of(obj).get(MANAGED) == "true"


def is_queued(job: Object) -> bool:
    """Return whether Kueue lets a job go: then `queued.py` answers, and `suspend` is not ours."""
    return bool(labels_of(job).get(QUEUE_NAME))


def job_claim(obj: Object, claims: Mapping[str, Object]) -> Claim:
    """Return what a job asks for: a ComputeClaim it names, else its annotations and those of its first template.

    claims: ComputeClaims by `namespace/name`. Its pods are those of all its templates, unless it names a gang's
    size. Raises BadFile.
    """
    sets = [one for one in jobs.pod_sets(obj) if one.has_devices and one.pods]
    template: Mapping[str, Any] = sets[0].template if sets else {}
    said = {**annotations_of(template), **annotations_of(obj)}
    metadata = {"name": name_of(obj), "namespace": namespace_of(obj), "annotations": said}
    like = {"metadata": metadata, "spec": template.get("spec") or {}}
    if CLAIM in said:
        claim = named_claim(claims, like, str(obj.get("kind")))
        has_size = claim.pods > 1
    else:
        claim = claim_of_pod(like)
        has_size = GANG_SIZE in said
    return claim if has_size else replace(claim, pods=max(1, sum(one.pods for one in sets)))


def named_claim(claims: Mapping[str, Object], obj: Object, kind: str) -> Claim:
    """Return the claim that a pod, or a job as one, names, as its own. Raises BadFile."""
    name, namespace = annotations_of(obj)[CLAIM], namespace_of(obj)
    if f"{namespace}/{name}" not in claims:
        where = f"{kind} {namespace}/{name_of(obj)}"
        fault = Fault(where, f"there is no ComputeClaim {name[:80]!a} in namespace {namespace}", where=CLAIM)
        raise BadFile([fault], hint="kubectl get computeclaims")
    claim = claim_of(claims[f"{namespace}/{name}"])
    return replace(claim, name=name_of(obj), namespace=namespace, where=allowed(obj))


def waiting_jobs(
    all_jobs: Mapping[str, Object], claims: Mapping[str, Object], known: Mapping[str, Waiting] | None = None
) -> Iterator[Waiting]:
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


def waiting_pods(gated: Mapping[str, Object], known: Mapping[str, Waiting] | None = None) -> Iterator[Waiting]:
    """Yield the pods behind our gate, asking for what was injected: that can no longer be changed."""
    for pod in gated.values():
        gang = gang_of_waiting(pod)
        old = (known or {}).get(gang)
        if old is not None and old.obj is pod:
            yield old
        else:
            said = annotations_of(pod).get(GANG) or gang
            one = _waiting(gang, pod, kinds.POD, claim_of_waiting)
            yield one if said == gang else replace(one, of=said)


def gang_of_waiting(pod: Object) -> str:
    """Return what a gated pod is called in the book while it waits: by itself, whatever job made it."""
    said = annotations_of(pod).get(GANG, "")
    return said if said.startswith("Pod/") else f"Pod/{namespace_of(pod)}/{name_of(pod)}"


def ref_of(obj: Object, kind: kinds.ObjectKind) -> Ref:
    """Return an object's reference, in the version it was read in."""
    version = str(obj.get("apiVersion") or kind.api_version).rpartition("/")[2]
    return Ref(replace(kind, version=version), name_of(obj), namespace_of(obj), str(meta(obj).get("uid") or ""))


def _waiting(gang: str, obj: Object, kind: kinds.ObjectKind, read: Callable[[Object], Claim]) -> Waiting:
    ref, since = ref_of(obj, kind), str(meta(obj).get("creationTimestamp") or "")
    try:
        claim = read(obj)
    except BadFile as error:
        return Waiting(gang, ref, obj, None, str(error), since)
    return Waiting(gang, ref, obj, claim, "", since, str(replace(claim, name="", namespace="", priority=0)))


def _names_claim(job: Object) -> bool:
    return any(CLAIM in annotations_of(one) for one in (job, *(each.template for each in jobs.pod_sets(job))))
