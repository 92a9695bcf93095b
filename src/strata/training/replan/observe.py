"""What is seen of the world: the options of the job in turn, and the raw state for agents that want matrices.

Values are expected from what was measured (stale, noisy, or lost and then the last valid measurement) and the
known chain of each pair: the expected 1 / bandwidth is put into the response of each plan. Device use, the queue
and the jobs themselves are known to the scheduler that runs them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.training.replan.options import HORIZONS, LINK_FEATURES, Options
from strata.training.replan.response import pair_numbers, step_s
from strata.training.replan.world import World

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_CHUNK: Final = 2**16
"""Cells (environment x option x link) worked on at once: their arrays stay in the cache."""


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


def _fit(world: World, row: Ints, plan: Ints) -> Bools:
    """Return which options [N, P] find their devices free, those of the plan in use counted as free."""
    room = world.free() + world.pool.needs[row, plan] + 1e-9
    return np.asarray((world.pool.needs[row] <= room[:, None, :]).all(axis=-1))


def _earnings(world: World, row: Ints, plan: Ints) -> tuple[Floats, Floats]:
    """Return 1 / step time [N, P, H] at each horizon, and the features of the links used [N, P, 4]."""
    pool, n = world.pool, world.num_envs
    pairs, ahead = pool.num_pairs, len(HORIZONS)
    # Columns: 1/f as seen now and expected later, at nominal sharing; the last says how sticky the pair is.
    seen = np.zeros((n, pairs + 1, ahead + 1))
    seen[:, :-1, :ahead] = world.links_ahead
    seen[:, :-1, ahead], seen[:, -1, ahead] = world.links_stay, 1.0
    mine = pool.pair[row, plan]
    sharing = world.users()
    own = np.zeros_like(sharing)
    own[np.arange(n)[:, None], mine] = 1
    sharing = (sharing - own + 1).astype(float)
    late = None
    if world.settings.latency_half_width:
        late = np.pad(world.links.lateness, ((0, 0), (0, 1)), constant_values=1.0)
    slow = _slow(world, row)
    earns, features = np.empty((n, pool.num_options, ahead)), np.ones((n, pool.num_options, len(LINK_FEATURES)))
    for some in _chunks(n, pool.pair[0].size):
        rows = row[some]
        at = pool.pair[rows]
        count = len(rows)
        flat = at + (np.arange(count) * (pairs + 1))[:, None, None]
        gathered = seen[some].reshape(-1, ahead + 1)[flat]  # [n, P, l, H + 1]
        share = sharing[some].ravel()[flat]
        late_now = 1.0 if late is None else late[some].ravel()[flat]
        for h in range(ahead):
            factor = late_now if h == 0 else 1.0
            time_s = step_s(
                pool.compute_s[rows], pool.hidden_s[rows], pool.serial_s[rows], pool.steady_s[rows],
                pool.wait_s[rows] * factor, pool.lag_s[rows] * factor, gathered[..., h] * share,
                slow=slow[some, :, int(h > 0)],
            )  # fmt: skip
            earns[some, :, h] = 1 / time_s
        used = at < pairs
        links = used.sum(axis=-1)
        any_ = links > 0
        features[some, :, 0] = np.where(any_, 1 / np.maximum(gathered[..., 0].max(axis=-1), 1e-9), 1.0)
        features[some, :, 1] = np.where(any_, 1 / np.maximum(gathered[..., ahead - 1].max(axis=-1), 1e-9), 1.0)
        features[some, :, 2] = 1 + (gathered[..., ahead] - 1).sum(axis=-1) / np.maximum(links, 1)
        features[some, :, 3] = gathered[..., ahead].min(axis=-1)
    return earns, features


def _slow(world: World, row: Ints) -> Floats:
    """Return the load factor of each option now and expected later, [N, P, 2]."""
    half = world.settings.load_half_width
    slow = np.ones((world.num_envs, world.pool.num_options, 2))
    if half:
        used = world.pool.needs[row] > 0
        slow[..., 0] = (used * world.load[:, None, :]).max(axis=-1, initial=1.0)
        # The largest of n independent max(1, u), u uniform in 1 +- half, is 1 + half (1 - (2 - 2^-n) / (n + 1)).
        count = used.sum(axis=-1)
        slow[..., 1] = 1 + half * (1 - (2 - 0.5**count) / (count + 1))
    return slow


def _chunks(envs: int, cells: int) -> Iterator[slice]:
    size = max(1, _CHUNK // cells)
    return (slice(first, min(first + size, envs)) for first in range(0, envs, size))
