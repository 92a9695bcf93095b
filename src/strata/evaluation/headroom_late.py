"""What nobody can know whose probes are late or lost: no course may be paid for it.

For a job alone, what its plan does in a step beyond what could be expected by the regimes that were seen is zero
in the mean, whatever was decided by what was seen. So it may be taken off what every course earns: the most that
any course earns then is, in the mean, still no less than what any policy earns (penalties of information
relaxations: Brown, Smith and Sun 2010, Operations Research 58, 785-801).
"""

from __future__ import annotations

import numpy as np

from strata.arrays import Floats
from strata.evaluation.headroom_search import Begin
from strata.training.replan.response import step_s


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
