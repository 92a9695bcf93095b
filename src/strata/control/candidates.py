"""The plans a job may run, how fast each is under any state of the links, and what going to another takes.

Exact: every figure is the cost model's (`StepModel`) for links as they are, each direction its own, not that of a
response fitted at nominal links. States are remembered, so a level that lasts costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from itertools import combinations, pairwise
from types import MappingProxyType
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.control.balance import balanced, unevenness
from strata.control.sharing import sent_s
from strata.decision import Reason
from strata.fleet.fleet import Fleet, Pair
from strata.simulate.analytic import StepModel, step_times_s
from strata.training.environment.network import scaled
from strata.training.hi_ppo.global_agent import RESTART_S
from strata.training.plan import explain
from strata.training.plan.planner import problem_of
from strata.training.plan.shortlist.layouts import layouts, searched
from strata.training.plan.shortlist.selection import shortlist
from strata.training.replan.relocation import lacks_bytes
from strata.training.replan.response import PlanResponse, pair_numbers
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan

LEVELS: Final = (1.0, 0.7, 0.5, 0.3, 0.15)
"""Shares of all links' bandwidth that plans are made for: a pipeline's warm-ups fit one of them."""

SLOWEST: Final = 1e-6
"""A link that is down, as a share of its bandwidth: what crosses it then never ends within a run."""

EVEN_COST: Final = 0.0025
"""Share of its rate that a plan may lose, at any of LEVELS, to spread work by devices: rates are off by more."""

MOST_PLANS: Final = 32
TRIALS: Final = 48
"""States of single links under which the plans worth keeping are looked for."""

SPREAD: Final = 0.3
"""Half-width of the noise that links are expected to have before they are known: seed 001 section 3.1."""

DRAWS: Final = 16

NOBODY_APART: Final[Mapping[Pair, Reason]] = MappingProxyType({})

_CLOSE: Final = 0.01
_SLACK: Final = 1e-6
_REMEMBERED: Final = 4096


class Candidates:
    """P plans of one job on one fleet, the best at nominal links first.

    apart: pairs of domains that cannot work on one job together, so no plan has both, and why.
    """

    def __init__(
        self, fleet: Fleet, job: TrainingJob, plans: Sequence[TrainingPlan], *,
        apart: Mapping[Pair, Reason] = NOBODY_APART,
    ) -> None:  # fmt: skip
        self.fleet, self.job, self.plans, self.apart = fleet, job, tuple(plans), apart
        self.pairs: tuple[Pair, ...] = tuple(fleet.links)
        self.moments: dict[object, object] = {}
        """What `outlook_of` looked at lately; the jobs of one kind share it."""
        self._known: dict[tuple[float, ...], Floats] = {}
        self._times_s: dict[tuple[int, tuple[float, ...]], float] = {}
        self.model = StepModel(fleet, job)
        self.with_plan = lru_cache(maxsize=4)(self._with_plan)
        self._response = lru_cache(maxsize=MOST_PLANS)(lambda plan: PlanResponse.of(self.model, (plan,)))
        self.moves_s = lru_cache(maxsize=_REMEMBERED)(self._moves_s)
        self._sent_s = lru_cache(maxsize=_REMEMBERED)(partial(sent_s, self.model))

    @classmethod
    def of(
        cls, fleet: Fleet, job: TrainingJob, *, apart: Mapping[Pair, Reason] = NOBODY_APART, least: int = 0
    ) -> Candidates:
        """Return the plans that are the fastest somewhere: best sets, single domains, warm-ups for slow links; and
        those for several jobs at once. All on `least` devices or more."""
        met = replace(fleet, links={pair: link for pair, link in fleet.links.items() if pair not in apart})
        nominal = problem_of(met, job)
        items, ways = layouts(nominal)
        for level in LEVELS if met.links else LEVELS[:1]:
            links = [scaled(link, bandwidth=level) for link in nominal.fleet.links.values()]
            slower = nominal.fleet.with_links(links)
            for way in ways:
                problem = way.relinked(slower) if level < 1 else way
                items += shortlist(problem, most=2 * MOST_PLANS, is_time=way is not nominal)
            if job.pins.names:  # the shortlist does not build plans for them
                items += searched(nominal.relinked(slower) if level < 1 else nominal)
        meet = (item.plan for item in items if apart.keys().isdisjoint(combinations(item.plan.domains, 2)))
        wide = (plan for plan in meet if plan.num_devices >= least)
        made = cls(fleet, job, list(dict.fromkeys(plan for plan in wide if plan.keeps(job.pins))), apart=apart)
        return made._worth_keeping() if made.plans else made

    def of_plans(self, plans: Sequence[TrainingPlan]) -> Candidates:
        """Return other plans of the same job."""
        return Candidates(self.fleet, self.job, plans, apart=self.apart)

    def _with_plan(self, plan: TrainingPlan) -> Candidates:
        """Return these and a plan that is in use, chosen when the fleet was another one."""
        return self if plan in self.index else self.of_plans((*self.plans, plan))

    def _worth_keeping(self) -> Candidates:
        rng = np.random.default_rng(0)
        states = [tuple(rng.choice(LEVELS, len(self.pairs))) for _ in range(TRIALS)]
        states += [(level,) * len(self.pairs) for level in LEVELS]
        states += [tuple(SLOWEST if name in pair else 1.0 for pair in self.pairs) for name in self._names]
        self.prepare(states)
        all_up = self.rates((1.0,) * len(self.pairs))
        without = np.where(self.devices.T > 0, 0.0, all_up)  # [K, P]: a domain that is drained, full or lost
        table = np.stack([*(self.rates(state) for state in states), *without[without.any(axis=1)]])  # [S, P]
        share = table / table.max(axis=1, keepdims=True)
        nominal = int(all_up.argmax())
        kept, best = [nominal], share[:, nominal].copy()
        while len(kept) < MOST_PLANS:
            gain = np.maximum(share - best[:, None], 0.0).sum(axis=0)
            pick = int(gain.argmax())
            if gain[pick] < _CLOSE:
                break
            kept.append(pick)
            best = np.maximum(best, share[:, pick])
        kept += self._beside_others(all_up)
        return self.of_plans([self.plans[i] for i in dict.fromkeys(kept)])._evened()

    def _beside_others(self, rates: Floats) -> list[int]:
        """Return the fastest plan, the fastest on what domains that leaves, and so on, and those of each domain
        alone: so a job that comes when others run finds a place while domains are free."""
        picked, uses, free = list[int](), self.devices > 0, rates
        while free.any():
            picked.append(int(free.argmax()))
            free = np.where(uses[:, uses[picked[-1]]].any(axis=1), 0.0, free)
        singles = np.where(uses.sum(axis=1) == 1, rates, 0.0)[:, None] * uses  # [P, K]
        return [*picked, *singles.argmax(axis=0)[singles.any(axis=0)].tolist()]

    def _evened(self) -> Candidates:
        """Return each plan, or the most even one like it that is about as fast (`balance`)."""
        ways = {plan: [plan, *balanced(self.job, plan, fits=self.model.fits)] for plan in self.plans}
        every = self.of_plans(list(dict.fromkeys(way for own in ways.values() for way in own)))
        states = [(level,) * len(self.pairs) for level in LEVELS]
        every.prepare(states)
        rates = dict(zip(every.plans, np.stack([every.rates(state) for state in states]).T, strict=True))
        picked = []
        for plan, own in ways.items():
            fast = [way for way in own if (rates[way] >= (1 - EVEN_COST) * rates[plan]).all()]
            pinned = [way for way in fast if way is plan or way.keeps(self.job.pins)]
            picked.append(min(pinned, key=lambda way: unevenness(self.job, way)))
        return self.of_plans(list(dict.fromkeys(picked)))

    @cached_property
    def column(self) -> dict[Pair, int]:
        """The number of each link."""
        return {pair: i for i, pair in enumerate(self.pairs)}

    @cached_property
    def index(self) -> dict[TrainingPlan, int]:
        """The number of each plan."""
        return {plan: i for i, plan in enumerate(self.plans)}

    @cached_property
    def names(self) -> list[str]:
        """What people call each plan, with its devices where that tells it from another one."""
        names = [explain.name(plan) for plan in self.plans]
        times = Counter(names)
        sizes = [f" ({plan.num_devices} device{'s' * (plan.num_devices > 1)})" for plan in self.plans]
        return [name + size * (times[name] > 1) for name, size in zip(names, sizes, strict=True)]

    @cached_property
    def devices(self) -> Ints:
        """[P, K]: devices that each plan takes of each domain."""
        used = [plan.devices() for plan in self.plans]
        return np.array([[item.get(name, 0) for name in self._names] for item in used], dtype=np.int64)

    @cached_property
    def domains(self) -> frozenset[str]:
        """Domains that some plan uses."""
        return frozenset(name for plan in self.plans for name in plan.domains)

    @cached_property
    def nominal(self) -> Floats:
        """[P]: steps a second at nominal links."""
        return self.rates((1.0,) * len(self.pairs))

    @cached_property
    def usual(self) -> Floats:
        """[P]: mean steps a second under the seeds' noise, drawn for each direction alone."""
        rng = np.random.default_rng(0)
        draws = 1 + rng.uniform(-SPREAD, SPREAD, (DRAWS, len(self.pairs)))
        states = [tuple(row) for row in draws.tolist()]
        self.prepare(states)
        return np.asarray(np.mean([self.rates(state) for state in states], axis=0))

    @cached_property
    def _names(self) -> list[str]:
        return [domain.name for domain in self.fleet.domains]

    def fleet_at(self, factors: Sequence[float]) -> Fleet:
        """Return the fleet with each directed link at a share of its bandwidth, in the order of `pairs`."""
        links = zip(self.fleet.links.values(), factors, strict=True)
        return self.fleet.with_links(scaled(link, bandwidth=max(factor, SLOWEST)) for link, factor in links)

    def rates(self, factors: tuple[float, ...]) -> Floats:
        """Return steps a second [P] with each link at a share of its bandwidth, in the order of `pairs`.

        Speeds of the domains may follow: the slowest that a plan uses holds up all of what it computes. That it
        then hides more of its links is not counted, so the rate is a lower bound.
        """
        speeds = factors[len(self.pairs) :]
        key = self._key(factors)
        if key not in self._known:
            self.prepare((factors,))
        rates = self._known[key]
        if all(speed == 1 for speed in speeds):
            return rates
        least = np.where(self.devices > 0, np.maximum(speeds, SLOWEST), np.inf).min(axis=1)  # [P]
        return np.asarray(rates / (1 + rates * (1 / least - 1) * self._compute_s))

    def rates_of(self, plan: TrainingPlan, links: Sequence[int], factors: Floats) -> Floats:
        """Return steps a second [S] of one plan with these links [l] at shares [S, l] of their bandwidth, others
        as stated: in closed form (`PlanResponse`), a pair of domains as its slower direction.
        """
        states = np.ones((len(factors), self._numbers.max() + 1))
        for number, column in zip(self._numbers[links].tolist(), factors.T, strict=True):
            states[:, number] = np.minimum(states[:, number], np.maximum(column, SLOWEST))
        return 1 / self._response(plan).step_s(states)[:, 0]

    @cached_property
    def _numbers(self) -> Ints:
        """[L]: the number of the pair of domains that each link joins (`pair_numbers`)."""
        numbers = pair_numbers(len(self.fleet.domains))
        return np.array([numbers[self.fleet.index(a), self.fleet.index(b)] for a, b in self.pairs])

    def loads(self, plan: TrainingPlan, factors: tuple[float, ...]) -> Mapping[int, float]:
        """Return the share of each link's time that a plan fills where no other job sends, by number of the link.

        factors: as for `rates`.
        """
        if len(plan.domains) == 1:
            return {}
        known = self.with_plan(plan)
        rate = float(known.rates(factors)[known.index[plan]])
        return {
            self.column[pair]: min(1.0, rate * busy_s / max(factors[self.column[pair]], SLOWEST))
            for pair, busy_s in self._sent_s(plan).items()
        }

    @cached_property
    def _compute_s(self) -> Floats:
        """[P]: of a step at nominal links, what takes longer on slower devices (`PlanResponse`)."""
        return PlanResponse.of(self.model, self.plans).compute_s

    def prepare(self, states: Sequence[tuple[float, ...]]) -> None:
        """Work out the rates under many states together: a tenth of what they take one after another."""
        by_key = {self._key(state): state[: len(self.pairs)] for state in states}
        fresh = [state for key, state in by_key.items() if key not in self._known]
        if not fresh:
            return
        if len(self._known) + len(by_key) > _REMEMBERED:
            self._known.clear()
            self._times_s.clear()
            fresh = list(by_key.values())
        cases: dict[tuple[int, tuple[float, ...]], tuple[StepModel, TrainingPlan]] = {}
        keys = []
        for state in fresh:
            model = self.model.at(self.fleet_at(state))
            # What no message of a plan crosses does not change its time.
            keys.append([(p, tuple(state[i] for i in own)) for p, own in enumerate(self._own_links)])
            for key in keys[-1]:
                if key not in self._times_s:
                    cases[key] = (model, self.plans[key[0]])
        self._times_s.update(zip(cases, step_times_s(tuple(cases.values())).tolist(), strict=True))
        for state, own_keys in zip(fresh, keys, strict=True):
            times = np.array([self._times_s[key] for key in own_keys])
            self._known[self._key(state)] = np.where(np.isfinite(times), 1 / times, 0.0)

    def _key(self, factors: Sequence[float]) -> tuple[float, ...]:
        """Return what matters of a state: the links that some plan sends over."""
        return tuple([factors[i] for i in self._crossed])

    @cached_property
    def _crossed(self) -> list[int]:
        return sorted({i for own in self._own_links for i in own})

    def beyond_noise(self, factors: Sequence[float]) -> Bools:
        """Return which plans [P] cross a link that the noise links are expected to have does not explain."""
        beyond = np.abs(np.asarray(factors) - 1) > SPREAD + _SLACK
        return np.array([beyond[list(own)].any() for own in self._own_links], dtype=bool)

    @cached_property
    def _own_links(self) -> list[tuple[int, ...]]:
        used = [links_used(plan) for plan in self.plans]
        return [tuple(i for i, pair in enumerate(self.pairs) if pair in own) for own in used]

    @cached_property
    def _holdings(self) -> tuple[Bools, Ints]:
        """[U, K, layers]: what domains hold, of the plans that differ in it; [P] the number of each plan's."""
        holds = np.zeros((len(self.plans), len(self._names), len(self.job.layers)), dtype=bool)
        for p, plan in enumerate(self.plans):
            for stage in (stage for pipeline in plan.pipelines for stage in pipeline.stages):
                last = stage.first_layer + stage.num_layers
                holds[p, self.fleet.index(stage.domain), stage.first_layer : last] = True
        unlike, number = np.unique(holds.reshape(len(holds), -1), axis=0, return_inverse=True)
        return np.reshape(unlike, (-1, *holds.shape[1:])), number.ravel()

    @cached_property
    def _lacks_bytes(self) -> Floats:
        """[U, V, K]: bytes of weights that domain K holds under plans like V and not under those like U."""
        holds, _ = self._holdings
        return lacks_bytes(self.job, holds)

    def _moves_s(self, factors: tuple[float, ...]) -> Floats:
        """Return [P, Q]: restart and the moving of weights, over the widest path that is there; inf where none is.

        A domain fetches what it lacks from the best of those that the plan in use runs in, all at the same time.
        """
        count = len(self._names)
        speed = np.zeros((count, count))
        links = zip(self.pairs, self.fleet.links.values(), factors, strict=False)  # speeds of domains may follow
        for (source, dest), link, factor in links:
            down = factor <= SLOWEST
            speed[self.fleet.index(source), self.fleet.index(dest)] = (
                0.0 if down else link.bandwidth_bytes_per_s * factor
            )
        for relay in range(count):
            speed = np.maximum(speed, np.minimum(speed[:, relay, None], speed[None, relay, :]))
        np.fill_diagonal(speed, 0.0)
        holds, number = self._holdings
        is_holder = np.any(holds, axis=2, keepdims=True)  # [U, K, 1]
        best = np.where(is_holder, speed[None], 0.0).max(axis=1)  # [U, K]
        lacks = self._lacks_bytes
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = np.where(lacks > 0, lacks / best[:, None, :], 0.0).max(axis=2)
        moved = moved[number][:, number] + RESTART_S
        np.fill_diagonal(moved, 0.0)
        return np.asarray(moved)


@lru_cache(maxsize=_REMEMBERED)
def plan_links(plan: TrainingPlan) -> tuple[Pair, ...]:
    """Return `links_used`, remembered: every decision asks for those of all jobs."""
    return tuple(sorted(links_used(plan)))


def links_used(plan: TrainingPlan) -> set[Pair]:
    """Return the directed pairs that exchange activations or gradients under a plan."""
    pairs = {pair for pipeline in plan.pipelines for pair in pairwise(pipeline.domains)}
    for first, second in combinations(plan.pipelines, 2):
        pairs |= {(a, b) for a in first.domains for b in second.domains if a != b}
    return pairs | {(b, a) for a, b in pairs}
