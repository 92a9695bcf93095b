"""A pod that comes alone: placed while the API server waits, from memory, or told what it should wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from strata.cluster.admission.review import Routed, answer
from strata.cluster.api.kinds import Object, annotations_of
from strata.cluster.api.placement_annotation import GANG
from strata.cluster.api.pod_claims import CLAIM, claim_of_pod, named_claim
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.informer import Informer
from strata.cluster.scheduling.conversion import PodDemand
from strata.cluster.scheduling.evaluation import Evaluation, evaluate
from strata.cluster.scheduling.explain import why_waiting
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.snapshot import Placement, PodPlace

ASSUME_S: Final = 15.0
"""How long a place is held for a pod that was let in and is not seen: a webhook after ours may have refused it."""


def reviewer(informer: Informer, *, server_minor: int, clock: Callable[[], float]) -> Callable[[Object], Object]:
    """Return what answers reviews beside an informer.

    Only a pod that comes alone waits for its lock: who holds it reads the news of thousands of nodes and pods, and
    the API server gives a review up after some seconds.
    """
    cache = informer.cache

    def route(pod: Object, is_dry_run: bool) -> Routed:
        with informer.lock:
            return route_single_pod(cache, pod, is_dry_run=is_dry_run, now_s=clock())

    def reviewed(review: Object) -> Object:
        profiles = {profile.name: profile for profile in cache.profiles}
        return answer(review, route=route, profiles=lambda: profiles, server_minor=server_minor)

    return reviewed


def route_single_pod(cache: ClusterCache, pod: Object, *, is_dry_run: bool, now_s: float) -> Routed:
    """Return where a pod goes, or what it waits for; its place is held unless it is a dry run. Raises BadFile."""
    cache.gangs.expire(now_s)
    claim = named_claim(cache.claims, pod, "Pod") if CLAIM in annotations_of(pod) else claim_of_pod(pod)
    evaluation = evaluate(cache.index, claim, cache.profiles)
    choice = evaluation.choice
    if choice.placement is not None:
        if not is_dry_run:
            cache.gangs.assume(annotations_of(pod)[GANG], choice.placement, until_s=now_s + ASSUME_S)
        return Routed(choice.placement)
    # Where no card could ever do, a model's own refusal says more than that nothing is free.
    is_refused = not choice.demands and choice.refusals
    reason = choice.refusals[0].reason if is_refused else why_waiting(evaluation)
    return Routed(None, next(_could_wait_for(evaluation), None), str(reason))


def _could_wait_for(evaluation: Evaluation) -> Iterator[Placement]:
    """Yield what some node could give the pod if it were free: the card it was written for first, then by fit."""
    for demand in sorted(evaluation.demands, key=lambda demand: (demand.is_substitute, -demand.fit, demand.model)):
        is_allowed = not demand.is_substitute or evaluation.claim.substitution == "allow"
        if is_allowed and _is_ever_enough(evaluation.index, demand):
            place = PodPlace("", (), demand.memory_bytes)
            yield Placement(
                demand.profile.name,
                (place,),
                demand.devices,
                float("inf"),
                model=demand.model,
                cores_share=demand.cores_share,
            )


def _is_ever_enough(index: Index, demand: PodDemand) -> bool:
    kinds = index.kinds.kinds
    return any(
        kinds[index.kind[row]].usable.bit_count() >= demand.devices for row in index.rows_of_model[demand.model]
    )
