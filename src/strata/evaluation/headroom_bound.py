"""What no rule earns more than in a simulated fleet: each job alone, with all that comes foreseen.

Relaxed, so that it is a bound: other jobs take no link and no device, a job may decide at every step, and goes
to a plan by way of others where that is shorter. Keep or switch is then one dynamic program a job.
"""

from __future__ import annotations

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.learning.worlds.world import World
from strata.training.replan.response import step_s


def alone(world: World) -> tuple[Floats, Bools]:
    """Return the true speed [N, P] now of each plan of the jobs of an environment, relative to its reference, with
    all links its own, and whether all its domains are up.
    """
    pool, row = world.pool, world.row[:, 0]
    inverse = np.zeros((world.num_envs, pool.num_pairs + 1))
    lateness = np.zeros_like(inverse)
    inverse[:, :-1], lateness[:, :-1] = 1 / world.links.factor, world.links.lateness
    rows, pair = np.arange(world.num_envs)[:, None, None], pool.pair[row]
    late = lateness[rows, pair]
    lag = pool.lag_s[row]
    if world.settings.latency_half_width:
        lag = lag * late.max(axis=-1)
    step = step_s(
        pool.compute_s[row], pool.hidden_s[row], pool.serial_s[row], pool.steady_s[row],
        pool.wait_s[row] * late, lag, inverse[rows, pair],
    )  # fmt: skip
    is_up = ~((pool.needs[row] > 0) & ~world.up[:, None]).any(axis=2)
    usable = pool.exists[row] & is_up
    return np.where(usable, pool.reference_s[row, None] / step, 0.0), is_up


def most(world: World, speeds: Floats, ups: Bools, arrivals: Ints) -> Floats:
    """Return [N] the most a job earns a step. speeds, ups [T, N, P]: see `alone`. arrivals [J]: steps of jobs."""
    pool, row, settings = world.pool, world.row[:, 0], world.settings
    steps, envs, plans = speeds.shape
    pause = np.where(pool.moves[row], pool.moved_s[row] + settings.restart_s, 0.0) / settings.interval_s
    pause[:, 0, 1:], pause[:, 1:, 0] = np.inf, np.inf  # waiting is no way, and nobody goes back to it
    for by in range(1, plans):
        pause = np.minimum(pause, pause[:, :, by, None] + pause[:, by, None, :])
    pause[:, np.arange(plans), np.arange(plans)] = 0.0
    # A job that lost a domain starts anywhere anew: it has nothing to move.
    anew = np.minimum(pause, settings.restart_s / settings.interval_s)
    speeds = np.concatenate([speeds, np.zeros((1, envs, plans))])
    value = np.zeros((steps + 2, envs, plans))
    env, plan = np.arange(envs)[:, None, None], np.arange(plans)
    for step in reversed(range(steps)):
        takes = np.minimum(np.where(ups[step][:, :, None], pause, anew), steps)
        begin = np.minimum(step + takes.astype(np.int64), steps)
        worth = speeds[begin, env, plan] * (1 - takes % 1) + value[begin + 1, env, plan]
        value[step] = worth.max(axis=2)
    first = value[arrivals].max(axis=2)  # [J, N]
    return np.asarray(first.sum(axis=0) / (len(arrivals) * steps))
