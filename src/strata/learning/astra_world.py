"""`strata/AstraSim-v0` as Hi-PPO decides in it: each step a choice between placements of a job's layers.

The policy sees of a placement what the closed form expects it to earn on the network of the moment, and on the
base network, around which the next steps' are drawn. What it earns is what the environment's backend says. So
untrained it takes the closed form's choice, and what is left to learn is where ASTRA-sim says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final, Self

import numpy as np

from strata.arrays import Floats, Ints
from strata.errors import UsageError
from strata.fleet.fleet import Fleet, Pair
from strata.learning.draws import Draws
from strata.learning.tables.table import EFFICIENCY_ONLY, Choose
from strata.simulate.analytic import StepModel
from strata.simulate.traffic import links_used
from strata.training.environment import backends
from strata.training.environment.astra_sim import AstraSimEnv, Baselines, weighted
from strata.training.environment.placement import plan_of, uniform_placement, why_not
from strata.training.plan.exact.problem import Problem
from strata.training.replan.options import HORIZONS, Options
from strata.workload.plan import TrainingPlan

MOST_PLACEMENTS: Final = 16
MOST_VISITS: Final = 3
"""Domains of a placement, but for the uniform one: more of them only lengthen the pipeline."""

_CUTS: Final = {1: ((1,),), 2: ((1, 1), (1, 2), (2, 1)), 3: ((1, 1, 1), (1, 2, 1), (2, 1, 1), (1, 1, 2))}
"""Shares of the layers, in the order of a placement's domains."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """P placements that fit, with their plans; the uniform one of all domains is at `uniform`, -1 where it does
    not fit. base: what rewards are measured against in the closed form."""

    problem: Problem
    weights: tuple[float, ...]
    placements: tuple[tuple[int, ...], ...]
    plans: tuple[TrainingPlan, ...]
    base: Baselines
    uniform: int

    @classmethod
    def of(cls, problem: Problem, weights: Sequence[float]) -> Self:
        """Return the placements that earn most on the base network. Raises UsageError where none fits."""
        layers, domains = len(problem.job.layers), len(problem.fleet.domains)
        uniform = tuple(uniform_placement(layers, domains))
        fitting: dict[tuple[int, ...], TrainingPlan] = {}
        for placement in (uniform, *_cut(layers, domains)):
            plan = plan_of(problem, placement)
            if not why_not(problem, plan):
                fitting[placement] = plan
        if not fitting:
            raise UsageError(
                f"no placement of {problem.job.name} on up to {MOST_VISITS} domains, or uniform on all, fits",
                hint="a smaller model, or a fleet with more memory",
            )
        run = backends.backend("analytic").run
        rows, plans = tuple(fitting), tuple(fitting.values())
        every = cls(problem, tuple(weights), rows, plans, Baselines.of(problem, run), -1)
        order = np.argsort(-every.expected(problem.fleet), kind="stable").tolist()
        kept = sorted(order[:MOST_PLACEMENTS])
        if uniform in fitting and 0 not in kept:
            kept = [0, *kept[:-1]]
        return cls(
            problem, every.weights, tuple(rows[i] for i in kept), tuple(plans[i] for i in kept), every.base,
            0 if uniform in fitting else -1,
        )  # fmt: skip

    def expected(self, network: Fleet) -> Floats:
        """Return what the closed form expects each placement to earn on a network, plus 1 [P]."""
        reports = StepModel(network, self.problem.job).reports(self.plans)
        step_s, used, wan_bytes = (
            np.array([getattr(report, name) for report in reports])
            for name in ("step_time_s", "utilization", "wan_bytes_per_step")
        )
        return np.asarray(1 + weighted(self.weights, *self.base.terms(step_s, used, wan_bytes)))

    def options(self, networks: Sequence[Fleet]) -> Options:
        """Return one decision for each network. Nothing is in use: a placement is left for nothing."""
        later = self.expected(self.problem.fleet)
        value = np.stack([[self.expected(now), *[later] * (len(HORIZONS) - 1)] for now in networks])
        rows, count = len(networks), len(self.plans)
        links = np.ones((rows, count, 4))
        links[..., 0] = [[self._level(now, plan) for plan in self.plans] for now in networks]
        links[..., 2:] = 0.0  # links are drawn anew at every step
        return Options(
            value=value.transpose(0, 2, 1),
            cost=np.zeros((rows, count)),
            links=links,
            current=np.full(rows, -1),
            legal=np.ones((rows, count), dtype=bool),
            preference=np.tile(EFFICIENCY_ONLY, (rows, 1)),
        )

    def _level(self, now: Fleet, plan: TrainingPlan) -> float:
        """Return the bandwidth of the lowest link a plan uses, over its base."""
        pairs: list[Pair] = [(link.source, link.dest) for link in links_used(now, plan.pipelines[0])]
        base = self.problem.fleet.links
        levels = [now.links[p].bandwidth_bytes_per_s / base[p].bandwidth_bytes_per_s for p in pairs]
        return min(levels, default=1.0)


def _cut(layers: int, domains: int) -> Iterator[tuple[int, ...]]:
    for visits in range(1, min(domains, MOST_VISITS) + 1):
        for order in permutations(range(domains), visits):
            for shares in _CUTS[visits]:
                ends = np.rint(np.cumsum(shares) / sum(shares) * layers).astype(int)
                sizes = np.diff(ends, prepend=0)
                if sizes.min() > 0:
                    yield tuple(np.repeat(order, sizes).tolist())


class AstraWorld:
    """Episodes of the environment at once, for `learning/ppo.py`; the one objective is its reward."""

    def __init__(self, envs: Sequence[AstraSimEnv], candidates: Candidates) -> None:
        self.num_envs = len(envs)
        self.kinds: tuple[tuple[str, int], ...] = (("world", len(envs)),)
        self._envs, self._candidates = tuple(envs), candidates

    def reset(self, rng: Draws) -> Options:
        """Start new episodes."""
        for env in self._envs:
            env.reset(seed=int(rng.integers(0, 2**31, 1)[0]))
        return self._look()

    def step(self, picks: Ints, rng: Draws) -> tuple[Options, Floats, Any]:
        """Take a step in each; all episodes are of one length."""
        rewards, ends = np.zeros((self.num_envs, 3)), np.zeros(self.num_envs, dtype=bool)
        for number, (env, pick) in enumerate(zip(self._envs, picks.tolist(), strict=True)):
            _, rewards[number, 0], _, ends[number], _ = env.step(self._candidates.placements[pick])
        return (self.reset(rng) if ends.all() else self._look()), rewards, ends

    def _look(self) -> Options:
        return self._candidates.options([env.network for env in self._envs])


@dataclass(frozen=True, slots=True)
class Judged:
    """What one rule took in one step of an episode, and what came of it, as the environment's `info` has it."""

    rule: str
    episode: int
    step: int
    placement: tuple[int, ...]
    reward: float
    info: Mapping[str, Any]


BEST: Final = "best_of_all"


def judge_rules(
    env: AstraSimEnv, candidates: Candidates, rules: Mapping[str, Choose], *, seeds: Sequence[int], steps: int
) -> Iterator[Judged]:
    """Yield what each rule earns on the same networks, and what the best of all candidates would have."""
    for episode, seed in enumerate(seeds):
        env.reset(seed=seed)
        for step in range(steps):
            options = candidates.options([env.network])
            outcomes = [env.judge(placement) for placement in candidates.placements]
            picks = {name: int(choose(options)[0]) for name, choose in rules.items()}
            picks[BEST] = int(np.argmax([reward for reward, _ in outcomes]))
            for rule, pick in picks.items():
                yield Judged(rule, episode, step, candidates.placements[pick], *outcomes[pick])
            env.renew()
