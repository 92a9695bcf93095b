"""Who has a place that came to nothing, and could have another: its pod is made anew, or its job routed anew."""

from __future__ import annotations

from collections.abc import Iterator

from strata.cluster import jobs
from strata.cluster.actions import Action, Note, Patch, Remove
from strata.cluster.admission.claims import CLAIM, claim_of_pod
from strata.cluster.book import Book
from strata.cluster.crd.compute_claim import pascal
from strata.cluster.kinds import POD, Object, annotations_of, meta
from strata.cluster.router import choose
from strata.cluster.waiting import is_managed, is_queued, job_claim, named_claim, ref_of
from strata.decision import Reason
from strata.errors import BadFile


def made_anew(book: Book, pod: Object, profile: str) -> Iterator[Action]:
    """Yield what has a pod's owner make another, where it has one and there is room."""
    if not any(owner.get("controller") for owner in meta(pod).get("ownerReferences") or ()):
        return
    try:
        claim = named_claim(book.claims, pod, "Pod") if CLAIM in annotations_of(pod) else claim_of_pod(pod)
    except BadFile:  # a claim that went, or was changed, meanwhile: another pod would be refused
        return
    if choose(book.index, claim, book.profiles).placement is not None:
        ref = ref_of(pod, POD)
        reason = Reason("made-anew", ref.name, {"profile": profile})
        yield Note(ref, pascal(reason.token), str(reason))
        yield Remove(ref)


def held_back(book: Book, gang: str) -> Iterator[Action]:
    """Yield what suspends a job of whose pods none can be bound, where there is room: it is routed anew then.

    With a pod that is bound it would lose work; Kueue's jobs are Kueue's to hold back.
    """
    job = book.jobs.get(gang)
    is_ours = job is not None and is_managed(job) and not is_queued(job)
    if job is None or not is_ours or jobs.is_suspended(job) or not book.unbound.keys() >= set(book.pods_of(gang)):
        return
    try:
        claim = job_claim(job, book.claims)
    except BadFile:  # it would wait, and be told so, where it may still get its place here
        return
    if choose(book.index, claim, book.profiles).placement is not None:
        kind = jobs.kind_of(job)
        assert kind is not None, "only kinds with suspend are kept"
        ref, reason = ref_of(job, kind), Reason("gang-overtaken", meta(job)["name"], {})
        version = str(meta(job).get("resourceVersion") or "")
        yield Patch(ref, jobs.suspension(job, wanted=True), resource_version=version)
        yield Note(ref, pascal(reason.token), str(reason))
