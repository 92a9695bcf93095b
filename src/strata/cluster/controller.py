"""What the controller wants done: jobs that wait are routed and let go, or told why not. Pure but for its memory.

One `step` looks at everything that waits, in order of priority and age; what it places is taken at once, so that
two jobs of one step never share a device. A job that fits nowhere does not hold back smaller ones behind it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strata.cluster import jobs, kinds
from strata.cluster.actions import Action, Apply, Note, Patch, Ref, Remove
from strata.cluster.admission.claims import claim_of_pod
from strata.cluster.admission.inject import release
from strata.cluster.affinity import on_nodes
from strata.cluster.annotations import PREFIX
from strata.cluster.book import Book, job_placement
from strata.cluster.crd.compute_claim import claim_status, pascal, spec_of
from strata.cluster.kinds import annotations_of, meta
from strata.cluster.placed import CHECKPOINT, FIRST, GANG, MANAGED, PER_JOB, PLACEMENT, encode, nodes_of
from strata.cluster.router import choose
from strata.cluster.snapshot import Placement
from strata.cluster.waiting import Waiting, waiting_jobs, waiting_pods
from strata.cluster.why import decide
from strata.decision import Decision, Reason, Trust
from strata.errors import BadFile, StrataError

OFFER: Final = PREFIX + "offer"
"""Annotation of a job: what it could have instead of what it was written for, if it consents."""
CHECKPOINT_DIR: Final = PREFIX + "checkpoint-dir"
"""Annotation of a job: the folder it saves to, by the path its pods and the controller know it under."""


@dataclass(frozen=True, slots=True)
class Policy:
    """explain_every_s: how often a job that still fits nowhere is told every node's reason anew.

    assume_s: how long a place is held for a job that was let go and does not show it. elsewhere_after_s: how long
    a pod waits behind its gate before its owner is made to make another, for a kind of card that has room.
    """

    explain_every_s: float = 30.0
    assume_s: float = 30.0
    elsewhere_after_s: float = 60.0


@dataclass(slots=True)
class _Told:
    """What a waiting object was told last, and when; when it was seen first."""

    since_s: float
    at_s: float = float("-inf")
    what: tuple[Any, ...] = ()


@dataclass
class Controller:
    """checkpoint_of: the newest complete checkpoint in a folder, empty where there is none; raises StrataError."""

    policy: Policy = field(default_factory=Policy)
    checkpoint_of: Callable[[str], str] = lambda folder: ""
    _told: dict[str, _Told] = field(default_factory=dict)

    @property
    def waiting(self) -> int:
        """How many waited at the last step."""
        return len(self._told)

    def step(self, book: Book, now_s: float, *, stamp: str) -> Iterator[Action]:
        """Yield what to do now. stamp: the time as the API server writes it.

        Actions on one job come in order, and the later ones mean nothing if the first fails.
        """
        book.expire(now_s)
        everyone = sorted(
            [*waiting_jobs(book.jobs, book.claims), *waiting_pods(book.gated)], key=lambda one: one.order
        )
        self._told = {one.gang: self._told.get(one.gang) or _Told(now_s) for one in everyone}
        hopeless: set[str] = set()
        for one in everyone:
            yield from self._one(book, one, now_s, stamp, hopeless)

    def _one(self, book: Book, one: Waiting, now_s: float, stamp: str, hopeless: set[str]) -> Iterator[Action]:
        told = self._told[one.gang]
        if book.is_assumed(one.gang):
            return  # it was let go, and the watch lags; a second answer would take the first one's place
        if one.claim is None:
            yield from self._tell(book, one, told, now_s, _refused(one), stamp)
            return
        if one.ref.kind.kind != "Pod" and (reset := jobs.start_reset(one.obj)):
            if jobs.is_quiet(one.obj):
                yield Patch(one.ref, reset, "status")
            return
        nameless = str(replace(one.claim, name="", namespace="", priority=0))
        # Places only get fewer within a step: who asks for the same as somebody who got nothing gets nothing.
        choice = None if nameless in hopeless else choose(book.index, one.claim, book.profiles)
        if choice is None or choice.placement is None:
            hopeless.add(nameless)
            is_due = now_s - told.at_s >= self.policy.explain_every_s
            if is_due or (choice is not None and choice.offer is not None and told.what[:1] != ("ask",)):
                yield from self._explain(book, one, told, now_s, stamp)
            yield from self._elsewhere(book, one, told, now_s)
            return
        decision = decide(book.index, one.claim, book.profiles)
        placement = decision.choice
        assert placement is not None, "it was just found"
        book.assume(one.gang, placement, until_s=now_s + self.policy.assume_s)
        checkpoint, trouble = self._checkpoint(one)
        yield self._release(one, placement, checkpoint)
        if trouble is not None:
            yield Note(one.ref, pascal(trouble.token), str(trouble), is_warning=True)
        yield from self._tell(book, one, told, now_s, decision, stamp)

    def _explain(self, book: Book, one: Waiting, told: _Told, now_s: float, stamp: str) -> Iterator[Action]:
        assert one.claim is not None, "only what can be read is explained"
        decision = decide(book.index, one.claim, book.profiles)
        yield from self._tell(book, one, told, now_s, decision, stamp)
        offered = annotations_of(one.obj).get(OFFER, "")
        offer = _offer(decision)
        if offer != offered and one.ref.kind.kind != "Pod":
            yield Patch(one.ref, {"metadata": {"annotations": {OFFER: offer or None}}})

    def _tell(
        self, book: Book, one: Waiting, told: _Told, now_s: float, decision: Decision[Placement], stamp: str
    ) -> Iterator[Action]:
        """Write a decision into the claim's status, and an event where the answer is another than before."""
        told.at_s = now_s
        first = decision.reasons[0]
        what = ("ask" if first.token == "substitution-wanted" else first.token, str(first))
        if one.ref.kind.kind != "Pod":
            yield from _claim(book, one, decision, stamp)
        if what != told.what:
            told.what = what
            yield Note(one.ref, pascal(first.token), str(first), is_warning=decision.choice is None)

    def _checkpoint(self, one: Waiting) -> tuple[str, Reason | None]:
        """Return what a job goes on from, empty where there is nothing, and what is wrong with its folder."""
        folder = annotations_of(one.obj).get(CHECKPOINT_DIR, "")
        try:
            return (self.checkpoint_of(folder) if folder else ""), None
        except StrataError as error:
            return "", Reason("checkpoint-unknown", folder[:200], {"what": str(error)[:500]})

    def _release(self, one: Waiting, placement: Placement, checkpoint: str) -> Patch:
        version = str(meta(one.obj).get("resourceVersion") or "")
        if one.ref.kind.kind == "Pod":
            body = jobs.merge_patch(one.obj, release(one.obj, placement))
            return Patch(one.ref, body, resource_version=version)
        try:
            before = job_placement(one.obj)
        except BadFile:  # somebody wrote into it; it is written anew
            before = None
        old = nodes_of(before.pods) if before else ()
        templates = [
            _template(one, each, placement, old=old, checkpoint=checkpoint) if each.has_devices else each.template
            for each in jobs.pod_sets(one.obj)
        ]
        body = jobs.with_templates(one.obj, templates)
        _merge(body, jobs.suspension(one.obj, wanted=False))
        if OFFER in annotations_of(one.obj):
            _merge(body, {"metadata": {"annotations": {OFFER: None}}})
        return Patch(one.ref, body, resource_version=version)

    def _elsewhere(self, book: Book, one: Waiting, told: _Told, now_s: float) -> Iterator[Action]:
        """Have a gated pod made anew where another kind of card has room: what was injected cannot be changed."""
        owners = meta(one.obj).get("ownerReferences") or ()
        is_replaced = any(owner.get("controller") for owner in owners)
        if one.ref.kind.kind != "Pod" or not is_replaced or now_s - told.since_s < self.policy.elsewhere_after_s:
            return
        assert one.claim is not None, "only what can be read gets here"
        if choose(book.index, claim_of_pod(one.obj), book.profiles).placement is not None:
            told.since_s = now_s
            reason = Reason("made-anew", one.ref.name, {"profile": one.claim.profile})
            yield Note(one.ref, pascal(reason.token), str(reason))
            yield Remove(one.ref)


