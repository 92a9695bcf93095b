"""Which gangs to stop and place anew so that one that waits fits: the cheapest set that the router can follow.

A set is feasible where, with its gangs' devices given back, the router (`evaluate`, as it decides in earnest)
places the waiting gang and then each of the set. Sets are looked at in the order of their costs, so the first that
is feasible costs least. Where too many have enough devices, one is made small, and not said to be the least.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.conversion import PodDemand
from strata.cluster.scheduling.eligibility import open_rows
from strata.cluster.scheduling.evaluation import evaluate
from strata.cluster.scheduling.index import Index, released
from strata.cluster.scheduling.profile import RuntimeProfile
from strata.cluster.scheduling.snapshot import Placement

_MOST_TRIED: Final = 32
_MOST_LISTED: Final = 4096
"""Sets that cannot have enough devices cost a count each, and no decision of the router."""
_MOST_MOVED: Final = 64


@dataclass(frozen=True, slots=True)
class Movable:
    """A gang of whole devices that may be stopped and placed anew, which loses `cost_device_s` of its work."""

    gang: str
    claim: Claim
    placement: Placement
    cost_device_s: float


Outcome = tuple[Placement, tuple[tuple[Movable, Placement], ...]]


@dataclass(frozen=True, slots=True)
class Proposal:
    """placement: of the gang that waits. moves: gangs with where they go on. is_least: no other set costs less."""

    placement: Placement
    moves: tuple[tuple[Movable, Placement], ...]
    is_least: bool

    @property
    def cost_device_s(self) -> float:
        """What all moves lose."""
        return sum(movable.cost_device_s for movable, _ in self.moves)


def propose(
    index: Index, claim: Claim, profiles: Sequence[RuntimeProfile], movable: Sequence[Movable]
) -> Proposal | None:
    """Return the cheapest moves after which a gang that fits nowhere fits; None where none are found.

    movable: in the order in which the router would place them again.
    """
    demands = evaluate(index, claim, profiles).demands
    rooms = [_Room(index, claim, demand) for demand in demands if demand.memory_bytes is None]
    order = {each.gang: place for place, each in enumerate(movable)}
    cheapest = sorted(movable, key=lambda each: (each.cost_device_s, each.gang))

    def outcome(some: Sequence[Movable]) -> Outcome | None:
        if not any(room.is_enough(some) for room in rooms):
            return None
        return _outcome(index, claim, profiles, sorted(some, key=lambda each: order[each.gang]))

    tried = 0
    for number, some in enumerate(_by_cost(cheapest)):
        if number >= _MOST_LISTED or tried >= _MOST_TRIED:
            return _small([each for each in cheapest if any(room.is_of(each) for room in rooms)], outcome)
        if (result := outcome(some)) is not None:
            return Proposal(*result, is_least=True)
        tried += any(room.is_enough(some) for room in rooms)
    return None


class _Room:
    """How many pods of a gang the devices of one model could hold, at most: nearness and all else left out."""

    def __init__(self, index: Index, claim: Claim, demand: PodDemand) -> None:
        rows = index.rows_of_model[demand.model]
        rows = rows[open_rows(index, rows, demand.profile, claim)]
        self._model, self._devices = demand.model, demand.devices
        self._free = {
            index.nodes[index.rows[row].node].name: index.kinds.kinds[index.kind[row]].free.bit_count()
            for row in rows
        }
        self._lacks = claim.pods - sum(free // self._devices for free in self._free.values())

    def is_of(self, movable: Movable) -> bool:
        """Return whether a gang holds any of these devices."""
        return movable.placement.model == self._model and not self._free.keys().isdisjoint(movable.placement.nodes)

    def is_enough(self, some: Sequence[Movable]) -> bool:
        """Return whether all pods could have devices once these gangs have gone."""
        given_back: Counter[str] = Counter()
        for movable in some:
            if movable.placement.model == self._model:
                for pod in movable.placement.pods:
                    given_back[pod.node] += len(pod.devices)
        gained = sum(
            (self._free[node] + devices) // self._devices - self._free[node] // self._devices
            for node, devices in given_back.items()
            if node in self._free
        )
        return bool(gained >= self._lacks)


def _outcome(
    index: Index, claim: Claim, profiles: Sequence[RuntimeProfile], some: Sequence[Movable]
) -> Outcome | None:
    """Return where all go once these gangs have stopped; None where one of them then fits nowhere."""
    for movable in some:
        index = index.with_nodes(released(index, movable.placement))
    placement = evaluate(index, claim, profiles).choice.placement
    if placement is None:
        return None
    index, moves = index.placed(placement), []
    for movable in some:
        after = evaluate(index, movable.claim, profiles).choice.placement
        if after is None:
            return None
        index = index.placed(after)
        moves.append((movable, after))
    return placement, tuple(moves)


def _by_cost(cheapest: Sequence[Movable]) -> Iterator[list[Movable]]:
    """Yield every set but the empty one, by what it costs: each comes from one that costs no more."""
    queue: list[tuple[float, tuple[int, ...]]] = [(cheapest[0].cost_device_s, (0,))] if cheapest else []
    while queue:
        cost, places = heapq.heappop(queue)
        yield [cheapest[place] for place in places]
        last, following = places[-1], places[-1] + 1
        if following < len(cheapest):
            dearer = cost + cheapest[following].cost_device_s
            heapq.heappush(queue, (dearer, (*places, following)))
            heapq.heappush(queue, (dearer - cheapest[last].cost_device_s, (*places[:-1], following)))


def _small(useful: Sequence[Movable], outcome: Callable[[Sequence[Movable]], Outcome | None]) -> Proposal | None:
    """Return a set from which none can be left out: the cheapest, twice as many each time, less who may stay."""
    result, count = None, 1
    while result is None:
        count = min(2 * count, len(useful))
        result = outcome(useful[:count])
        if result is None and count >= min(len(useful), _MOST_MOVED):
            return None
    some = list(useful[:count])
    for movable in reversed(useful[:count]):
        fewer = [other for other in some if other is not movable]
        if (better := outcome(fewer)) is not None:
            some, result = fewer, better
    return Proposal(*result, is_least=False)
