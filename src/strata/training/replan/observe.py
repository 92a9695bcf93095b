"""What is seen of the world: the options of the job in turn, and the raw state for agents that want matrices.

Values are expected from what was measured (stale, noisy, or lost and then the last valid measurement) and the
known chain of each pair: the expected 1 / bandwidth is put into the response of each plan. Device use, the queue
and the jobs themselves are known to the scheduler that runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.training.replan.options import HORIZONS, LINK_FEATURES, Options
from strata.training.replan.response import pair_numbers
from strata.training.replan.world import World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Singles = NDArray[np.float32]
Bools = NDArray[np.bool_]

_CHUNK: Final = 256
"""Environments worked on at once: their arrays stay in the cache."""


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
    waiting: NDArray[np.int64]
    jobs: Floats
    turn: NDArray[np.int64]


def state(world: World) -> State:
    """Return the raw state of every environment."""
    pool, links, jobs = world.pool, world.links, world.jobs
    numbers = pair_numbers(pool.num_domains)
    utilisation, memory, queue = world.utilisation()
    left = jobs.left_s / pool.reference_s[world.row]
    due = jobs.due_s - world.time_s[:, None]
    each = (
        jobs.left_s > 0,
        jobs.plan,
        np.where(np.isfinite(left), left, 0.0),
        np.where(np.isfinite(due), due, 0.0),
    )
    return State(
        pool.bandwidth[world.instance] * links.seen[:, numbers],
        pool.latency[world.instance] * links.lateness[:, numbers],
        links.lost[:, numbers], utilisation, memory, queue, world.load, world.waiting,
        np.stack(each, axis=-1).astype(float), world.turn,
    )  # fmt: skip


def options(world: World) -> Options:
    """Return the options of the job in turn in every environment.

    Where no job is in turn, waiting is the only one. A job that waits has no option in use (`current` -1): to wait
    is option 0, worth what an idle slot is. A running job cannot go back to the queue.
    """
    pool, jobs, settings = world.pool, world.jobs, world.settings
    envs = np.arange(world.num_envs)
    place = world.turn
    row, plan = world.row[envs, place], jobs.plan[envs, place]
    runs = (place >= 0) & (plan > 0)
    legal = pool.exists[row] & (place >= 0)[:, None] & _fit(world, row, plan)
    legal[envs, plan] = True
    legal[:, 0] = ~runs
    earns, links = _earnings(world, row, plan)
    weights = world.preference
    worth = weights[:, :1] * pool.reference_s[row, None] + weights[:, 1:2] * pool.busy_s[row]
    value = worth[:, :, None] * earns - (weights[:, 2:] * pool.usd[row])[:, :, None]
    pause_s = np.where(pool.moves[row, plan], pool.moved_s[row, plan] + settings.restart_s, 0.0)
    steps = settings.interval_s / pool.reference_s[row]
    cost = pause_s / settings.interval_s * worth * earns[:, :, 0]
    cost += weights[:, 2:] * pool.moved[row, plan] / steps[:, None]
    cost[~runs] = 0.0
    return Options(value, cost, links, np.where(runs, plan, -1), legal, weights)


def _fit(world: World, row: Ints, plan: Ints) -> Bools | bool:
    """Return which options [N, P] find their devices free, those of the plan in use counted as free."""
    if not world.is_crowded:
        return True
    room = world.free() + world.pool.needs[row, plan] + 1e-9
    return np.asarray((world.pool.needs[row] <= room[:, None, :]).all(axis=-1))


def _earnings(world: World, row: Ints, plan: Ints) -> tuple[Floats, Floats]:
    """Return 1 / step time [N, P, H] at each horizon, and the features of the links used [N, P, 4].

    Latency is taken as nominal. Single precision: a step time is good to about 1e-6.
    """
    pool, n, ahead = world.pool, world.num_envs, len(HORIZONS)
    # Columns: 1/f as seen now and expected later, then the chance that the regime changes in one step.
    seen = np.zeros((n, pool.num_pairs + 1, ahead + 1), dtype=np.float32)
    seen[:, :-1, :ahead] = world.links_ahead
    seen[:, :-1, ahead] = 1 - world.links_stay
    if world.slots > 1:
        others = world.users()
        others[np.arange(n)[:, None], pool.pair[row, plan]] -= 1
        seen[:, :, :ahead] *= np.maximum(others, 0)[:, :, None] + 1
    slow = _slow(world, row)
    earns, features = np.empty((n, pool.num_options, ahead)), np.ones((n, pool.num_options, len(LINK_FEATURES)))
    for first in range(0, n, _CHUNK):
        some = slice(first, first + _CHUNK)
        worst, leaves, count, crossing, exposed = _along_links(world, seen[some], row[some])
        rows = row[some]
        compute, hidden = pool.compute_s[rows, :, None], pool.hidden_s[rows, :, None]
        fixed = pool.wait_s.sum(axis=-1)[rows, :, None]
        exposed = np.maximum(exposed + pool.lag_s[rows, :, None] - slow[some] * hidden, 0.0)
        earns[some] = 1 / (slow[some] * compute + fixed + crossing + exposed)
        any_ = count > 0
        features[some, :, 0] = np.where(any_, 1 / np.where(any_, worst[..., 0], 1.0), 1.0)
        features[some, :, 1] = np.where(any_, 1 / np.where(any_, worst[..., ahead - 1], 1.0), 1.0)
        features[some, :, 2] = 1 - leaves / np.maximum(count, 1)
        features[some, :, 3] = 1 - worst[..., ahead]
    return earns, features


def _along_links(world: World, seen: Singles, row: Ints) -> tuple[Singles, ...]:
    """Return, per option, over its links: the largest of the columns, the sum of the last column, their number,
    Σ a / f and max m / f at each horizon."""
    pool, n, columns = world.pool, len(row), seen.shape[2]
    shape = (n, pool.num_options)
    worst = np.zeros((*shape, columns), dtype=np.float32)
    leaves, count = np.zeros((2, *shape), dtype=np.float32)
    crossing, exposed = np.zeros((2, *shape, columns - 1), dtype=np.float32)
    offset = (np.arange(n) * seen.shape[1])[:, None]
    flat = seen.reshape(-1, columns)
    for slot in world.by_link:
        pair = slot.pair[row]
        some = slice(0, pair.shape[1])
        column = flat.take(pair + offset, axis=0)  # [n, some, columns]
        np.maximum(worst[:, some], column, out=worst[:, some])
        leaves[:, some] += column[..., -1]
        count[:, some] += pair < pool.num_pairs
        level = column[..., :-1]
        crossing[:, some] += slot.serial_s[row][..., None] * level
        np.maximum(exposed[:, some], slot.steady_s[row][..., None] * level, out=exposed[:, some])
    return worst, leaves, count, crossing, exposed


def _slow(world: World, row: Ints) -> Floats:
    """Return the load factor of each option at each horizon, [N, P, H]."""
    half = world.settings.load_half_width
    if not half:
        return np.ones((world.num_envs, 1, 1))
    used = world.pool.needs[row] > 0
    slow = np.empty((*used.shape[:2], len(HORIZONS)))
    slow[..., 0] = (used * world.load[:, None, :]).max(axis=-1, initial=1.0)
    # The largest of n independent max(1, u), u uniform in 1 +- half, is 1 + half (1 - (2 - 2^-n) / (n + 1)).
    count = used.sum(axis=-1)
    slow[..., 1:] = (1 + half * (1 - (2 - 0.5**count) / (count + 1)))[..., None]
    return slow
