"""When each link is due to be probed: every pair of domains by itself, whatever another one's probe takes."""

from __future__ import annotations

from collections.abc import Iterable

from strata.fleet.fleet import Pair


class Watch:
    """Each link is due `every_s` after it was last begun with. New ones are spread over that time."""

    def __init__(self, *, every_s: float) -> None:
        self._every_s = every_s
        self._due_s: dict[Pair, float] = {}

    def keep(self, pairs: Iterable[Pair], now_s: float) -> None:
        """Watch these links from now on; those that were watched before keep their turns."""
        wanted = list(pairs)
        new = [pair for pair in wanted if pair not in self._due_s]
        spread = {pair: now_s + self._every_s * number / len(new) for number, pair in enumerate(new)}
        self._due_s = {pair: self._due_s.get(pair, spread.get(pair, now_s)) for pair in wanted}

    def next(self) -> tuple[Pair, float] | None:
        """Return the link that is due first, and when; None where none is watched."""
        return min(self._due_s.items(), key=lambda item: item[1], default=None)

    def begun(self, pair: Pair, at_s: float) -> None:
        """Put a link off until its next turn; turns that were missed are not made up for."""
        self._due_s[pair] = at_s + self._every_s
