"""Who is taken out of service and who comes back: hysteresis against flapping, and a budget.

A pure step: standings and what is seen now give new standings. The caller taints and untaints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from strata.fleet.health import Slow

BAD: Final = 0.3
GOOD: Final = 0.7
"""A device leaves below BAD and returns above GOOD; between them it stays where it is."""

HOLD_S: Final = 600.0
HOLD_MAX_S: Final = 86400.0
"""How long a device must have been well to return; doubled at each relapse, up to a day."""

FORGIVEN_S: Final = 7 * 86400.0
"""A relapse this long after the last return starts the count anew."""

BUDGET_SHARE: Final = 0.1
"""Share of the devices that may be out at a time."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a device now: its health score and, if it is slow, by how much."""

    score: float = 1.0
    slow: Slow | None = None

    @property
    def is_bad(self) -> bool:
        """Whether it should leave. A score that is no number is no reason to trust a device."""
        return self.slow is not None or not self.score >= BAD

    @property
    def is_good(self) -> bool:
        """Whether it may return."""
        return self.slow is None and self.score > GOOD


@dataclass(frozen=True, slots=True)
class Standing:
    """A device's state: in or out since `since_s`, well since `well_since_s` (None: not well), times it left."""

    is_isolated: bool = False
    since_s: float = -math.inf
    well_since_s: float | None = None
    times: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What changes now. waiting: devices that should leave, worst first, for which the budget has no room."""

    standings: Mapping[str, Standing]
    isolate: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def budget(num_devices: int, *, share: float = BUDGET_SHARE) -> int:
    """Return how many devices may be out at a time: a share, but always one."""
    return max(1, math.floor(share * num_devices)) if num_devices else 0


def step(
    seen: Mapping[str, Seen], standings: Mapping[str, Standing], now_s: float, *, share: float = BUDGET_SHARE
) -> Verdict:
    """Return who leaves and who returns at `now_s`, all devices of the cluster at once.

    A device that is out and not seen stays out and counts. Devices already out are never released for the budget's
    sake: so the number out is at most the budget, or what it was before if that is more.
    """
    after = {uuid: standing for uuid, standing in standings.items() if uuid in seen or standing.is_isolated}
    release = []
    for uuid, one in seen.items():
        old = standings.get(uuid, Standing())
        well_since = None if not one.is_good else now_s if old.well_since_s is None else old.well_since_s
        new = replace(old, well_since_s=well_since)
        if old.is_isolated and well_since is not None and now_s - well_since >= _hold_s(old.times):
            new = replace(new, is_isolated=False, since_s=now_s)
            release.append(uuid)
        after[uuid] = new
    room = budget(len(seen), share=share) - sum(one.is_isolated for one in after.values())
    bad = [uuid for uuid, one in seen.items() if one.is_bad and not after[uuid].is_isolated]
    bad.sort(key=lambda uuid: (_urgency(seen[uuid]), uuid))
    leaving = bad[: max(0, room)]
    for uuid in leaving:
        old = after[uuid]
        times = 1 if now_s - old.since_s > FORGIVEN_S else old.times + 1
        after[uuid] = Standing(is_isolated=True, since_s=now_s, times=times)
    return Verdict(after, tuple(leaving), tuple(sorted(release)), tuple(bad[len(leaving) :]))


def _hold_s(times: int) -> float:
    return float(min(HOLD_MAX_S, HOLD_S * 2.0 ** max(0, min(times, 60) - 1)))


def _urgency(one: Seen) -> tuple[float, float]:
    # A fault before a slow device: it breaks the job, the other only delays it.
    health = one.score if one.score >= 0 else 0.0
    return (health if health < BAD else BAD, one.slow.share if one.slow is not None else 1.0)
