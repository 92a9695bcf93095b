"""Who is taken out of service and who comes back: hysteresis against flapping, and a budget.

The members of a cohort may be devices or whole nodes: the rules are the same, and healing on a cluster isolates
nodes. A pure step: the members' states and what is observed now give their new states. The caller taints and
untaints.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from strata.fleet.health import Slow

BAD: Final = 0.3
GOOD: Final = 0.7
"""A member leaves below BAD and returns above GOOD; between them it stays where it is."""

HOLD_S: Final = 600.0
HOLD_MAX_S: Final = 86400.0
"""How long a member must have been well to return; doubled at each relapse, up to a day."""

FORGIVEN_S: Final = 7 * 86400.0
"""A relapse this long after the last return starts the count anew."""

BUDGET_SHARE: Final = 0.1
"""Share of the members that may be out at a time."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What is known of a member now: its health score and, if it is slow, by how much."""

    score: float = 1.0
    slow: Slow | None = None

    @property
    def is_bad(self) -> bool:
        """Whether it should leave. A score that is not a number gives no reason to trust it."""
        return self.slow is not None or not self.score >= BAD

    @property
    def is_good(self) -> bool:
        """Whether it may return."""
        return self.slow is None and self.score > GOOD


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member's state: in or out since `since_s`, well since `well_since_s` (None: not well), times it left."""

    is_isolated: bool = False
    since_s: float = -math.inf
    well_since_s: float | None = None
    times: int = 0


@dataclass(frozen=True, slots=True)
class IsolationVerdict:
    """What changes now. waiting: members that should leave, worst first, for which the budget has no room."""

    states: Mapping[str, MemberState]
    isolate: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def budget(num_members: int, *, share: float = BUDGET_SHARE) -> int:
    """Return how many members may be out at a time: a share of them, but always at least one."""
    return max(1, math.floor(share * num_members)) if num_members else 0


def step(
    observed: Mapping[str, Observation],
    states: Mapping[str, MemberState],
    now_s: float,
    *,
    share: float = BUDGET_SHARE,
) -> IsolationVerdict:
    """Return who leaves and who returns at `now_s`, all members of the cohort at once.

    A member that is out and not observed stays out and counts. Members already out are never released for the
    budget's sake: so the number out is at most the budget, or what it was before if that is more.
    """
    after = {name: state for name, state in states.items() if name in observed or state.is_isolated}
    release = []
    for name, observation in observed.items():
        old = states.get(name, MemberState())
        well_since = None if not observation.is_good else now_s if old.well_since_s is None else old.well_since_s
        new = old if old.well_since_s == well_since else replace(old, well_since_s=well_since)
        if old.is_isolated and well_since is not None and now_s - well_since >= _hold_s(old.times):
            new = replace(new, is_isolated=False, since_s=now_s)
            release.append(name)
        after[name] = new
    vacancies = budget(len(observed), share=share) - sum(state.is_isolated for state in after.values())
    bad = [name for name, observation in observed.items() if observation.is_bad and not after[name].is_isolated]
    bad.sort(key=lambda name: (_urgency(observed[name]), name))
    leaving = bad[: max(0, vacancies)]
    for name in leaving:
        old = after[name]
        times = 1 if now_s - old.since_s > FORGIVEN_S else old.times + 1
        after[name] = MemberState(is_isolated=True, since_s=now_s, times=times)
    return IsolationVerdict(after, tuple(leaving), tuple(sorted(release)), tuple(bad[len(leaving) :]))


def _hold_s(times: int) -> float:
    # Bounded before the power is taken: a member may have left thousands of times.
    return float(min(HOLD_MAX_S, HOLD_S * 2.0 ** max(0, min(times, 60) - 1)))


def _urgency(observation: Observation) -> tuple[float, float]:
    # A fault before slowness: it breaks the job, the other only delays it.
    health = observation.score if observation.score >= 0 else 0.0
    return (health if health < BAD else BAD, observation.slow.share if observation.slow is not None else 1.0)
