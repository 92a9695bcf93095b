"""What is seen of the world: the options of the job in turn, and the raw state for agents that want matrices.

Values are expected from what was measured and the known chain of each pair: the expected 1 / bandwidth is put into
the response of each plan. Measurements are stale, noisy, or lost (then the last valid one stands there): a belief
weighs all of them (`belief.py`), or the newest is taken for what is. Device use, the queue
and the jobs themselves are known to the scheduler that runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strata.learning.worlds.world import World
from strata.training.replan.arrays import (
    Bools,
    Floats,
    Ints,
    Singles,
    columns_of,
    fill,
    may_be_any,
    raise_to,
    rows_of,
)
from strata.training.replan.options import HORIZONS, LINK_FEATURES, Options

_CHUNK: Final = 256
"""Environments worked on at once on the host: their arrays stay in the cache."""


@dataclass(frozen=True, slots=True)
class State:
    """The raw state, seed 000's and 001's: N environments, K domains.

    bandwidth, latency [N, K, K]: as measured, row sends to column [B/s], [s]; 0 where there is no link.
    lost               [N, K, K]: whether the newest measurement is missing and an older one stands there.
    utilisation, memory [N, K]: shares of devices and of memory in use. queue [N, K]: local jobs that wait.
    load               [N, K]: factor on the compute time. waiting [N]: jobs in the queue across domains.
    jobs               [N, J + 1, 4]: of each slot, then of the head of the queue: there or not, plan in use (0:
        none), work left in steps of the best single domain (0 for one that never ends), seconds to its deadline
        (0 for none).
    turn               [N]: which of these is in turn, -1 for none.
    """

    bandwidth: Floats
    latency: Floats
    lost: Bools
    utilisation: Floats
    memory: Floats
    queue: Floats
    load: Floats
    waiting: Ints
    jobs: Floats
    turn: Ints


def state(world: World) -> State:
    """Return the raw state of every environment."""
    pool, links, jobs, xp = world.pool, world.links, world.jobs, world.xp
    numbers = world.pair_numbers
    utilisation, memory, queue = world.utilisation()
    left = jobs.left_s / pool.reference_s[world.row]
    due = jobs.due_s - world.time_s[:, None]
    each = (
        jobs.left_s > 0,
        jobs.plan,
        xp.where(xp.isfinite(left), left, 0.0),
        xp.where(xp.isfinite(due), due, 0.0),
    )
    return State(
        pool.bandwidth[world.instance] * links.seen[:, numbers],
        pool.latency[world.instance] * links.lateness[:, numbers],
        links.lost[:, numbers], utilisation, memory, queue, world.load, world.waiting,
        xp.stack([xp.astype(part, xp.float64) for part in each], axis=-1), world.turn,
    )  # fmt: skip


def options(world: World, *, believes: bool = True) -> Options:
    """Return the options of the job in turn in every environment; believes: see `World.links_ahead`.

    Where no job is in turn, waiting is the only one. A job that waits has no option in use (`current` -1): to wait
    is option 0, worth what an idle slot is. A running job cannot go back to the queue.
    """
    pool, jobs, settings, xp = world.pool, world.jobs, world.settings, world.xp
    envs, place = world.envs, world.turn
    row, plan = world.row[envs, place], jobs.plan[envs, place]
    runs = (place >= 0) & (plan > 0)
    legal = rows_of(pool.exists, row) & (place >= 0)[:, None] & _fit(world, row, plan)
    legal[envs, plan] = True
    legal[:, 0] = ~runs
    weights = world.preference
    worth = weights[:, :1] * pool.reference_s[row, None] + weights[:, 1:2] * rows_of(pool.busy_s, row)
    value, links = _values(world, row, worth, believes=believes)
    pause_s = xp.where(pool.moves[row, plan], pool.moved_s[row, plan] + settings.restart_s, 0.0)
    interval_s = settings.interval_s * settings.steps_per_decision
    cost = pause_s / interval_s * value[:, :, 0]
    if may_be_any(weights[:, 2] > 0):
        value -= (weights[:, 2:] * rows_of(pool.usd, row))[:, :, None]
        cost += weights[:, 2:] * pool.moved[row, plan] * (pool.reference_s[row] / interval_s)[:, None]
    fill(cost, ~runs[:, None], 0.0)
    return Options(value, cost, links, xp.where(runs, plan, -1), legal, weights)


def _fit(world: World, row: Ints, plan: Ints) -> Bools:
    """Return which options [N, P] find their devices free, those of the plan in use counted as free."""
    if not world.is_crowded:
        return True
    room = world.free() + world.pool.needs[row, plan] + 1e-3
    fits: Bools = True
    for k in range(world.pool.num_domains):
        fits = fits & (columns_of(world.needs[k], row) <= room[:, k])
    return fits.T


def _values(world: World, row: Ints, worth: Floats, *, believes: bool) -> tuple[Floats, Floats]:
    """Return worth [N, P] / step time at each horizon [N, P, H], and the features of the links used [N, P, 4].

    Latency is taken as nominal. Single precision: a step time is good to about 1e-6.
    """
    pool, n, ahead, xp = world.pool, world.num_envs, len(HORIZONS), world.xp
    where = {"device": row.device}
    # First axis: the chance that the regime changes in one step, then 1/f now, at the last horizon, and between.
    seen = xp.zeros((1 + ahead, pool.num_pairs + 1, n), dtype=xp.float32, **where)
    seen[0, :-1] = 1 - world.links_stay(believes=believes).T
    level = world.links_ahead(believes=believes)
    seen[1, :-1], seen[2, :-1], seen[3:, :-1] = level[0], level[-1], level[1:-1]
    if world.slots > 1:
        seen[1:] *= sharing(world, row).T
    slow = _slow(world, row)
    values = xp.empty((n, pool.num_options, ahead), dtype=xp.float64, **where)
    features = xp.empty((n, pool.num_options, len(LINK_FEATURES)), dtype=xp.float64, **where)
    together = n if world.device else _CHUNK
    for first in range(0, n, together):
        some = slice(first, first + together)
        rows = row[some]
        worst, leaves, crossing, exposed = _along_links(world, seen[:, :, some], rows)
        compute, fixed, hidden, lag, count = world.plan_terms[:, :, rows]
        load = 1.0 if slow is None else slow[:, :, some]
        exposed += lag - load * hidden
        raise_to(exposed, 0.0)
        crossing += exposed
        crossing += load * compute + fixed
        crossing = xp.permute_dims(xp.astype(worth[some].T, xp.float32) / crossing, (2, 1, 0))
        values[some, :, 0], values[some, :, -1], values[some, :, 1:-1] = (
            crossing[..., 0], crossing[..., 1], crossing[..., 2:],
        )  # fmt: skip
        fill(worst[1:], count == 0, 1.0)
        features[some, :, 0], features[some, :, 1] = 1 / worst[1].T, 1 / worst[2].T
        features[some, :, 2], features[some, :, 3] = (1 - leaves / count.clip(1)).T, 1 - worst[0].T
    return values, features


def sharing(world: World, row: Ints) -> Ints:
    """Return among how many jobs each pair would be shared if the job in turn used it [N, Q + 1]."""
    users, plan = world.users(), world.jobs.plan[world.envs, world.turn]
    users[world.envs[:, None], world.pool.pair[row, plan]] -= 1
    return users.clip(0) + 1


def _along_links(world: World, seen: Singles, row: Ints) -> tuple[Singles, ...]:
    """Return over the links of each option the largest of `seen`[:3], the sum of `seen`[0], Σ a / f, max m / f.

    Options and environments are the last axes here, so that each slot of links is one block of memory.
    """
    entries, pairs, n = seen.shape
    shape, xp = (world.pool.num_options, n), world.xp

    def zeros(*more: int) -> Singles:
        return xp.zeros((*more, *shape), dtype=xp.float32, device=row.device)

    worst, leaves, crossing, exposed = zeros(3), zeros(), zeros(entries - 1), zeros(entries - 1)
    flat, env = seen.reshape(entries, pairs * n), world.envs[:n]
    for slot in world.by_link:
        some = slice(0, len(slot.pair))
        levels = columns_of(flat, columns_of(slot.pair, row) * n + env)  # [entries, some, n]
        raise_to(worst[:, some], levels[:3])
        leaves[some] += levels[0]
        level = levels[1:]
        crossing[:, some] += columns_of(slot.serial_s, row) * level
        level *= columns_of(slot.steady_s, row)
        raise_to(exposed[:, some], level)
    return worst, leaves, crossing, exposed


def _slow(world: World, row: Ints) -> Singles | None:
    """Return the load factor of each option at each horizon, [H, P, N]; None where load does not change."""
    half, xp = world.settings.load_half_width, world.xp
    if not half:
        return None
    shape, where = (len(HORIZONS), world.pool.num_options, world.num_envs), {"device": row.device}
    slow = xp.ones(shape, dtype=xp.float32, **where)
    count = xp.zeros(shape[1:], dtype=xp.int64, **where)
    load = xp.astype(world.load, xp.float32)
    for k in range(world.pool.num_domains):
        used = columns_of(world.needs[k], row) > 0
        raise_to(slow[0], used * load[:, k])
        count += used
    # The largest of n independent max(1, u), u uniform in 1 +- half, is 1 + half (1 - (2 - 2^-n) / (n + 1)).
    n = xp.arange(world.pool.num_domains + 1, dtype=xp.float64, **where)
    slow[1:] = (1 + half * (1 - (2 - 0.5**n) / (n + 1)))[count]
    return slow
