"""Where there is room for a policy: what fixed rules earn in simulated fleets, what a search reaches that foresees
all that comes, and what no rule earns more than.

`strata learn evaluate` prints it. The fleets are those of training (`learning/worlds`), in instances that no
training sees. Jobs never end, so links and jobs are the same ones whatever is decided. A job is in turn once in
DECIDE_S.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.evaluation.headroom_bound import Course, most
from strata.evaluation.headroom_late import luck, unforeseen
from strata.evaluation.headroom_search import Begin, Foreseen, searched
from strata.learning.curriculum import EVALUATION, stream
from strata.learning.worlds import observe, others, rollouts
from strata.learning.worlds.jobs import Chance
from strata.learning.worlds.pool import Pool, make_pool
from strata.learning.worlds.settings import PRESETS, WorldSettings
from strata.learning.worlds.world import World
from strata.stats import mean_interval
from strata.training.hi_ppo.policy import HiPpoPolicy, safe_policy
from strata.training.replan import rules

DECIDE_S: Final = 300.0
DECISIONS: Final = 48
"""Of each job: four hours."""

EPISODES: Final = {1: 16, 4: 12, 16: 8}
"""By number of jobs."""

SHARES: Final = {1: 1.0, 4: 0.25, 16: 0.0625}
"""Of each domain's nodes, what the plans of a job are made for, one node at least."""

MARGINS: Final = (0.25, 0.5, 1.0, 2.0)
SPANS: Final = (2, 4, 8)

Pick = Callable[[World], Ints]
"""The option of the job in turn in each environment."""

ROOM: Final = 0.02
"""Share of the bound from which on there is headroom."""

LINKS: Final = {
    "noise": PRESETS["seed30"],
    "regimes": PRESETS["regimes"],
    "outages": PRESETS["outage"],
    "diurnal": PRESETS["diurnal"],
    "noisy probes": replace(PRESETS["regimes"], observed_sigma=0.25),
    "stale probes": replace(PRESETS["regimes"], stale_steps=2),
    "missing probes": replace(PRESETS["regimes"], missing_share=0.3),
    "arriving jobs": PRESETS["regimes"],
}
"""How links change, or what is seen of them; in `arriving jobs` half of the jobs come one after another later."""

SEVERAL: Final = {1: tuple(LINKS)[:-1], 4: ("noise", "regimes", "outages", "stale probes", "arriving jobs"),
                  16: ("regimes", "arriving jobs")}  # fmt: skip
FEW: Final = {1: SEVERAL[1], 4: ("regimes", "arriving jobs"), 16: ("regimes",)}
"""What is looked at by number of jobs: all of it, and what takes some minutes."""

