"""One job whose links and domains change: what a policy earns when it may keep or switch at every step.

E episodes of T steps run together. Q pairs of domains, P candidate plans. Step times come from the response of
each plan (`replan/response.py`), so a plan that runs stays as it was cut at nominal links.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.evaluation.kpi.study import Study
from strata.training.hi_ppo.global_agent import INTERVAL_S, RESTART_S
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Evaluated
from strata.training.plan.shortlist.selection import shortlist
from strata.training.replan.options import HORIZONS, Options
from strata.training.replan.relocation import relocation_costs
from strata.training.replan.response import PlanResponse

Choose = Callable[[Options], Ints]

MOST_CANDIDATES: Final = 64
DECISIONS: Final = 32
"""Steps of an episode, INTERVAL_S apart."""


@dataclass(frozen=True, eq=False)
class Perturbation:
    """What happens to E episodes. links [T, E, Q], loads [T, E, K]: factors on bandwidth and on compute time.

    memory: correlation of a factor with itself one step later; the policy is told the mean it implies.
    """

    links: Floats
    loads: Floats
    memory: float

    def ahead(self, factors: Floats) -> Floats:
        """Return the expected factors at each of HORIZONS, [H, ...]."""
        return np.stack([1 + self.memory**steps * (factors - 1) for steps in HORIZONS])


@dataclass(frozen=True, eq=False)
class PolicyRun:
    """What a policy did, arrays [T, E].

    earned: steps a second over the nominal plan's, switches taken off. step_s: of the plan in use.
    """

    plans: Ints
    earned: Floats
    step_s: Floats
    switched: Bools


class Arena:
    """The candidates of a job, how they answer changes, and the plan the policy takes at nominal links."""

    def __init__(self, problem: Problem, items: Sequence[Evaluated], start: int) -> None:
        self.problem, self.items, self.start = problem, items, start
        self.response = PlanResponse.of(problem.model, [item.plan for item in items])
        names = [domain.name for domain in problem.fleet.domains]
        self.uses = np.array([[name in item.plan.domains for name in names] for item in items])  # [P, K]

    @classmethod
    def of(cls, study: Study, problem: Problem) -> Arena | None:
        """Return the arena of a job, None where nothing fits."""
        items = shortlist(problem, most=MOST_CANDIDATES)
        start = study.decide(problem, items)
        if start is None:
            return None
        index = next(i for i, item in enumerate(items) if item.plan == start.plan)
        return cls(problem, items, index)

    @cached_property
    def nominal_s(self) -> float:
        """Step time of the starting plan at nominal links."""
        return self.items[self.start].report.step_time_s

    @cached_property
    def switch_share(self) -> Floats:
        """[P, P]: what going from plan to plan burns, in steps of INTERVAL_S."""
        plans = [item.plan for item in self.items]
        moved_s, _, moves = relocation_costs(self.problem.fleet, self.problem.job, plans)
        devices = [plan.devices() for plan in plans]
        other = np.array([[a != b for b in devices] for a in devices])
        share = (moved_s + np.where(moves | other, RESTART_S, 0.0)) / INTERVAL_S
        np.fill_diagonal(share, 0.0)
        return np.asarray(np.minimum(share, 1e6))

    def step_s(self, links: Floats, loads: Floats) -> Floats:
        """Return the step times [..., P] of all candidates, each as slow as the most loaded domain it uses."""
        slow = np.where(self.uses, loads[..., None, :], 0.0).max(axis=-1)
        return self.response.step_s(links, slow=slow)

    def clairvoyant_s(self, change: Perturbation) -> Floats:
        """Return [T, E]: the steps of whoever knows all that comes and earns the most, switches paid for."""
        now_s = self.step_s(change.links, change.loads)  # [T, E, P]
        left = 1 - np.minimum(1.0, self.switch_share)  # [P, P]
        steps, episodes, count = now_s.shape
        best = np.zeros((episodes, count))  # most still to earn, by the plan in use
        taken = np.empty((steps, episodes, count), dtype=np.int64)
        for step in reversed(range(steps)):
            earned = self.nominal_s / now_s[step]
            worth = left[None] * earned[:, None, :] + best[:, None, :]
            taken[step] = worth.argmax(axis=-1)
            best = worth.max(axis=-1)
        step_s, rows = np.empty((steps, episodes)), np.arange(episodes)
        current = np.full(episodes, self.start)
        for step in range(steps):
            current = taken[step, rows, current]
            step_s[step] = now_s[step, rows, current]
        return step_s

    def oracle_s(self, change: Perturbation) -> Floats:
        """Return [T, E]: the fastest candidate's step in every state."""
        return np.asarray(self.step_s(change.links, change.loads).min(axis=-1))

    def run(self, choose: Choose, change: Perturbation) -> PolicyRun:
        """Run a policy along a change, from the nominal plan."""
        steps, episodes, _ = change.links.shape
        rows = np.arange(episodes)
        current = np.full(episodes, self.start)
        plans, earned = np.empty((steps, episodes), dtype=np.int64), np.empty((steps, episodes))
        step_s, switched = np.empty_like(earned), np.empty(earned.shape, dtype=bool)
        for step in range(steps):
            links, loads = change.links[step], change.loads[step]
            picks = choose(self._options(change, links, loads, current))
            now_s = self.step_s(links, loads)
            lost = np.minimum(1.0, self.switch_share[current, picks])
            earned[step] = self.nominal_s / now_s[rows, picks] * (1 - lost)
            step_s[step] = now_s[rows, picks]
            switched[step], plans[step] = picks != current, picks
            current = picks
        return PolicyRun(plans, earned, step_s, switched)

    def _options(self, change: Perturbation, links: Floats, loads: Floats, current: Ints) -> Options:
        ahead = change.ahead(links)
        value = np.moveaxis(self.nominal_s / self.step_s(ahead, change.ahead(loads)), 0, -1)
        used = self.response.pair >= 0
        pair = np.maximum(self.response.pair, 0)
        lowest = [np.where(used, factors[:, pair], 1.0).min(axis=-1) for factors in (ahead[0], ahead[-1])]
        stay = np.broadcast_to(np.where(used.any(axis=1), change.memory, 1.0), lowest[0].shape)
        return Options(
            value=value,
            cost=self.switch_share[current] * value[..., 0],
            links=np.stack([*lowest, stay, stay], axis=-1),
            current=current,
            legal=np.ones(value.shape[:2], dtype=bool),
            preference=np.tile((1.0, 0.0, 0.0), (len(current), 1)),
        )


