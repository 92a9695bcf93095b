"""Links measured by the work itself: the transfers that jobs report, as one observation of a link a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from strata.control.state import LinkSeen, Snapshot, Transfer
from strata.fleet.fleet import Fleet, Pair

ROUND_TRIPS: Final = 4
"""What a transfer must last, in round trips of its link when that is as fast as stated: a shorter one is over
before TCP has found out how fast the link is (slow start, RFC 5681): it says how far away the other end is."""

_DEAD: Final = 0.01
"""Share of a link's bandwidth below which it is as good as down."""

ODD: Final = 3.0
"""A probe that is so many times off the one before is not believed alone."""


def corroborated(probe: Callable[[], LinkSeen | None], before: Snapshot) -> LinkSeen | None:
    """Return what a probe sees; where it is far off the one before, the median of that and two more.

    So one that lies moves nothing, and an outage is believed by the third.
    """
    seen = probe()
    if seen is None:
        return None
    pair = (seen.source, seen.dest)
    estimate, link = before.links.get(pair), before.fleet.links.get(pair)
    if estimate is None or not estimate.recent or link is None:
        return seen
    then = link.bandwidth_bytes_per_s * max(estimate.recent[-1][1], _DEAD)
    now = max(seen.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s * _DEAD)
    if then / ODD <= now <= then * ODD:
        return seen
    others = [again for _ in range(2) if (again := probe()) is not None]
    return sorted((seen, *others), key=lambda each: each.bandwidth_bytes_per_s)[len(others) // 2]


class Transfers:
    """Takes in reports, the same ones many times; gives a link's best of `every_s` once, as a probe would.

    A transfer is at most as fast as its link, for others may be on it: the best of several is the nearest.
    """

    def __init__(self, fleet: Fleet, *, every_s: float) -> None:
        self._fleet, self._every_s = fleet, every_s
        self._read_s: dict[Pair, float] = {}
        self._best: dict[Pair, float] = {}
        self._begun_s: dict[Pair, float] = {}
        self._given_s: dict[Pair, float] = {}

    def take_in(self, transfers: Iterable[Transfer], now_s: float) -> None:
        """Take in what a domain's ranks reported."""
        newest = dict(self._read_s)
        for item in transfers:
            pair = (item.source, item.dest)
            link = self._fleet.links.get(pair)
            if link is None or item.at_s <= self._read_s.get(pair, 0.0):
                continue
            newest[pair] = max(newest.get(pair, 0.0), item.at_s)
            if item.num_bytes >= ROUND_TRIPS * 2 * link.latency_s * link.bandwidth_bytes_per_s:
                self._best[pair] = max(self._best.get(pair, 0.0), item.num_bytes / item.seconds)
                self._begun_s.setdefault(pair, now_s)
        self._read_s = newest

    def seen(self, now_s: float) -> list[LinkSeen]:
        """Return the links of which so much was heard that it stands for a probe."""
        due = [pair for pair, since_s in self._begun_s.items() if now_s - since_s >= self._every_s]
        for pair in due:
            del self._begun_s[pair]
            self._given_s[pair] = now_s
        return [LinkSeen(*pair, now_s, self._best.pop(pair)) for pair in due]

    def covers(self, pair: Pair, now_s: float) -> bool:
        """Whether a link was seen so lately that a probe of it is saved."""
        return now_s - self._given_s.get(pair, -1e18) < 1.5 * self._every_s
