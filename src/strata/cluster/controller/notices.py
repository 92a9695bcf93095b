"""What jobs and pods were told, and when: claims and events say a thing once, and again when it is another."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from strata.cluster.api.actions import Action, event
from strata.cluster.cache.snapshot import ClusterSnapshot
from strata.cluster.controller.pending import PendingWorkload
from strata.cluster.controller.status_writer import claim_of_job, just, says_routed
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Decision, Reason


@dataclass(slots=True)
class Notice:
    """What a waiting object was told last, and when; when it was seen first.

    refused: what the API server said to its release, which is tried again at `again_s`.
    """

    since_s: float
    at_s: float = float("-inf")
    what: tuple[Any, ...] = ()
    refused: str = ""
    again_s: float = float("-inf")


@dataclass
class Notices:
    """of: by the gang of what waits."""

    of: dict[str, Notice] = field(default_factory=dict)
    _released_s: dict[str, float] = field(default_factory=dict)
    _settled_s: float = float("-inf")

    def keep(self, waiting: Collection[str], now_s: float) -> None:
        """Forget what waits no longer."""
        self.of = {gang: self.of.get(gang) or Notice(now_s) for gang in waiting}

    def released(self, gang: str, now_s: float) -> None:
        """Note when a gang was released: its claim is written then, and `settle` leaves it alone for a while."""
        self._released_s[gang] = now_s

    def report(
        self,
        snapshot: ClusterSnapshot,
        workload: PendingWorkload,
        decision: Decision[Placement],
        *,
        now_s: float,
        stamp: str,
    ) -> list[Action]:
        """Return what writes a decision into the claim, and an event where the answer is another than before."""
        notice, first = self.of.get(workload.gang) or Notice(now_s), decision.reasons[0]
        notice.at_s = now_s
        actions: list[Action] = []
        if workload.job is not None:
            annotations = None if workload.claim is None else workload.annotations
            actions += claim_of_job(snapshot.claims, workload.ref, decision, stamp, annotations=annotations)
        what = ("ask" if first.token == "substitution-wanted" else first.token, str(first))
        if what != notice.what:
            notice.what = what
            actions.append(event(workload.ref, first, is_warning=decision.choice is None))
        return actions

    def settle(self, snapshot: ClusterSnapshot, *, now_s: float, stamp: str, every_s: float) -> Iterator[Action]:
        """Have claims say so where their jobs run: who released them may have ended, or not been heard, before."""
        if now_s - self._settled_s < every_s:
            return
        self._settled_s = now_s
        self._released_s = {gang: at_s for gang, at_s in self._released_s.items() if gang in snapshot.jobs}
        for gang, job in snapshot.jobs.items():
            is_recent = now_s - self._released_s.get(gang, float("-inf")) < every_s
            placement = snapshot.placements.get(gang)
            if is_recent or placement is None or not (job.is_managed and job.runs):
                continue
            if not says_routed(snapshot.claims, job.ref):
                data = {"devices": placement.devices_per_pod, "model": placement.model}
                data |= {"pods": len(placement.pods), "nodes": len(placement.nodes)}
                decision = just(Reason("gang-runs", job.ref.name, data), placement)
                yield from claim_of_job(snapshot.claims, job.ref, decision, stamp)