def independent(rng: np.random.Generator, shape: tuple[int, int, int], *, half_width: float) -> Floats:
    """Return the reference noise [T, E, N]: uniform in 1 ± half_width, drawn anew at every step."""
    return 1 + rng.uniform(-half_width, half_width, shape)


def autoregressive(
    rng: np.random.Generator, shape: tuple[int, int, int], *, half_width: float, memory: float
) -> Floats:
    """Return AR(1) noise [T, E, N] of standard deviation half_width / 2, held inside 1 ± half_width."""
    sigma = half_width / 2
    state = sigma * rng.standard_normal(shape[1:])
    factors = np.empty(shape)
    for step in range(shape[0]):
        factors[step] = state
        state = memory * state + np.sqrt(1 - memory**2) * sigma * rng.standard_normal(shape[1:])
    return np.asarray(1 + np.clip(factors, -half_width, half_width))


def corners(rng: np.random.Generator, shape: tuple[int, int, int], *, half_width: float) -> Floats:
    """Return corners [T, E, N] that last an episode: all of them where E allows, else both ends and others."""
    steps, episodes, count = shape
    low = np.zeros((1, count), dtype=bool)
    if 2**count <= episodes:
        numbers = np.arange(episodes) % 2**count
        high = (numbers[:, None] >> np.arange(count)) & 1 == 1
    else:
        drawn = rng.random((episodes - 2, count)) < 0.5
        high = np.concatenate([low, ~low, drawn])
    return np.broadcast_to(np.where(high, 1 + half_width, 1 - half_width), (steps, episodes, count)).copy()
