"""Where there is room for a policy: what fixed rules earn in simulated fleets, and what no rule earns more than.

`strata learn evaluate` prints it. The fleets are those of training (`learning/worlds`), in instances that no
training sees. Jobs never end, so links and jobs are the same ones whatever is decided. A job is in turn once in
DECIDE_S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.evaluation.headroom_bound import Course, most
from strata.learning.curriculum import EVALUATION, stream
from strata.learning.tables.table import Choose
from strata.learning.worlds import observe, others
from strata.learning.worlds.jobs import Chance
from strata.learning.worlds.pool import Pool, make_pool
from strata.learning.worlds.settings import PRESETS, WorldSettings
from strata.learning.worlds.world import World
from strata.stats import mean_interval
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
"""What is looked at by number of jobs: all of it, and what takes two minutes."""

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
        settings, each = LINKS[self.name], self.jobs
        stay = tuple(1 / 3 + 2 / 3 * ((end - 1 / 3) * 3 / 2) ** (1 / each) for end in settings.stay)
        return replace(
            settings, interval_s=DECIDE_S / each, stay=(stay[0], stay[1]), slots=each,
            stale_steps=settings.stale_steps * each, episode_steps=DECISIONS * each,
            jobs_per_hour=1e-12 if each > 1 else 0.0,
        )  # fmt: skip

    @property
    def arrivals(self) -> Ints:
        """[jobs]: the step at which each is there."""
        late = self.jobs // 2 if self.name == "arriving jobs" else 0
        last = self.settings.episode_steps // 2
        later = np.linspace(0, last, late + 1)[1:] if late else np.zeros(0)
        return np.concatenate([np.zeros(self.jobs - late), later]).astype(np.int64)


class EndlessJobs(World):
    """A world whose jobs never end: all of one kind in an environment, each there from its step on."""

    def __init__(self, pool: Pool, place: Place) -> None:
        super().__init__(pool, EPISODES[place.jobs], settings=place.settings)
        self._arrivals, self._kind = place.arrivals, list(SHARES).index(place.jobs)

    def begin(self, chance: Chance) -> None:
        """Begin with the jobs that are there at once, none in the queue."""
        super().begin(chance)
        self.waiting = self.waiting * 0
        self.jobs.left_s[:] = 0.0
        self.jobs.kind[:] = self._kind
        self._arrive(chance)
        self._next_turn()

    def _arrive(self, chance: Chance) -> None:
        there = np.append(self._arrivals == self.step_index, False)
        self.jobs.left_s[:, there] = np.inf


def measure(policy: Choose, *, is_whole: bool, advance: Callable[[float], None]) -> dict[str, Any]:
    """Return what each rule earns a job and step in each world, relative to the job's best single domain, and the
    bound; and how much of what lies between the better of never and hysteresis and the bound the policy closes,
    mean over worlds where that is ROOM or more.
    """
    sizes = ALL_DOMAINS if is_whole else FEW_DOMAINS
    places = [
        Place(name, jobs, size) for size in sizes for jobs, names in (SEVERAL if is_whole else FEW).items()
        for name in names
    ]  # fmt: skip
    earned: list[dict[str, Floats]] = []
    bounds: list[Floats] = []
    for number, (place, pool) in enumerate(_with_pools(places)):
        numbers = (place.domains, place.jobs, list(LINKS).index(place.name))
        seed = int(stream(0, EVALUATION, *numbers).integers(2**31))
        each = {name: _earned(pool, place, rule, seed) for name, rule in _rules().items()}
        earned.append({**each, "hi_ppo": _earned(pool, place, policy, seed, sees_others=place.jobs > 1)})
        bounds.append(_bound(pool, place, seed))
        advance((number + 1) / len(places))
    fixed = max(MARGINS, key=lambda margin: sum(float(each[_margin(margin)].mean()) for each in earned))
    worlds, closed = [], []
    for place, each, bounded in zip(places, earned, bounds, strict=True):
        shown = _shown(each, fixed)
        rng = np.random.default_rng(0)
        intervals = {name: mean_interval(values, rng=rng) for name, values in shown.items()}
        bound = float(bounded.mean())
        best = max(intervals["never"].estimate, intervals["hysteresis"].estimate)
        if bound - best >= ROOM * bound:
            closed.append((intervals["hi_ppo"].estimate - best) / (bound - best))
        worlds.append({
            "name": place.name, "jobs": place.jobs, "domains": place.domains,
            "rules": {n: {"mean": i.estimate, "low": i.low, "high": i.high} for n, i in intervals.items()},
            "bound": bound,
        })  # fmt: skip
    return {
        "worlds": worlds,
        "fixed_margin": fixed,
        "share_of_headroom_closed": _interval(closed),
    }


def _interval(values: Sequence[float]) -> dict[str, float | None]:
    if len(values) < 2:
        return dict.fromkeys(("mean", "low", "high"))
    interval = mean_interval(values, rng=np.random.default_rng(0))
    return {"mean": interval.estimate, "low": interval.low, "high": interval.high}


def _with_pools(places: Sequence[Place]) -> Iterator[tuple[Place, Pool]]:
    """Yield each world with its fleets, which take seconds to make: those of one size follow one another."""
    made: tuple[int, Pool] | None = None
    for place in places:
        if made is None or made[0] != place.domains:
            seed = int(stream(0, EVALUATION, place.domains, 0).integers(2**31))
            size = (place.domains, place.domains)
            made = place.domains, make_pool(seed, instances=4, domains=size, shares=tuple(SHARES.values()))
        yield place, made[1]


def _margin(margin: float) -> str:
    return f"margin {margin:g}"


def _span(steps: int) -> str:
    return f"span {steps}"


def _rules() -> dict[str, Choose]:
    margins = {_margin(margin): rules.hysteresis(margin) for margin in MARGINS}
    spans = {_span(steps): rules.mpc(steps) for steps in SPANS}
    return {"never": rules.keep, **margins, **spans, "exact_every_time": rules.myopic}


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
        "hi_ppo": earned["hi_ppo"],
    }


def _earned(pool: Pool, place: Place, choose: Choose, seed: int, *, sees_others: bool = False) -> Floats:
    """Return what a rule earns a job and step in each episode. sees_others: what a plan costs other jobs."""
    world, rng = EndlessJobs(pool, place), np.random.default_rng(seed)
    world.reset(rng)
    steps = world.settings.episode_steps
    total = np.zeros(world.num_envs)
    for _ in range(steps):
        options = others.options(world) if sees_others else observe.options(world)
        total += world.step(choose(options), rng).reward[:, 0]
    return total / steps


def _bound(pool: Pool, place: Place, seed: int) -> Floats:
    """Return what no rule earns more than in each episode: see `headroom_bound`."""
    world, rng = EndlessJobs(pool, place), np.random.default_rng(seed)
    world.reset(rng)
    parts = []
    for _ in range(world.settings.episode_steps):
        parts.append(Course.now(world))
        world.step(np.zeros(world.num_envs, dtype=np.int64), rng)
    return most(world, Course.joined(parts), place.arrivals)
