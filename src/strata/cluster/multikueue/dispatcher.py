"""The dispatcher's cycle: workloads that wait for MultiKueue get clusters nominated, one after the other.

Kueue sends a copy to every nominated cluster, and the first that admits it has it. So the best is nominated alone;
where it does not admit within a round it has refused, which is learned from, and the next is nominated beside it.
What a cluster was offered counts as taken there until the round is over.

References
----------
kubernetes-sigs/kueue keps/693-multikueue (External dispatcher), pkg/workload/workload.go
(ShouldSkipClusterNomination); read at ff69552e (0.19): clusters may be nominated while the check is Pending and no
cluster has the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strata.cluster.api.actions import Action, Patch, event, ref_of
from strata.cluster.api.applier import Failure
from strata.cluster.api.jobs import Job
from strata.cluster.api.kinds import WORKLOAD, Object, annotations_of, is_true, meta, name_of
from strata.cluster.cache.cache import ClusterCache
from strata.cluster.cache.informer import Informer
from strata.cluster.kueue.workload import gang_of, request_of
from strata.cluster.multikueue import workloads as multikueue
from strata.cluster.multikueue.experience import Experience, what_it_says
from strata.cluster.multikueue.nomination import RUN_S, ClusterOffer, OfferRefusal, Ranking, WorkerView, rank
from strata.cluster.multikueue.refusals import refusals_of
from strata.cluster.multikueue.worker_clusters import WorkerCluster, arrival, data_of
from strata.cluster.scheduling.index import Index, has_room
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.decision import Reason
from strata.errors import BadFile
from strata.fleet.fleet import Fleet

ROUND_S: Final = 60.0
"""How long a cluster has to admit what it was offered until the next is offered it, too."""
SAID_S: Final = 10.0
"""The same, where the cluster's own Kueue says that it has no room."""
AGAIN_S: Final = 5.0
"""How often a workload without an offer is looked at."""
WAIT_S: Final = 300.0
"""How long room is waited for until clusters that have the cards may queue it: they might preempt others."""


