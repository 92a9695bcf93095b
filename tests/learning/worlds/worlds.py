"""Small re-planning worlds: two fleets whose links matter, calm unless a test asks for weather."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np

from strata.learning.worlds.instance import Instance, kind_of
from strata.learning.worlds.jobs import Chance
from strata.learning.worlds.links import LinkChance
from strata.learning.worlds.pool import Pool
from strata.learning.worlds.settings import WorldSettings
from strata.learning.worlds.world import World
from strata.training.plan.exact.problem import Problem
from strata.training.plan.shortlist.selection import shortlist
from tests.support.builders import card, domain, fleet, job, layers

CALM = WorldSettings(regimes=False, noise_sigma=0.0)


@cache
def pool(*, options: int = 12) -> Pool:
    """Two and three sites, two kinds of job each: one in step, one that may sum every 8 steps."""
    found = []
    for names, gbps in (("ab", 6.0), ("abc", 12.0)):
        whole = fleet(*(domain(name, 16, accelerator=card(gib=40)) for name in names), gbps=gbps, ms=20.0)
        half = fleet(*(domain(name, 8, accelerator=card(gib=40)) for name in names), gbps=gbps, ms=20.0)
        kinds = []
        for number, steps in enumerate(((), (8,))):
            work = job(layers(hidden_mib=8.0, mparams=200), batch=32, local_steps=steps)
            plans = [item.plan for item in shortlist(Problem.of(half, work), most=24)]
            kinds.append(kind_of(whole, work, plans, np.random.default_rng(number), most=options - 1))
        found.append(Instance(whole, tuple(kinds)))
    return Pool.of(found)


def world(envs: int = 1, *, seed: int = 0, settings: WorldSettings = CALM, **changes: Any) -> World:
    """A world that has begun."""
    made = World(pool(), envs, settings=replace(settings, **changes))
    made.reset(np.random.default_rng(seed))
    return made


def some(chance: Chance, rows: slice) -> Chance:
    """The chance of some of the environments."""

    def cut(value: Any) -> Any:
        if isinstance(value, LinkChance):
            return LinkChance(*(cut(getattr(value, part.name)) for part in fields(value)))
        return None if value is None else value[rows]

    return Chance(*(cut(getattr(chance, part.name)) for part in fields(chance)))
