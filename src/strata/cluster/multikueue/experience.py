"""What worker clusters did with offers so far: how often they took one, and what each refused lately.

Remembered by the dispatcher that leads; who takes over reads it from the Workloads that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strata.cluster.api.kinds import Object, conditions_of
from strata.cluster.multikueue.nomination import OfferRefusal
from strata.cluster.multikueue.refusals import refusals_of
from strata.cluster.multikueue.workloads import cluster_of, queue_of

FIRST_S: Final = 120.0
LONGEST_S: Final = 1800.0
"""How long a cluster that refused is left alone by gangs as large of that queue: twice as long each time."""


@dataclass
class Experience:
    """By cluster, offers taken and made; by cluster and queue, the last refusal."""

    _taken: dict[str, int] = field(default_factory=dict)
    _made: dict[str, int] = field(default_factory=dict)
    _refusals: dict[tuple[str, str], OfferRefusal] = field(default_factory=dict)

    @staticmethod
    def of(workloads: Iterable[Object], *, now_s: float) -> Experience:
        """Return what workloads tell of it: which cluster has each, and which refused it.

        That a refusal was forgiven is told by none: it counts until its time is over.
        """
        made = Experience()
        for workload in workloads:
            queue, refusals = queue_of(workload), refusals_of(workload)
            for cluster in (*refusals, *filter(None, [cluster_of(workload)])):
                made._made[cluster] = made._made.get(cluster, 0) + 1
            if cluster := cluster_of(workload):
                made._taken[cluster] = made._taken.get(cluster, 0) + 1
            for cluster, refusal in refusals.items():
                known = replace(refusal, until_s=min(refusal.until_s, now_s + LONGEST_S))
                before = made._refusals.get((cluster, queue))
                if before is None or known.until_s > before.until_s:
                    made._refusals[cluster, queue] = known
        return made

    def chance(self, cluster: str) -> float:
        """Return the share of offers a cluster takes, by Laplace's rule: a half before any."""
        return (1 + self._taken.get(cluster, 0)) / (2 + self._made.get(cluster, 0))

    def refusal(self, cluster: str, queue: str) -> OfferRefusal | None:
        """Return the last refusal of a queue's gang, None where it took one since."""
        return self._refusals.get((cluster, queue))

    def took(self, cluster: str, queue: str) -> None:
        """Note that an offer was taken."""
        self._made[cluster] = self._made.get(cluster, 0) + 1
        self._taken[cluster] = self._taken.get(cluster, 0) + 1
        self._refusals.pop((cluster, queue), None)

    def refused(self, cluster: str, queue: str, *, devices: int, why: str, now_s: float) -> OfferRefusal:
        """Note that an offer was not taken, and return what follows from it."""
        self._made[cluster] = self._made.get(cluster, 0) + 1
        before = self._refusals.get((cluster, queue))
        times = 1 if before is None else before.times + 1
        until_s = now_s + min(LONGEST_S, FIRST_S * 2.0 ** (times - 1))
        made = OfferRefusal(devices, why, until_s, times)
        self._refusals[cluster, queue] = made
        return made


def what_it_says(workload: Object | None) -> str:
    """Return why a worker's copy of a workload is not admitted, in the words of its Kueue or of a check there."""
    if workload is None:
        return ""
    states: list[Mapping[str, Any]] = (workload.get("status") or {}).get("admissionChecks") or []
    for state in states:
        if state.get("state") in ("Retry", "Rejected"):
            return str(state.get("message") or f"{state.get('name')}: {state.get('state')}")
    for condition in conditions_of(workload):
        if condition.get("type") == "QuotaReserved" and condition.get("status") == "False":
            return str(condition.get("message") or condition.get("reason") or "has no quota")
    return ""
