"""In which order a gang is offered to worker clusters: pure, from what is known of each.

The router that each cluster runs is asked about the cluster's own devices, so that a cluster is offered what it
could place now. Among those that could, cards the job was written for go first, then who costs less: what the
devices cost while the job runs and while its data comes, what sending that costs, and all of it over the share of
offers that the cluster took so far, which is what has to be tried on average until one does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from strata import units
from strata.cluster.api.kinds import moment
from strata.cluster.multikueue.worker_clusters import HERE, Arrival
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.explain import why_waiting
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Reason

RUN_S: Final = 3600.0
"""How long a job runs that does not say so (`spec.maximumExecutionTimeSeconds` of its Workload): assumed."""


@dataclass(frozen=True, slots=True)
class OfferRefusal:
    """A cluster did not take a gang of so many devices, and why; until when none as large is offered to it."""

    devices: int
    why: str
    until_s: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker cluster at a moment. index: None where nobody tells of its devices, `unseen` then says why.

    fault: why nothing can be offered at all, empty where it can. arrival: of the job's data, None where unknown;
    has_data: the job says where it has some.
    chance: the share of offers that it takes.
    """

    name: str
    index: Index | None = None
    profiles: Sequence[RuntimeProfile] = ()
    usd_per_device_hour: Mapping[str, float] = field(default_factory=dict)
    arrival: Arrival | None = HERE
    has_data: bool = False
    chance: float = 0.5
    refusal: OfferRefusal | None = None
    fault: str = ""
    unseen: str = ""


@dataclass(frozen=True, slots=True)
class ClusterOffer:
    """An offer that can be made. placement: what the cluster would give, None where nobody knows."""

    cluster: str
    reason: Reason
    placement: Placement | None = None
    is_substitute: bool = False
    cost: float = math.inf

    @property
    def devices(self) -> int:
        """Devices of all pods, 0 where nobody knows."""
        return 0 if self.placement is None else self.placement.devices_per_pod * len(self.placement.pods)


@dataclass(frozen=True, slots=True)
class Ranking:
    """offers: the best first. refusals: of clusters that get none. hopeful: clusters with cards, without room."""

    offers: tuple[ClusterOffer, ...]
    refusals: tuple[Reason, ...]
    hopeful: tuple[str, ...]


def rank(claim: Claim | None, views: Sequence[WorkerView], *, run_s: float, now_s: float) -> Ranking:
    """Return which clusters a gang can be offered to. claim: None for one that asks for nothing of ours."""
    offers: list[ClusterOffer] = []
    refusals: list[Reason] = []
    hopeful: list[str] = []
    prices = [price for view in views for price in view.usd_per_device_hour.values()]
    dearest = max(prices, default=None)
    slowest = max((view.arrival.seconds for view in views if view.arrival is not None), default=0.0)
    for view in views:
        if view.fault:
            refusals.append(Reason("cluster-away", view.name, {"why": view.fault}))
        elif claim is None:
            offers.append(ClusterOffer(view.name, Reason("cluster-any", view.name)))
        elif view.index is None:
            offers.append(ClusterOffer(view.name, Reason("cluster-unseen", view.name, {"why": view.unseen})))
        else:
            evaluation = evaluate(view.index, claim, view.profiles)
            placement, demand = evaluation.choice.placement, evaluation.choice.demand
            if placement is None or demand is None:
                refusals.append(Reason("cluster-full", view.name, {"why": str(why_waiting(evaluation))}))
                hopeful += [view.name] if evaluation.demands else []
                continue
            offer = _offer(view, placement, run_s=run_s, dearest=dearest, slowest_s=slowest)
            refusal = view.refusal
            if refusal is not None and now_s < refusal.until_s and offer.devices >= refusal.devices:
                data = {"devices": refusal.devices, "why": refusal.why, "until": moment(refusal.until_s)}
                refusals.append(Reason("cluster-refused", view.name, data))
                continue
            offers.append(
                ClusterOffer(view.name, offer.reason, placement, demand.is_substitute, offer.cost / view.chance)
            )
    # Those nobody knows of are tried last, where they cost nobody a better place.
    offers.sort(key=lambda offer: (offer.placement is None, offer.is_substitute, offer.cost))
    return Ranking(tuple(offers), tuple(refusals), tuple(hopeful))


def _offer(
    view: WorkerView, placement: Placement, *, run_s: float, dearest: float | None, slowest_s: float
) -> ClusterOffer:
    """Return an offer at its cost: in dollars, in device-hours where no price is known anywhere.

    Where only others have a price, the dearest of them counts; so does the slowest way for data without a link.
    """
    devices = placement.devices_per_pod * len(placement.pods)
    price = view.usd_per_device_hour.get(placement.model)
    arrival = view.arrival or Arrival(slowest_s, 0.0)
    rate = devices * (price if price is not None else 1.0 if dearest is None else dearest)
    cost = rate * (run_s + arrival.seconds) / 3600 + arrival.usd
    shown = f"{cost:.3g} device-hours" if dearest is None else units.show_usd(cost)
    shown += "" if price is not None or dearest is None else ", its price unknown"
    data = {
        "pods": len(placement.pods),
        "devices": placement.devices_per_pod,
        "model": placement.model,
        "level": placement.level,
        "cost": shown,
        "run": units.show_time(run_s),
        "way": _way(view) if view.has_data else "",
        "chance": view.chance,
    }
    return ClusterOffer(view.name, Reason("cluster-offered", view.name, data), placement, cost=cost)


def _way(view: WorkerView) -> str:
    if view.arrival is None:
        return ", no link to its data is known"
    return (
        f", its data takes {units.show_time(view.arrival.seconds)}" if view.arrival.seconds else ", its data there"
    )
