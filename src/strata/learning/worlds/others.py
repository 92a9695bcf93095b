"""What other jobs earn beside each option of the one in turn: on shared links a plan takes from them."""

from __future__ import annotations

from dataclasses import replace

from strata.learning.worlds import observe
from strata.learning.worlds.world import World
from strata.training.replan.arrays import Floats, rows_of
from strata.training.replan.options import HORIZONS, Options
from strata.training.replan.response import step_s


def options(world: World) -> Options:
    """Return `observe.options`, where what an option takes from other jobs is a loss of the one in turn."""
    own = observe.options(world)
    if world.slots == 1:
        return own
    xp, beside = world.xp, others(world)
    kept, runs = beside[world.envs, own.current.clip(0)], (own.current >= 0)[:, None, None]
    beside = beside - xp.where(runs, kept[:, None], xp.min(beside, axis=1)[:, None])
    # Of a world's options the values are worth the preference's share of efficiency.
    return replace(own, value=own.value + world.preference[:, :1, None] * beside)


def others(world: World) -> Floats:
    """Return [N, P, H] the speed of all other running jobs together now and at HORIZONS, relative to their
    references, if they keep their plans; links as in `observe.options`, shared equally among their users, latency
    and load nominal.
    """
    pool, jobs, envs, xp = world.pool, world.jobs, world.envs, world.xp
    place, slots, width = world.turn, slice(0, world.slots), world.pool.num_pairs + 1
    row, plan = world.row[:, slots], jobs.plan[:, slots]
    runs = (plan > 0) & (xp.arange(world.slots, device=envs.device) != place[:, None])
    own = pool.pair[world.row[envs, place]]  # (N, P, l)
    users = world.users()
    users[envs[:, None], own[envs, jobs.plan[envs, place]]] -= 1
    inverse = xp.zeros((len(HORIZONS), len(envs), width), dtype=xp.float32, device=envs.device)
    inverse[:, :, :-1] = xp.permute_dims(world.links_ahead(), (0, 2, 1))
    flat = pool.pair[row, plan] + (envs * width)[:, None, None]  # (N, J, l)
    level = inverse.reshape(len(HORIZONS), -1)[:, flat.reshape(-1)].reshape(len(HORIZONS), *flat.shape)
    terms = [rows_of(table.reshape(-1, *table.shape[2:]), row * table.shape[1] + plan) for table in (
        pool.compute_s, pool.hidden_s, pool.serial_s, pool.steady_s, pool.wait_s, pool.lag_s)]  # fmt: skip
    compute, hidden, serial, steady, wait, lag = (xp.astype(term, xp.float32) for term in terms)
    reference = xp.where(runs, xp.astype(pool.reference_s[row], xp.float32), xp.zeros_like(compute))
    columns = []
    for option in range(own.shape[1]):
        sharing = users + 0
        sharing[envs[:, None], own[:, option]] = users[envs[:, None], own[:, option]] + 1
        each = level * sharing.reshape(-1)[flat.reshape(-1)].reshape(flat.shape).clip(1)
        columns.append((reference / step_s(compute, hidden, serial, steady, wait, lag, each)).sum(axis=-1))
    return xp.astype(xp.permute_dims(xp.stack(columns), (2, 0, 1)), xp.float64)
