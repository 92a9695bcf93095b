"""What other jobs of a world earn beside each option of the one in turn: on shared links a plan takes from them.

For evaluations on the host: no training looks at it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strata.arrays import Floats
from strata.learning.worlds import observe
from strata.learning.worlds.world import World
from strata.training.replan.options import Options
from strata.training.replan.response import step_s


def options(world: World) -> Options:
    """Return `observe.options`, where what an option takes from other jobs is a loss of the one in turn."""
    own, beside = observe.options(world), others(world)
    kept = beside[world.envs, own.current.clip(0)]
    beside = beside - np.where(own.current >= 0, kept, beside.min(axis=1))[:, None]
    return replace(own, value=own.value + beside[..., None])


def others(world: World) -> Floats:
    """Return [N, P] the speed now of all other running jobs together, relative to their references, with links as
    they were measured, shared equally among their users, latency and load nominal.
    """
    pool, jobs, envs = world.pool, world.jobs, world.envs
    place, slots = world.turn, slice(0, world.slots)
    row, plan = world.row[:, slots], jobs.plan[:, slots]
    runs = (plan > 0) & (np.arange(world.slots) != place[:, None])
    own = pool.pair[world.row[envs, place]]  # (N, P, l)
    users = world.users()
    users[envs[:, None], own[envs, jobs.plan[envs, place]]] -= 1
    uses = np.zeros((*own.shape[:2], users.shape[1]), dtype=bool)
    np.put_along_axis(uses, own, values=True, axis=2)
    inverse = np.zeros(users.shape)
    inverse[:, :-1] = 1 / world.links.seen
    pair, every = pool.pair[row, plan], envs[:, None, None]  # (N, J, l)
    compute, hidden, lag = (table[row, plan] for table in (pool.compute_s, pool.hidden_s, pool.lag_s))
    serial, steady, wait = (table[row, plan] for table in (pool.serial_s, pool.steady_s, pool.wait_s))
    result = np.zeros(own.shape[:2])
    for option in range(own.shape[1]):
        sharing = users + uses[:, option]
        each = (inverse * sharing.clip(1))[every, pair]
        times = step_s(compute, hidden, serial, steady, wait, lag, each)
        result[:, option] = np.where(runs, pool.reference_s[row] / times, 0.0).sum(axis=1)
    return result