def _template(
    one: Waiting,
    each: jobs.PodSet,
    placement: Placement,
    *,
    old: Sequence[str],
    checkpoint: str,
) -> dict[str, Any]:
    """Return a template with its way: only what the API server lets be changed while a job is suspended.

    The rest the webhook adds to each pod, by the annotation, and gives it up with the pod.
    """
    template: dict[str, Any] = copy.deepcopy(dict(each.template))
    metadata = template.setdefault("metadata", {})
    labels, annotations = dict(metadata.get("labels") or {}), dict(metadata.get("annotations") or {})
    labels[MANAGED] = "true"
    for key, value in annotations_of(one.obj).items():
        if key.startswith(PREFIX) and key != OFFER:
            annotations.setdefault(key, value)
    annotations |= {PLACEMENT: encode(placement), GANG: one.gang}
    said: Mapping[str, str] = {
        FIRST: str(each.first) if each.first else "",
        PER_JOB: str(each.per_job) if each.per_job else "",
        CHECKPOINT: checkpoint,
    }
    for key, value in said.items():
        annotations.pop(key, None)
        if value:
            annotations[key] = value
    metadata["labels"], metadata["annotations"] = labels, annotations
    spec = template.setdefault("spec", {})
    spec["affinity"] = on_nodes(spec, nodes_of(placement.pods), instead_of=old)
    return template


