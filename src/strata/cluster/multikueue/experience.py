"""What worker clusters did with offers so far: how often they took one, and what each refused lately.

Remembered by the dispatcher that leads; who takes over learns anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from strata.cluster.api.kinds import Object, conditions_of
from strata.cluster.multikueue.nomination import OfferRefusal

FIRST_S: Final = 120.0
LONGEST_S: Final = 1800.0
"""How long a cluster that refused is left alone by gangs as large of that queue: twice as long each time."""


@dataclass
class Experience:
    """By cluster, offers taken and made; by cluster and queue, the last refusal."""

    _taken: dict[str, int] = field(default_factory=dict)
    _made: dict[str, int] = field(default_factory=dict)
    _refusals: dict[tuple[str, str], OfferRefusal] = field(default_factory=dict)

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