FEW_DOMAINS: Final = (4, 8)
ALL_DOMAINS: Final = (4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Place:
    """One world: fleets of a number of domains with a number of jobs."""

    name: str
    jobs: int
    domains: int

    @property
    def settings(self) -> WorldSettings:
        """Return the world, in which each job is in turn once in DECIDE_S."""
        alone = replace(LINKS[self.name], interval_s=DECIDE_S, episode_steps=DECISIONS)
        return alone.with_jobs(self.jobs)

    @property
    def arrivals(self) -> Ints:
        """[jobs]: the step at which each is there."""
        late = self.jobs // 2 if self.name == "arriving jobs" else 0
        last = self.settings.episode_steps // 2
        later = np.linspace(0, last, late + 1)[1:] if late else np.zeros(0)
        return np.concatenate([np.zeros(self.jobs - late), later]).astype(np.int64)


class EndlessJobs(World):
    """A world whose jobs never end: all of one kind in all environments, each there from its step on."""

    def __init__(self, pool: Pool, place: Place) -> None:
        super().__init__(pool, EPISODES[place.jobs], settings=place.settings)
        self._arrivals, self._kind = place.arrivals, list(SHARES).index(place.jobs)

    def begin(self, chance: Chance) -> None:
        """Begin with the jobs that are there at once."""
        super().begin(chance)
        self.jobs.left_s[:] = 0.0
        self.jobs.kind[:] = self._kind
        self.turn = self.turn * 0 - 1
        self._arrive(chance)
        self._next_turn()

    def _arrive(self, chance: Chance) -> None:
        there = np.append(self._arrivals == self.step_index, False)
        self.jobs.left_s[:, there] = np.inf


@dataclass(frozen=True, eq=False, slots=True)
class Earned:
    """What a job earns a step in each episode: by rule, by a search that foresees all, and the bound.

    With one job the bound is one of the mean over episodes, below what who foresees all earns.
    """

    place: Place
    rules: dict[str, Floats]
    foreseen: Floats
    bound: Floats


def places(*, is_whole: bool) -> list[Place]:
    """Return the worlds that are looked at; those of one size follow one another."""
    sizes, several = (ALL_DOMAINS, SEVERAL) if is_whole else (FEW_DOMAINS, FEW)
    return [Place(name, jobs, size) for size in sizes for jobs, names in several.items() for name in names]


def measure(policy: HiPpoPolicy, *, is_whole: bool, advance: Callable[[float], None]) -> dict[str, Any]:
    """Return what each rule earns a job and step in each world, and how much of the room the policy closes; see
    `summary`.
    """
    results, every = [], places(is_whole=is_whole)
    for place in every:
        results.append(measured(place, policy))
        advance(len(results) / len(every))
    return summary(results)


@lru_cache(maxsize=1)
def fleets(domains: int) -> Pool:
    """Return the fleets of one size, which take seconds to make."""
    seed = int(stream(0, EVALUATION, domains, 0).integers(2**31))
    return make_pool(seed, instances=4, domains=(domains, domains), shares=tuple(SHARES.values()))


def measured(place: Place, policy: HiPpoPolicy) -> Earned:
    """Return what is earned in one world. Rules see what was measured and their own job; the policy's network, and
    the untrained one, which is the safe rule, see what to believe of it and what an option takes from other jobs.
    hi_ppo is what decides in the control loop: the better of both by the policy's record, held to rollouts.
    """
    pool, numbers = fleets(place.domains), (place.domains, place.jobs, list(LINKS).index(place.name))
    seed = int(stream(0, EVALUATION, *numbers).integers(2**31))

    def begin() -> tuple[World, np.random.Generator]:
        world, rng = EndlessJobs(pool, place), np.random.default_rng(seed)
        world.reset(rng)
        return world, rng

    by_rule = {name: _played(begin, pick)[0] for name, pick in _rules().items()}
    by_rule["untrained"], first = _played(begin, _believing(safe_policy()))
    by_rule["network"] = _played(begin, _believing(policy))[0]
    by_rule["hi_ppo"], plans = _played(begin, _looking_ahead(policy.among(place.jobs)))
    if by_rule["untrained"].mean() > by_rule["hi_ppo"].mean():
        plans = first
    foreseen, course = Foreseen.of(begin), _course(begin)
    if place.jobs == 1:
        chance = _chance(begin, place.settings)
        step, env = np.ogrid[: len(chance), : chance.shape[1]]
        given = chance[step, env, plans[0]].mean(axis=0)  # zero in the mean: what this chance gave the policy
        bound = most(begin()[0], course, foreseen.turns, unforeseen=chance) + given
    else:
        bound = most(begin()[0], course, foreseen.turns)
    return Earned(place, by_rule, searched(begin, plans, foreseen), bound)


def summary(results: Sequence[Earned]) -> dict[str, Any]:
    """Return the table: rewards relative to a job's best single domain. `share_of_headroom_closed`: of what lies
    between the better of never and hysteresis and the bound, mean over worlds where that is ROOM of it or more;
    `share_of_foreseen_closed`: of what lies between them and what the search reaches, likewise.
    """
    fixed = max(MARGINS, key=lambda margin: sum(float(each.rules[_margin(margin)].mean()) for each in results))
    worlds: list[dict[str, Any]] = []
    closed: dict[tuple[str, str], list[float]] = {
        (end, who): [] for end in ("bound", "foreseen") for who in ("hi_ppo", "untrained")
    }
    for each in results:
        rng, place = np.random.default_rng(0), each.place
        intervals = {name: mean_interval(values, rng=rng) for name, values in _shown(each.rules, fixed).items()}
        best = max(intervals["never"].estimate, intervals["hysteresis"].estimate)
        ends = {"bound": float(each.bound.mean()), "foreseen": float(each.foreseen.mean())}
        for (name, who), shares in closed.items():
            if ends[name] - best >= ROOM * ends[name]:
                shares.append((intervals[who].estimate - best) / (ends[name] - best))
        worlds.append({
            "name": place.name, "jobs": place.jobs, "domains": place.domains,
            "rules": {n: {"mean": i.estimate, "low": i.low, "high": i.high} for n, i in intervals.items()}, **ends,
        })  # fmt: skip
    return {
        "worlds": worlds,
        "fixed_margin": fixed,
        "families": [family for key in ("jobs", "domains", "name") for family in _families(worlds, key)],
        "share_of_headroom_closed": _interval(closed["bound", "hi_ppo"]),
        "share_of_foreseen_closed": _interval(closed["foreseen", "hi_ppo"]),
        "untrained": {
            "share_of_headroom_closed": _interval(closed["bound", "untrained"]),
            "share_of_foreseen_closed": _interval(closed["foreseen", "untrained"]),
        },
    }


def _families(worlds: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return, of worlds that are alike in something, what each earns more than the better of never and hysteresis,
    the mean of shares, and which earns the most; `fixed` where none earns more.
    """
    families = []
    for value in dict.fromkeys(world[key] for world in worlds):
        alike = [
            {name: rule["mean"] for name, rule in world["rules"].items()}
            for world in worlds
            if world[key] == value
        ]
        best = np.array([max(means["never"], means["hysteresis"]) for means in alike])
        gains = {
            who: float(np.mean(np.array([means[who] for means in alike]) / best - 1))
            for who in ("untrained", "network", "hi_ppo")
        }
        best_of = max(gains, key=lambda who: gains[who])
        families.append(
            {key: value, "worlds": len(alike), **gains, "best": best_of if gains[best_of] > 0 else "fixed"}
        )
    return families


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    if len(values) < 2:
        return dict.fromkeys(("mean", "low", "high"))
    interval = mean_interval(values, rng=np.random.default_rng(0))
    return {"mean": interval.estimate, "low": interval.low, "high": interval.high}


def _margin(margin: float) -> str:
    return f"margin {margin:g}"


def _span(steps: int) -> str:
    return f"span {steps}"


def _rules() -> dict[str, Pick]:
    margins = {_margin(margin): rules.hysteresis(margin) for margin in MARGINS}
    spans = {_span(steps): rules.mpc(steps) for steps in SPANS}
    every: dict[str, rules.Rule] = {"never": rules.keep, **margins, **spans, "exact_every_time": rules.myopic}
    return {name: _measuring(rule) for name, rule in every.items()}


def _measuring(rule: rules.Rule) -> Pick:
    return lambda world: rule(observe.options(world, believes=False))


def _believing(policy: HiPpoPolicy) -> Pick:
    return lambda world: policy.choose(others.options(world))


def _looking_ahead(policy: HiPpoPolicy) -> Pick:
    def pick(world: World) -> Ints:
        options = others.options(world)
        return rollouts.surest(world, options, policy.choose(options))

    return pick


def _shown(earned: dict[str, Floats], fixed: float) -> dict[str, Floats]:
    """Return the rules of the table: the margin that is best over all worlds, and what is best in this one."""
    margin = max(MARGINS, key=lambda margin: float(earned[_margin(margin)].mean()))
    steps = max(SPANS, key=lambda steps: float(earned[_span(steps)].mean()))
    return {
        "never": earned["never"],
        "hysteresis": earned[_margin(fixed)],
        "hysteresis_tuned": earned[_margin(margin)],
        "mpc_tuned": earned[_span(steps)],
        "exact_every_time": earned["exact_every_time"],
        "untrained": earned["untrained"],
        "network": earned["network"],
        "hi_ppo": earned["hi_ppo"],
    }


def _chance(begin: Begin, settings: WorldSettings) -> Floats:
    """Return [T, N, P]: what no course of one job is paid for, as nobody can know it."""
    if settings.stale_steps:
        return unforeseen(begin)
    return luck(begin) + (unforeseen(begin) if settings.missing_share else 0.0)


def _played(begin: Begin, pick: Pick) -> tuple[Floats, Ints]:
    """Return what a rule earns a job and step in each episode, and the plans of all jobs [J, T, N]."""
    world, rng = begin()
    steps = world.settings.episode_steps
    total, plans = np.zeros(world.num_envs), []
    for _ in range(steps):
        total += world.step(pick(world), rng).reward[:, 0]
        plans.append(world.jobs.plan[:, : world.slots].T.copy())
    return total / steps, np.stack(plans, axis=1)


def _course(begin: Begin) -> Course:
    world, rng = begin()
    parts = []
    for _ in range(world.settings.episode_steps):
        parts.append(Course.now(world))
        world.step(np.zeros(world.num_envs, dtype=np.int64), rng)
    return Course.joined(parts)
