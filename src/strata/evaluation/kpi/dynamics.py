"""One job in the control loop while links or domains change: what each way of deciding earns.

T decisions INTERVAL_S apart; P candidate plans, L links, K domains. The loop is the scheduler's own
(`control.replay.run`); what a plan earns at a decision is what it earned in the loop's simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.control.candidates import Candidates
from strata.control.core import Scheduler
from strata.control.plans import planner
from strata.control.replay import ENDLESS, run
from strata.control.state import JobSpec
from strata.evaluation.kpi.instances import PlanningCase
from strata.evaluation.kpi.ways import Way
from strata.fleet.dynamics.replay import Replay

INTERVAL_S: Final = 300.0
DECISIONS: Final = 32


@dataclass(frozen=True, eq=False, slots=True)
class Change:
    """What happens: factors of links [T, L] and speeds of domains [T, K], None where nothing does."""

    links: Floats | None = None
    speeds: Floats | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Played:
    """What a way of deciding did. plans [T]: in use after each decision. kept: steps trained over those of the
    nominally best plan on nominal links."""

    plans: Ints
    kept: float

    @property
    def switched(self) -> Bools:
        """[T]: whether another plan was taken."""
        return np.asarray(np.append(False, np.diff(self.plans) != 0))


class Dynamics:
    """A job that runs in the loop, and its candidates' rates under any change."""

    def __init__(self, instance: PlanningCase) -> None:
        self.instance, self._planner = instance, planner()
        self.candidates: Candidates = self._planner(instance.fleet, instance.job)

    @cached_property
    def switch_share(self) -> Floats:
        """[P, P]: what going from plan to plan burns at nominal links, in decisions, at most one."""
        moves_s = self.candidates.moves_s((1.0,) * len(self.candidates.pairs))
        return np.asarray(np.minimum(moves_s / INTERVAL_S, 1.0))

    def rates(self, change: Change) -> Floats:
        """Return [T, P]: steps a second over the nominally best plan's."""
        links = np.ones((DECISIONS, len(self.candidates.pairs))) if change.links is None else change.links
        rows = links if change.speeds is None else np.concatenate([links, change.speeds], axis=1)
        states = [tuple(row) for row in rows.tolist()]
        self.candidates.prepare(states)
        nominal = self.candidates.nominal.max()
        return np.asarray(np.stack([self.candidates.rates(state) for state in states]) / nominal)

    def play(self, way: Way, change: Change) -> Played:
        """Run a way of deciding along a change."""
        times = np.arange(DECISIONS, dtype=np.float64) * INTERVAL_S
        links = None if change.links is None else Replay(times, change.links)
        speeds = None if change.speeds is None else Replay(times, change.speeds)
        scheduler = Scheduler(way.choose, self._planner, INTERVAL_S, inside=way.inside)
        spec = JobSpec("job", self.instance.job, ENDLESS)
        end_s = DECISIONS * INTERVAL_S
        result = run(
            self.instance.fleet, [spec], scheduler, trace=links, end_s=end_s, speeds=speeds,
            is_seen=way.sees_network,
        )  # fmt: skip
        plans = np.zeros(DECISIONS, dtype=np.int64)
        for item in result.changes:
            if item.decision.choice is not None:
                plans[round(item.at_s / INTERVAL_S) :] = self.candidates.index[item.decision.choice]
        kept = result.trained.get("job", 0.0) / (float(self.candidates.nominal.max()) * end_s)
        return Played(plans, kept)

    def clairvoyant(self, rates: Floats) -> Ints:
        """Return [T]: the plans of whoever knows all rates [T, P] and earns the most, switches paid for."""
        left = np.where(np.eye(rates.shape[1]) > 0, 1.0, 1 - self.switch_share)
        value, taken = np.zeros(rates.shape[1]), []
        for now in rates[:0:-1]:
            worth = left * now[None] + value[None]
            taken.append(worth.argmax(axis=1))
            value = worth.max(axis=1)
        plans = [int((rates[0] + value).argmax())]
        for choices in reversed(taken):
            plans.append(int(choices[plans[-1]]))
        return np.array(plans)


def independent(rng: np.random.Generator, count: int, *, half_width: float) -> Floats:
    """Return the reference noise [T, count]: uniform in 1 ± half_width, drawn anew at every decision."""
    return 1 + rng.uniform(-half_width, half_width, (DECISIONS, count))


def corners(rng: np.random.Generator, count: int, *, half_width: float) -> Floats:
    """Return a corner [T, count] that lasts: each factor at one end of 1 ± half_width."""
    ends = np.where(rng.random(count) < 0.5, 1 - half_width, 1 + half_width)
    return np.tile(ends, (DECISIONS, 1))
