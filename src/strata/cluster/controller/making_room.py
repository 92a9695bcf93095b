"""Room for a job that waits, by moving others: who may be moved, what that costs, and what holds the room for it.

Only jobs that say so (`ai.compute/preemptible: "true"`), have a complete checkpoint and no higher priority are
moved, and only to places they have then. What was done since the checkpoint is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strata.cluster.api.actions import Action, Patch, event
from strata.cluster.api.annotations import PREEMPTIBLE, PREFIX
from strata.cluster.api.applier import Failure
from strata.cluster.api.jobs import Job, suspension
from strata.cluster.api.pod_claims import job_claim
from strata.cluster.cache.snapshot import ClusterSnapshot
from strata.cluster.controller.pending import PendingWorkload
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.defragment import Movable, Proposal, propose
from strata.cluster.scheduling.index import Index, has_devices
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Reason
from strata.errors import StrataError
from strata.names import first_of

CHECKPOINT_DIR: Final = PREFIX + "checkpoint-dir"
"""Annotation of a job: the folder it saves to, by the path its pods and the controller know it under."""
MOVE_S: Final = 120.0
"""Of all a gang's devices, to stop, be placed and start again: assumed."""
HOLD_S: Final = 600.0
"""How long room is held for who it is made for; then those who left may have it again."""
AGAIN_S: Final = 3600.0
"""Until a gang that was moved may be moved again: where the room went to others, moving it anew helps nobody."""
LOOK_S: Final = 300.0
"""How old may be what is known of a folder's checkpoints: looking may walk through thousands of files."""

Holds = Mapping[str, Mapping[str, frozenset[int]]]
"""Places of the devices that gangs hold, by gang and node, as the kubelet gave them."""


@dataclass(frozen=True, slots=True)
class Room:
    """Room that is being made: where its gang goes, who leaves for it, and until when that is waited for."""

    placement: Placement
    moved: frozenset[str]
    until_s: float


class Rooms:
    """What is being made for gangs that wait: one at a time, so that no two count on the same devices."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}
        self._moved_s: dict[str, float] = {}
        self._saved: dict[str, tuple[float | None, float]] = {}

    def expire(self, waiting: Collection[str], now_s: float) -> bool:
        """Forget rooms whose gangs wait no longer, or waited too long; return whether there were any."""
        before = len(self._rooms)
        rooms = self._rooms.items()
        self._rooms = {gang: room for gang, room in rooms if gang in waiting and now_s < room.until_s}
        self._moved_s = {gang: at_s for gang, at_s in self._moved_s.items() if now_s < at_s + AGAIN_S}
        self._saved = {folder: seen for folder, seen in self._saved.items() if now_s < seen[1] + LOOK_S}
        return len(self._rooms) < before

    def ordered(self, queue: Sequence[PendingWorkload]) -> list[PendingWorkload]:
        """Return a queue with those first for whom room is made, and without those who left for them."""
        leaving = frozenset[str]().union(*(room.moved for room in self._rooms.values()))
        staying = [workload for workload in queue if workload.gang not in leaving]
        return sorted(staying, key=lambda workload: workload.gang not in self._rooms)

    def held(self, gang: str, index: Index) -> Index:
        """Return the index in which nobody else has a gang's room; as it is where some of its devices are gone."""
        room = self._rooms.get(gang)
        return index.placed(room.placement) if room and has_devices(index, room.placement) else index

    def proposed(
        self,
        snapshot: ClusterSnapshot,
        index: Index,
        claim: Claim,
        *,
        holds: Callable[[], Holds],
        saved_s: Callable[[str], float | None],
        now_s: float,
    ) -> Proposal | None:
        """Return which jobs to move so that a gang fits; None where some are moved, or none may be.

        saved_s: when the newest complete checkpoint in a folder was written.
        """
        if self._rooms or not any(may_move(job) for job in snapshot.jobs.values()):
            return None

        def known(folder: str) -> float | None:
            if folder not in self._saved:
                self._saved[folder] = saved_s(folder), now_s
            return self._saved[folder][0]

        movable = _movable(snapshot, claim.priority, holds(), known, now_s)
        rested = [each for each in movable if each.gang not in self._moved_s]
        here = [each for each in rested if has_devices(index, each.placement)]
        return propose(index, claim, snapshot.profiles, here)

    def make(self, snapshot: ClusterSnapshot, gang: str, proposal: Proposal, now_s: float) -> Iterator[Action]:
        """Hold a proposal's room from now on, and yield what suspends who moves, as long as they are as seen."""
        moved = frozenset(movable.gang for movable, _ in proposal.moves)
        self._rooms[gang] = Room(proposal.placement, moved, now_s + HOLD_S)
        self._moved_s |= dict.fromkeys(moved, now_s)
        for movable, _ in proposal.moves:
            job = snapshot.jobs[movable.gang]
            yield Patch(job.ref, suspension(job.obj, wanted=True), resource_version=job.version)
            reason = Reason("moved-for-another", job.ref.name, {"gang": gang, "cost": movable.cost_device_s})
            yield event(job.ref, reason, is_warning=True)

    def failed(self, gang: str, failures: Sequence[Failure]) -> None:
        """Hold a gang's room no longer where one of those who were to leave was not suspended."""
        room = self._rooms.get(gang)
        refused = {str(failure.action.ref) for failure in failures if isinstance(failure.action, Patch)}
        if room is not None and not room.moved.isdisjoint(refused):
            del self._rooms[gang]


