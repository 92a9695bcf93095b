"""What no rule earns more than in a simulated fleet, with all that comes foreseen.

Keep or switch is one dynamic program a job over its turns (`headroom_turns.py`). What several jobs share, the
devices of domains, the jobs that fit there and the time of links, has a price at every step: for any prices >= 0,
the most that each job earns with what it takes paid, and what all there is costs, are together no less than what
all jobs can earn (Lagrangian relaxation: Fisher 1981, Management Science 27, 1-18). Prices follow the excess
demand (AdaGrad: Duchi, Hazan and Singer 2011); the least bound counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Bools, Floats, Ints
from strata.evaluation.headroom_turns import Moves, Taken
from strata.learning.worlds.world import World
from strata.training.replan.response import step_s

ROUNDS: Final = 120
STEADY_ROUNDS: Final = 20
"""Rounds of prices, and of these the first ones, in which a price is the same at all steps."""

USERS: Final = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8, 11, 16)
"""Of a plan's narrowest link: where cells of its step time end."""

_SLACK: Final = 1e-6

PACE: Final = 0.3
"""Of prices: in what a job earns a step at its reference."""


@dataclass(frozen=True, eq=False, slots=True)
class Course:
    """What comes, T steps of N environments with P plans a job over l links of Q (the last one is padding).

    A plan is in one of G cells, by how long a step takes. speeds [T, N, P, G]: the most in a cell, relative to the
    reference; 0 where a domain is gone. shares [T, N, P, G, l]: of each link's time, the least it has there.
    ups [T, N, P]: whether all its domains are there. there [T, N, K]: share of each domain's devices.
    """

    speeds: Floats
    shares: NDArray[np.float32]
    ups: Bools
    there: Floats

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return a course of several steps."""
        columns = ([getattr(part, name) for part in parts] for name in ("speeds", "shares", "ups", "there"))
        return cls(*(np.concatenate(column) for column in columns))

    @classmethod
    def now(cls, world: World) -> Self:
        """Return the step of a world that comes next.

        Of n users of a link each has 1 / n of it, whatever they need. With n users of link l and one of each other
        of a plan's links a step takes T_l(n) = T(1) + (n - 1) a / f + X(n) - X(1) with
        X(n) = max(0, max(n m / f, M) + y - O) and M the largest m / f of its links (`response.py`); with more
        users elsewhere no less. So a step that takes less than U has no more than N(U) users on each of its links,
        the most with T_l(N) < U, and 1 / N(U) or more of each; and what it sends takes
        (a + max(0, m - max(0, O - y - A))) / f of U or more. Cells end where USERS are on the narrowest link.
        """
        pool, row, slots = world.pool, world.row[:, 0], world.slots
        inverse = np.zeros((world.num_envs, pool.num_pairs + 1))
        lateness = np.zeros_like(inverse)
        inverse[:, :-1], lateness[:, :-1] = 1 / world.links.factor, world.links.lateness
        rows, pair = np.arange(world.num_envs)[:, None, None], pool.pair[row]
        late, each = lateness[rows, pair], inverse[rows, pair]
        lag = pool.lag_s[row]
        if world.settings.latency_half_width:
            lag = lag * late.max(axis=-1)
        is_up = ~((pool.needs[row] > 0) & ~world.up[:, None]).any(axis=2)
        runs = pool.exists[row] & is_up & np.isfinite(pool.compute_s[row])
        compute, hidden = np.where(runs, pool.compute_s[row], 1.0), pool.hidden_s[row]
        serial, steady = pool.serial_s[row], pool.steady_s[row]
        alone = step_s(compute, hidden, serial, steady, pool.wait_s[row] * late, lag, each)[..., None]
        crossing, waits = serial * each, steady * each  # (N, P, l)
        widest, hides = waits.max(axis=-1, keepdims=True), (hidden - lag)[..., None]
        exposed = np.maximum(0.0, widest - hides)
        narrow = (crossing + waits).argmax(axis=-1)[..., None]
        a, m = (np.take_along_axis(table, narrow, axis=-1) for table in (crossing, waits))  # (N, P, 1)
        users = np.array(USERS[: int(np.searchsorted(USERS, slots)) + 1], dtype=np.float64)
        times = alone + (users - 1) * a + np.maximum(0.0, np.maximum(users * m, widest) - hides) - exposed
        ends = times[..., 1:, None]  # (N, P, G - 1, 1)
        over = ends - alone[..., None]
        crossing, waits = crossing[:, :, None], waits[:, :, None]
        idle = np.maximum(0.0, hidden - lag - compute)[..., None, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            by_crossing = np.where(crossing > 0, 1 + over / crossing, np.inf)
            room = over + (exposed + hides)[..., None] + crossing
            by_waits = np.where(crossing + waits > 0, room / (crossing + waits), np.inf)
        most = (np.ceil(np.minimum(by_crossing, by_waits) - _SLACK) - 1).clip(1, slots)  # (N, P, G - 1, l)
        least = np.concatenate([1 / most, np.full((*most.shape[:2], 1, most.shape[3]), 1 / slots)], axis=2)
        least[:, :, :-1] = np.maximum(least[:, :, :-1], (crossing + np.maximum(0.0, waits - idle)) / ends)
        shares = np.where(runs[..., None, None], least, 0.0).astype(np.float32)
        speeds = np.where(runs[..., None], pool.reference_s[row, None, None] / times, 0.0)
        there = world.up * (pool.devices[world.instance] > 0)
        return cls(speeds[None], shares[None], is_up[None], there[None].astype(np.float64))


def most(world: World, course: Course, turns: Ints, *, unforeseen: Floats | float = 0.0) -> Floats:
    """Return [N] the most a job earns a step. turns [T]: the job in turn at each step, -1 for none.

    unforeseen [T, N, P]: of each plan's speed, what no course is paid for (`headroom_late.py`).
    """
    steps, jobs = len(course.speeds), int(turns.max()) + 1
    plans = _Plans(world, course)
    each = [np.flatnonzero(turns == job) for job in range(jobs)]
    devices, links = np.zeros_like(plans.there), np.zeros((steps, world.num_envs, plans.links))
    squares = [np.zeros_like(devices), np.zeros_like(links)]
    bound = np.full(world.num_envs, np.inf)
    for number in range(ROUNDS if jobs > 1 else 1):
        taken, cells = plans.best(each, devices, links, unforeseen)
        paid = (devices * plans.there).sum(axis=(0, 2)) + links.sum(axis=(0, 2))
        bound = np.minimum(bound, np.sum([job.worth for job in taken], axis=0) + paid)
        if jobs == 1:
            break
        used, filled = plans.used(taken, cells)
        left = [plans.there - used, 1 - filled]
        left[1][..., -1] = 0.0  # padding
        if number == STEADY_ROUNDS:
            squares = [np.full_like(square, square.mean()) for square in squares]
        for price, square, rest in zip((devices, links), squares, left, strict=True):
            rest = rest if number >= STEADY_ROUNDS else rest.mean(axis=0)
            square += rest**2
            price -= PACE * rest / np.sqrt(square + 1e-9)
            np.maximum(price, 0.0, out=price)
    return np.asarray(bound / (jobs * steps))


def _whole(needs: Floats, devices: Floats) -> Floats:
    """Return shares of domains [N, P, K] that count jobs whole: of 32 devices out of 112 three fit, not 3.5.

    Of jobs that fit together, these shares are together no more than 1, either: with k + 1 times the share x of
    devices no whole number, floor((k + 1) x) / k (dual feasible functions: Fekete and Schepers 2001, Mathematical
    Programming 91, 11-31). k: how many times the largest plan fits.
    """
    most = np.floor(devices / np.maximum(needs.max(axis=1, keepdims=True), 1)).clip(1)
    times = (most + 1) * needs
    shares = np.where(times % devices == 0, needs / devices, times // devices / most)
    return np.asarray(np.where((shares == needs / devices).all(axis=1, keepdims=True), 0.0, shares))


class _Plans:
    """What jobs do at prices, all jobs of an environment being of one kind."""

    def __init__(self, world: World, course: Course) -> None:
        pool, row = world.pool, world.row[:, 0]
        self.course, self.moves = course, Moves(world, course.ups)
        self.pair, self.links = pool.pair[row], pool.num_pairs + 1
        needs, devices = pool.needs[row], np.maximum(pool.devices[world.instance], 1)[:, None]
        self.takes = np.concatenate([needs / devices, _whole(needs, devices)], axis=-1)
        self.there = np.concatenate([course.there, course.there], axis=-1)

    def best(
        self, turns: Sequence[Ints], devices: Floats, links: Floats, unforeseen: Floats | float
    ) -> tuple[list[Taken], Ints]:
        """Return the best course of each job, and the cell of each plan to be in [T, N, P].

        Devices are paid for from the step on in which a plan is gone to, links as far as they are used.
        """
        course, env = self.course, np.arange(len(self.pair))[:, None, None]
        price = links[:, env, self.pair].astype(np.float32)
        net = course.speeds - np.einsum("tnpl,tnpgl->tnpg", price, course.shares)
        # What a forgiven pause would have spared costs nothing.
        earned = np.maximum(net.max(axis=-1), 0.0)
        held = np.einsum("tnk,npk->tnp", devices, self.takes)
        return [self.moves.best(own, earned=earned, beside=-held - unforeseen) for own in turns], net.argmax(
            axis=-1
        )

    def used(self, taken: Sequence[Taken], cells: Ints) -> tuple[Floats, Floats]:
        """Return the shares of domains' devices [T, N, K] and of links' time [T, N, Q + 1] that jobs take."""
        course, env = self.course, np.arange(len(self.pair))[None]
        step = np.arange(len(cells))[:, None]
        used, filled = np.zeros_like(self.there), np.zeros((*course.there.shape[:2], self.links))
        for job in taken:
            used += self.takes[env, job.plans]
            share = job.awake[..., None] * course.shares[step, env, job.plans, cells[step, env, job.plans]]
            np.add.at(filled, (step[..., None], env[..., None], self.pair[env, job.plans]), share)
        return used, filled