def _claim(book: Book, one: Waiting, decision: Decision[Placement], stamp: str) -> Iterator[Action]:
    """Write what was decided about a job into a ComputeClaim of its own, which goes when the job goes."""
    ref = Ref(kinds.COMPUTE_CLAIM, claim_name(one.ref), one.ref.namespace)
    there = book.claims.get(f"{ref.namespace}/{ref.name}") or {}
    annotations = annotations_of(one.obj)
    head = {"apiVersion": ref.kind.api_version, "kind": ref.kind.kind}
    owner = {"apiVersion": one.ref.kind.api_version, "kind": one.ref.kind.kind, "name": one.ref.name}
    metadata = {"name": ref.name, "namespace": ref.namespace}
    if one.claim is not None and not there:
        spec = spec_of(annotations)
        owned = {**metadata, "ownerReferences": [{**owner, "uid": one.ref.uid}]}
        yield Apply(ref, {**head, "metadata": owned, "spec": spec})
    if one.claim is None and not there:
        return  # what cannot be read cannot be written as a spec; the event says so
    generation = int(meta(there).get("generation") or 1)
    status = claim_status(decision, there.get("status"), now=stamp, generation=generation)
    if status != there.get("status"):
        yield Apply(ref, {**head, "metadata": metadata, "status": status}, "status")


def claim_name(job: Ref) -> str:
    """Return the name of the ComputeClaim that tells about a job."""
    return f"{job.kind.kind}-{job.name}".lower()[:253]


def _refused(one: Waiting) -> Decision[Placement]:
    reason = Reason("claim-unreadable", one.ref.name, {"why": one.fault})
    return Decision(None, (), (reason,), Trust.MEASURED, "", 0, 0.0)


def _offer(decision: Decision[Placement]) -> str:
    """Return what is offered in words, empty where nothing is."""
    wanted = next((one for one in decision.reasons if one.token == "substitution-wanted"), None)
    return f"{wanted.data['offer']} ({wanted.data['profile']})" if wanted else ""


def _merge(into: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if isinstance(into.get(key), dict) and isinstance(value, Mapping):
            _merge(into[key], value)
        else:
            into[key] = value