def may_move(job: Job) -> bool:
    """Return whether a job runs, and says that it may be stopped and goes on from what it saved."""
    is_willing = job.annotations.get(PREEMPTIBLE) == "true" and bool(job.annotations.get(CHECKPOINT_DIR))
    return is_willing and job.is_ours and job.runs


def _movable(
    snapshot: ClusterSnapshot, priority: int, holds: Holds, saved_s: Callable[[str], float | None], now_s: float
) -> Iterator[Movable]:
    for gang, job in sorted(snapshot.jobs.items(), key=lambda item: (item[1].since, item[0])):
        placement = snapshot.placements.get(gang)
        is_settled = may_move(job) and gang not in snapshot.assumed
        if placement is None or not is_settled or not _is_held(placement, holds.get(gang, {})):
            continue
        try:
            claim, written_s = job_claim(job, snapshot.claims), saved_s(job.annotations[CHECKPOINT_DIR])
        except StrataError:  # it could not be placed again, or not go on: it stays
            continue
        if written_s is None or claim.priority > priority:
            continue
        devices = sum(len(pod.devices) for pod in placement.pods)
        yield Movable(gang, claim, placement, devices * (MOVE_S + max(0.0, now_s - written_s)))


def _is_held(placement: Placement, held: Mapping[str, frozenset[int]]) -> bool:
    """Return whether a gang has whole devices, and those that it was sent to."""
    places = [(pod.node, device) for pod in placement.pods for device in pod.devices]
    devices = {at: frozenset(device for node, device in places if node == at) for at in placement.nodes}
    return devices == held and all(pod.memory_bytes is None for pod in placement.pods)


def _move(movable: Movable, after: Placement) -> dict[str, Any]:
    return {
        "gang": movable.gang,
        "devices": sum(len(pod.devices) for pod in movable.placement.pods),
        "costDeviceSeconds": movable.cost_device_s,
        "nodes": sorted(set(after.nodes)),
    }


def room_by_moving(subject: str, proposal: Proposal) -> Reason:
    """Return the reason that tells a proposal; its `moves` are as a claim's status has them."""
    data = {
        "gangs": first_of([movable.gang for movable, _ in proposal.moves], 4),
        "nodes": len(proposal.placement.nodes),
        "model": proposal.placement.model,
        "cost": proposal.cost_device_s,
        "moves": [_move(movable, after) for movable, after in proposal.moves],
        "how": "the least" if proposal.is_least else "perhaps not the least",
    }
    return Reason("room-by-moving", subject, data)