@dataclass(slots=True)
class _Round:
    """What a workload is offered: by cluster, with the place that is counted on. judged: those that refused."""

    since_s: float
    offers: dict[str, ClusterOffer]
    judged: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A worker cluster in this cycle. index: None where nobody tells of its devices, `unseen` says why."""

    index: Index | None
    profiles: Sequence[RuntimeProfile] = ()
    workloads: Mapping[str, Object] = field(default_factory=dict)
    unseen: str = ""


_UNKNOWN: Final = _Seen(None, unseen="no domain of the fleet file has it as its context")


@dataclass
class Dispatcher:
    """workers: the clusters whose devices are followed, by the name of their MultiKueueCluster.

    writes_claims: the API server has ComputeClaims. What it remembers it reads from the Workloads in its first
    cycle: who leads anew begins with another dispatcher.
    """

    fleet: Fleet
    known: Mapping[str, WorkerCluster]
    workers: Mapping[str, Informer]
    writes_claims: bool = True
    experience: Experience = field(default_factory=Experience)
    _has_read: bool = False
    _refused: dict[str, dict[str, OfferRefusal]] = field(default_factory=dict)
    _rounds: dict[str, _Round] = field(default_factory=dict)
    _since_s: dict[str, float] = field(default_factory=dict)
    _looked_s: dict[str, float] = field(default_factory=dict)
    _has: dict[str, str] = field(default_factory=dict)

    def cycle(
        self,
        cache: ClusterCache,
        now_s: float,
        *,
        apply: Callable[[Iterable[Action]], Sequence[Failure]],
        stamp: str,
        lock: AbstractContextManager[Any],
    ) -> None:
        """Nominate clusters for what waits, the oldest first. stamp: as the API server writes the time."""
        with lock:
            workloads, clusters = dict(cache.workloads), dict(cache.multikueue_clusters)
            lists = multikueue.lists_of(cache.checks, cache.multikueue_configs)
            jobs, claims = dict(cache.jobs), dict(cache.claims)
        queue = {key: workload for key, workload in workloads.items() if multikueue.waits(workload, lists.keys())}
        if not self._has_read:
            self.experience, self._has_read = Experience.of(workloads.values(), now_s=now_s), True
        self._learn(workloads, queue, now_s)
        if not queue:
            return
        seen = {name: _look(worker) for name, worker in self.workers.items()}
        every = {name for names in lists.values() for name in names}
        away = {name: why for name in every if (why := multikueue.fault(clusters.get(name)))}
        indexes = {name: each.index for name, each in seen.items() if each.index is not None}
        to_decide = []
        for key, workload in sorted(queue.items(), key=lambda item: (meta(item[1])["creationTimestamp"], item[0])):
            if self._is_open(key, workload, seen, away, now_s):
                _hold(indexes, self._rounds[key])
            elif now_s - self._looked_s.get(key, float("-inf")) >= AGAIN_S or key in self._rounds:
                to_decide.append((key, workload))
        for key, workload in to_decide:
            self._looked_s[key] = now_s
            names = multikueue.clusters_of(workload, lists)
            job = jobs.get(gang_of(workload, workloads))
            views = [self._view(name, workload, away, seen, indexes.get(name)) for name in names]
            try:
                ranking = self._rank(workload, job, claims, views, now_s)
            except BadFile as error:
                why = "; ".join(str(fault) for fault in error.faults)
                ranking = Ranking((), (Reason("claim-unreadable", name_of(workload), {"why": why}),), ())
            round_ = self._next(key, workload, ranking, seen, away, now_s)
            _hold(indexes, round_)
            before = multikueue.nominated(workload)
            reasons = tuple(_reasons(ranking, round_))
            refusals = refusals_of(workload) | self._refused.get(key, {})
            actions = multikueue.report(workload, list(round_.offers), reasons, refusals=refusals, stamp=stamp)
            if self.writes_claims and job is not None and actions:
                actions += multikueue.report_in_claim(claims, job, list(round_.offers), reasons, stamp=stamp)
            if set(round_.offers) - set(before):
                actions.append(event(ref_of(workload, WORKLOAD), reasons[0]))
            if any(isinstance(failure.action, Patch) for failure in apply(actions)):
                self._rounds.pop(key, None)  # it has changed, or is another's by now: it is looked at anew

    def _rank(
        self,
        workload: Object,
        job: Job | None,
        claims: Mapping[str, Object],
        views: list[WorkerView],
        now_s: float,
    ) -> Ranking:
        """Return in which order a workload can be offered. Raises BadFile for what cannot be read."""
        annotations = annotations_of(workload) if job is None else job.annotations
        data = data_of(annotations, where=f"workload {name_of(workload)}")
        if data is not None:
            ways = {name: arrival(self.fleet, cluster, data) for name, cluster in self.known.items()}
            views = [replace(view, arrival=ways.get(view.name), has_data=True) for view in views]
        run_s = float((workload.get("spec") or {}).get("maximumExecutionTimeSeconds") or RUN_S)
        claim = request_of(workload, None if job is None else job.obj, claims)
        return rank(claim, views, run_s=run_s, now_s=now_s)

    def _view(
        self, name: str, workload: Object, away: Mapping[str, str], seen: Mapping[str, _Seen], index: Index | None
    ) -> WorkerView:
        cluster, worker = self.known.get(name), seen.get(name, _UNKNOWN)
        return WorkerView(
            name,
            index,
            worker.profiles,
            {} if cluster is None else cluster.usd_per_device_hour,
            chance=self.experience.chance(name),
            refusal=self.experience.refusal(name, multikueue.queue_of(workload)),
            fault=away.get(name, ""),
            unseen=worker.unseen,
        )

    def _is_open(
        self, key: str, workload: Object, seen: Mapping[str, _Seen], away: Mapping[str, str], now_s: float
    ) -> bool:
        """Return whether clusters still have time to answer to what they were offered."""
        round_ = self._rounds.get(key)
        if round_ is None or not round_.offers or set(round_.offers) != set(multikueue.nominated(workload)):
            return False
        if round_.offers.keys() & away.keys():
            return False
        unjudged = round_.offers.keys() - round_.judged
        have_said = bool(unjudged) and all(_says(seen, name, key) for name in unjudged)
        return now_s - round_.since_s < (SAID_S if have_said else ROUND_S)

    def _next(
        self,
        key: str,
        workload: Object,
        ranking: Ranking,
        seen: Mapping[str, _Seen],
        away: Mapping[str, str],
        now_s: float,
    ) -> _Round:
        """Return what is offered in the round that begins: what was before, and the best of the others."""
        before = self._rounds.get(key)
        old = before.offers if before else _adopted(workload)
        offers = {name: offer for name, offer in old.items() if name not in away}
        lately = {name for name, refusal in refusals_of(workload).items() if now_s < refusal.until_s}
        judged = set(before.judged) if before else lately & offers.keys()
        is_over = before is not None and now_s - before.since_s >= SAID_S
        for name, offer in offers.items() if is_over else ():
            if name not in judged:
                why = _says(seen, name, key) or f"did not admit it within {ROUND_S:.0f} s"
                queue = multikueue.queue_of(workload)
                refusal = self.experience.refused(name, queue, devices=offer.devices, why=why, now_s=now_s)
                self._refused.setdefault(key, {})[name] = refusal
                judged.add(name)
        more = [offer for offer in ranking.offers if offer.cluster not in offers]
        if more and (is_over or offers.keys() <= judged):
            offers[more[0].cluster] = more[0]
        elif not offers and now_s - self._since_s[key] >= WAIT_S:
            offers |= {name: ClusterOffer(name, Reason("cluster-queues", name)) for name in ranking.hopeful}
        offers = dict(list(offers.items())[: multikueue.MOST])
        since_s = before.since_s if before and offers.keys() == before.offers.keys() and not is_over else now_s
        self._rounds[key] = _Round(since_s, offers, judged & offers.keys())
        return self._rounds[key]

    def _learn(self, workloads: Mapping[str, Object], queue: Mapping[str, Object], now_s: float) -> None:
        """Note which clusters took what they were offered, and which gave it back."""
        for key in self._rounds.keys() - queue.keys():
            round_, workload = self._rounds.pop(key), workloads.get(key)
            cluster = multikueue.cluster_of(workload) if workload is not None else ""
            if workload is not None and cluster in round_.offers:
                self.experience.took(cluster, multikueue.queue_of(workload))
                self._has[key] = cluster
        for key, cluster in list(self._has.items()):
            workload = workloads.get(key)
            if workload is None or is_true(workload, "Finished"):
                del self._has[key]
            elif not multikueue.cluster_of(workload):
                del self._has[key]
                if why := multikueue.why_it_came_back(workload):
                    queue_name = multikueue.queue_of(workload)
                    refusal = self.experience.refused(cluster, queue_name, devices=1, why=why, now_s=now_s)
                    self._refused.setdefault(key, {})[cluster] = refusal
        self._refused = {key: refusals for key, refusals in self._refused.items() if key in workloads}
        self._since_s = {key: self._since_s.get(key, now_s) for key in queue}
        self._looked_s = {key: at_s for key, at_s in self._looked_s.items() if key in queue}


def _look(worker: Informer) -> _Seen:
    if why := worker.unready():
        return _Seen(None, unseen=why)
    with worker.lock:
        return _Seen(worker.cache.index, worker.cache.profiles, dict(worker.cache.workloads))


def _says(seen: Mapping[str, _Seen], cluster: str, key: str) -> str:
    worker = seen.get(cluster)
    return "" if worker is None else what_it_says(worker.workloads.get(key))


def _adopted(workload: Object) -> dict[str, ClusterOffer]:
    """Return what somebody nominated before us: who led then."""
    names = multikueue.nominated(workload)
    return {name: ClusterOffer(name, Reason("cluster-adopted", name)) for name in names}


def _hold(indexes: dict[str, Index], round_: _Round) -> None:
    """Count the places of offers as taken, where they still are free; of those that were refused no longer."""
    for offer in round_.offers.values():
        index = indexes.get(offer.cluster)
        if (
            offer.cluster not in round_.judged
            and index is not None
            and offer.placement is not None
            and has_room(index, offer.placement)
        ):
            indexes[offer.cluster] = index.placed(offer.placement)


def _reasons(ranking: Ranking, round_: _Round) -> Iterator[Reason]:
    """Yield what is nominated and why, then who comes next, then who does not."""
    if not round_.offers and not ranking.refusals:
        yield Reason("no-cluster", "", {})
    yield from (offer.reason for offer in round_.offers.values())
    for offer in ranking.offers:
        if offer.cluster not in round_.offers:
            yield Reason("cluster-next", offer.cluster, {"what": str(offer.reason).partition(": ")[2]})
    yield from (reason for reason in ranking.refusals if reason.subject not in round_.offers)
