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
    weights = world.preference
    worth = weights[:, :1] * pool.reference_s[row, None] + weights[:, 1:2] * pool.busy_s[row]
    value, links = _values(world, row, worth)
    pause_s = np.where(pool.moves[row, plan], pool.moved_s[row, plan] + settings.restart_s, 0.0)
    cost = pause_s / settings.interval_s * value[:, :, 0]
    if weights[:, 2].any():
        value -= (weights[:, 2:] * pool.usd[row])[:, :, None]
        cost += weights[:, 2:] * pool.moved[row, plan] * (pool.reference_s[row] / settings.interval_s)[:, None]
    cost[~runs] = 0.0
    return Options(value, cost, links, np.where(runs, plan, -1), legal, weights)


def _fit(world: World, row: Ints, plan: Ints) -> Bools | bool:
    """Return which options [N, P] find their devices free, those of the plan in use counted as free."""
    if not world.is_crowded:
        return True
    room = world.free() + world.pool.needs[row, plan] + 1e-3
    fits = np.ones((world.pool.num_options, world.num_envs), dtype=bool)
    for needs, free in zip(world.needs, room.T, strict=True):
        fits &= needs[:, row] <= free
    return fits.T


def _values(world: World, row: Ints, worth: Floats) -> tuple[Floats, Floats]:
    """Return worth [N, P] / step time at each horizon [N, P, H], and the features of the links used [N, P, 4].

    Latency is taken as nominal. Single precision: a step time is good to about 1e-6.
    """
    pool, n, ahead = world.pool, world.num_envs, len(HORIZONS)
    # First axis: the chance that the regime changes in one step, then 1/f at each of `order`.
    order = [0, ahead - 1, *range(1, ahead - 1)]
    seen = np.zeros((1 + ahead, pool.num_pairs + 1, n), dtype=np.float32)
    seen[0, :-1] = 1 - world.links_stay.T
    seen[1:, :-1] = world.links_ahead[order]
    if world.slots > 1:
        seen[1:] *= _sharing(world, row).T
    slow = _slow(world, row)
    values = np.empty((n, pool.num_options, ahead))
    features = np.empty((n, pool.num_options, len(LINK_FEATURES)))
    for first in range(0, n, _CHUNK):
        some = slice(first, first + _CHUNK)
        rows = row[some]
        worst, leaves, crossing, exposed = _along_links(world, seen[:, :, some], rows)
        compute, fixed, hidden, lag, count = world.plan_terms[:, :, rows]
        load = 1.0 if slow is None else slow[order, :, some]
        exposed += lag - load * hidden
        np.maximum(exposed, 0.0, out=exposed)
        crossing += exposed
        crossing += load * compute + fixed
        np.divide(worth[some].T.astype(np.float32), crossing, out=crossing)
        values[some][..., order] = crossing.transpose(2, 1, 0)
        worst[1:, count == 0] = 1.0
        features[some, :, 0], features[some, :, 1] = 1 / worst[1].T, 1 / worst[2].T
        features[some, :, 2], features[some, :, 3] = (1 - leaves / np.maximum(count, 1)).T, 1 - worst[0].T
    return values, features


def _sharing(world: World, row: Ints) -> Ints:
    """Return among how many jobs each pair would be shared if the job in turn used it [N, Q + 1]."""
    envs, users = np.arange(world.num_envs), world.users()
    users[envs[:, None], world.pool.pair[row, world.jobs.plan[envs, world.turn]]] -= 1
    return np.asarray(np.maximum(users, 0) + 1)


def _along_links(world: World, seen: Singles, row: Ints) -> tuple[Singles, ...]:
    """Return over the links of each option the largest of `seen`[:3], the sum of `seen`[0], Σ a / f, max m / f.

    Options and environments are the last axes here, so that each slot of links is one block of memory.
    """
    entries, pairs, n = seen.shape
    shape = (world.pool.num_options, n)
    worst = np.zeros((3, *shape), dtype=np.float32)
    leaves = np.zeros(shape, dtype=np.float32)
    crossing, exposed = np.zeros((2, entries - 1, *shape), dtype=np.float32)
    flat, env = seen.reshape(entries, pairs * n), np.arange(n)
    for slot in world.by_link:
        some = slice(0, len(slot.pair))
        found = flat.take(slot.pair[:, row] * n + env, axis=1)  # [entries, some, n]
        np.maximum(worst[:, some], found[:3], out=worst[:, some])
        leaves[some] += found[0]
        level = found[1:]
        crossing[:, some] += slot.serial_s[:, row] * level
        level *= slot.steady_s[:, row]
        np.maximum(exposed[:, some], level, out=exposed[:, some])
    return worst, leaves, crossing, exposed


def _slow(world: World, row: Ints) -> Singles | None:
    """Return the load factor of each option at each horizon, [H, P, N]; None where load does not change."""
    half = world.settings.load_half_width
    if not half:
        return None
    slow = np.empty((len(HORIZONS), world.pool.num_options, world.num_envs), dtype=np.float32)
    slow[0] = 1.0
    count = np.zeros(slow.shape[1:], dtype=np.int64)
    for needs, load in zip(world.needs, world.load.T.astype(np.float32), strict=True):
        used = needs[:, row] > 0
        np.maximum(slow[0], used * load, out=slow[0])
        count += used
    # The largest of n independent max(1, u), u uniform in 1 +- half, is 1 + half (1 - (2 - 2^-n) / (n + 1)).
    n = np.arange(len(world.needs) + 1)
    slow[1:] = (1 + half * (1 - (2 - 0.5**n) / (n + 1)))[count]
    return slow
