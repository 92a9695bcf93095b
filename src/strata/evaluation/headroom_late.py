"""What nobody can know: what probes that are late or lost did not show, and what the next step makes of links.

For a job alone, what its plan does in a step beyond what could be expected by the regimes that were seen is zero
in the mean, whatever was decided by what was seen. So is what the next step of links adds to what a plan is worth.
So both may be taken off what every course earns: the most that any course earns then is, in the mean, still no
less than what any policy earns (penalties of information relaxations: Brown, Smith and Sun 2010, Operations
Research 58, 785-801).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.evaluation.headroom_search import Begin
from strata.learning.worlds import observe
from strata.learning.worlds.rollouts import Futures
from strata.training.replan.response import step_s

AHEAD: Final = 5
"""Decisions over which what comes next is weighed."""

WEIGHT: Final = 0.6
"""Of that in the bound: any holds; on fleets that `learn evaluate` does not have it was lowest about here."""


def unforeseen(begin: Begin) -> Floats:
    """Return [T, N, P]: what regimes of its links that nobody has seen make of the speed of each plan, of one job.

    For each link what its regime makes of the plan, the others being as expected, less the same expected by the
    regime seen last and the link's chain; summed over links. The world ends its episode.
    """
    world, rng = begin()
    pool, row, settings = world.pool, world.row[:, 0], world.settings
    chains, late, steps = world.link_world.chains, settings.stale_steps, settings.episode_steps
    regimes, lost = [], []
    for _ in range(steps):
        regimes.append(np.eye(3)[world.links.regime])  # (N, Q, 3)
        lost.append(world.links.lost)
        world.step(np.zeros(world.num_envs, dtype=np.int64), rng)
    chain, env, pair = world.links.chain, np.arange(world.num_envs)[:, None, None], pool.pair[row]
    tables = (pool.compute_s, pool.hidden_s, pool.serial_s, pool.steady_s, pool.wait_s, pool.lag_s)
    compute, hidden, serial, steady, wait, lag = (table[row] for table in tables)
    slots = np.flatnonzero((pair < pool.num_pairs).any(axis=(0, 1)))

    def of_plans(links: Floats) -> Floats:
        return np.asarray(np.pad(links, ((0, 0), (0, 1), (0, 0)))[env, pair])

    inverse, result = 1 / chains.levels[chain], np.zeros((steps, *pair.shape[:2]))
    level = of_plans(inverse)  # (N, P, l, 3)
    known = np.diff(chains.start, axis=-1, prepend=0.0, append=1.0)[chain]
    for step in range(steps):
        newest = max(step - late, 0)
        if newest:
            known = np.einsum("nqi,nqij->nqj", known, chains.transition[chain])
        known = np.where(lost[step][..., None], known, regimes[newest])
        ahead = np.stack([np.linalg.matrix_power(each, step - newest) for each in chains.transition])
        chance = np.einsum("nqi,nqij->nqj", known, ahead[chain])
        expected = of_plans((chance * inverse).sum(axis=-1, keepdims=True))[..., 0]
        surprise = of_plans(regimes[step] - chance)
        for slot in slots:
            for regime in range(3):
                links = expected.copy()
                links[:, :, slot] = level[:, :, slot, regime]
                times = step_s(compute, hidden, serial, steady, wait, lag, links)
                speed = pool.reference_s[row, None] / times
                result[step] += np.where(np.isfinite(speed), speed, 0.0) * surprise[:, :, slot, regime]
    return result


def luck(begin: Begin) -> Floats:
    """Return [T, N, P]: what the links' next step makes of what each plan of one job is worth in `Futures`, beyond
    what their regimes and noise let expect. The draws are nobody else's: chosen by them it were not zero in the
    mean.
    """
    world, rng = begin()
    steps, shape = world.settings.episode_steps, (world.num_envs, world.pool.num_options)
    result, legal = np.zeros((steps, *shape)), world.pool.exists[world.row[:, 0]].copy()
    legal[:, 0] = False
    every, draws = np.broadcast_to(np.arange(shape[1]), shape), np.random.SeedSequence(19).spawn(steps)
    for step in range(steps - 1):
        options = replace(observe.options(world), current=np.full(shape[0], -1), legal=legal)
        expected, came = (
            Futures(world, options, np.random.default_rng(draws[step]), links=replace(world.links))
            for _ in range(2)
        )
        world.step(np.zeros(shape[0], dtype=np.int64), rng)
        decisions = min(AHEAD, steps - step)
        more = came.earned(every, decisions=decisions, after=world.links)
        more -= expected.earned(every, decisions=decisions)
        result[step] = np.where(legal, WEIGHT * more.mean(axis=1), 0.0)
    return result
