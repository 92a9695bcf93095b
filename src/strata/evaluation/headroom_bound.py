"""What no rule earns more than in a simulated fleet, with all that comes foreseen.

Keep or switch is one dynamic program a job, relaxed, so that it is a bound: a job may decide at every step, and
goes to a plan by way of others where that is shorter. What several jobs share, the devices of domains and the time
of links, has a price at every step: for any prices >= 0, the most that each job earns with what it takes paid, and
what all there is costs, are together no less than what all jobs can earn (Lagrangian relaxation: Fisher 1981,
Management Science 27, 1-18). Prices follow the excess demand (AdaGrad: Duchi, Hazan and Singer 2011); the least
bound counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.learning.worlds.world import World
from strata.training.replan.response import step_s

ROUNDS: Final = 60
STEADY_ROUNDS: Final = 20
"""Rounds of prices, and of these the first ones, in which a price is the same at all steps."""

PACE: Final = 0.1
"""Of prices: in what a job earns a step at its reference, for each job."""


@dataclass(frozen=True, eq=False, slots=True)
class Course:
    """What comes, T steps of N environments with P plans a job over l links of Q (the last one is padding).

    speeds [T, N, P]: of each plan with all links its own, relative to its reference; 0 where a domain is gone.
    ups [T, N, P]: whether all its domains are there. fills [T, N, P, l]: share of a link's time that it takes at
    least, for a speed of 1. there [T, N, K]: share of each domain's devices.
    """

    speeds: Floats
    ups: Bools
    fills: Floats
    there: Floats

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return a course of several steps."""
        columns = ([getattr(part, name) for part in parts] for name in ("speeds", "ups", "fills", "there"))
        return cls(*(np.concatenate(column) for column in columns))

    @classmethod
    def now(cls, world: World) -> Self:
        """Return the step of a world that comes next.

        Of n users of a link each has 1 / n of it, where a step takes A + n (a + m) / f + y - O or longer, and
        A + n a / f or longer (`response.py`): n times a / f + max(0, m / f - max(0, O - y - A)) or longer.
        """
        pool, row = world.pool, world.row[:, 0]
        inverse = np.zeros((world.num_envs, pool.num_pairs + 1))
        lateness = np.zeros_like(inverse)
        inverse[:, :-1], lateness[:, :-1] = 1 / world.links.factor, world.links.lateness
        rows, pair = np.arange(world.num_envs)[:, None, None], pool.pair[row]
        late, each = lateness[rows, pair], inverse[rows, pair]
        lag = pool.lag_s[row]
        if world.settings.latency_half_width:
            lag = lag * late.max(axis=-1)
        compute, hidden, steady, serial = (
            table[row] for table in (pool.compute_s, pool.hidden_s, pool.steady_s, pool.serial_s)
        )
        step = step_s(compute, hidden, serial, steady, pool.wait_s[row] * late, lag, each)
        is_up = ~((pool.needs[row] > 0) & ~world.up[:, None]).any(axis=2)
        reference = pool.reference_s[row, None]
        hides = np.maximum(0.0, hidden - lag - np.where(pool.exists[row], compute, 0.0))
        fills = (serial * each + np.maximum(0.0, steady * each - hides[..., None])) / reference[..., None]
        there = world.up * (pool.devices[world.instance] > 0)
        speeds = np.where(pool.exists[row] & is_up, reference / step, 0.0)
        return cls(speeds[None], is_up[None], fills[None], there[None].astype(np.float64))


def most(world: World, course: Course, arrivals: Ints) -> Floats:
    """Return [N] the most a job earns a step. arrivals [J]: the step from which on each job is there."""
    steps, jobs = len(course.speeds), len(arrivals)
    plans = _Plans(world, course)
    starts, counts = np.unique(arrivals, return_counts=True)
    devices, links = np.zeros_like(course.there), np.zeros((steps, world.num_envs, plans.links))
    squares = [np.zeros_like(devices), np.zeros_like(links)]
    bound = np.full(world.num_envs, np.inf)
    for number in range(ROUNDS if jobs > 1 else 1):
        value, picks = plans.best(devices, links)
        paid = (devices * course.there).sum(axis=(0, 2)) + links.sum(axis=(0, 2))
        bound = np.minimum(bound, counts @ value[starts].max(axis=2) + paid)
        if jobs == 1:
            break
        used, filled = plans.taken(starts, counts, value[starts].argmax(axis=2), picks)
        left = [course.there - used, 1 - filled]
        left[1][..., -1] = 0.0  # padding
        if number == STEADY_ROUNDS:
            squares = [np.full_like(square, square.mean()) for square in squares]
        for price, square, rest in zip((devices, links), squares, left, strict=True):
            rest = rest if number >= STEADY_ROUNDS else rest.mean(axis=0)
            square += rest**2
            price -= PACE * jobs * rest / np.sqrt(square + 1e-9)
            np.maximum(price, 0.0, out=price)
    return np.asarray(bound / (jobs * steps))


class _Plans:
    """The dynamic program of a job, all jobs of an environment being of one kind."""

    def __init__(self, world: World, course: Course) -> None:
        pool, row, settings = world.pool, world.row[:, 0], world.settings
        self.course = course
        self.steps, self.envs, self.plans = course.speeds.shape
        pause = np.where(pool.moves[row], pool.moved_s[row] + settings.restart_s, 0.0) / settings.interval_s
        pause[:, 0, 1:], pause[:, 1:, 0] = np.inf, np.inf  # waiting is no way, and nobody goes back to it
        for by in range(1, self.plans):
            pause = np.minimum(pause, pause[:, :, by, None] + pause[:, by, None, :])
        pause[:, np.arange(self.plans), np.arange(self.plans)] = 0.0
        # A job that lost a domain starts anywhere anew: it has nothing to move.
        anew = np.minimum(pause, settings.restart_s / settings.interval_s)
        self.pauses = np.minimum(np.stack([anew, pause]), self.steps)  # (2, N, P, P)
        self.pair, self.links = pool.pair[row], pool.num_pairs + 1
        self.takes = pool.needs[row] / np.maximum(pool.devices[world.instance], 1)[:, None]

    def best(self, devices: Floats, links: Floats) -> tuple[Floats, Ints]:
        """Return what a job earns at most from each step and plan on [T + 2, N, P] and the plan to go to.

        Devices are paid for from the step on in which weights have moved, links as far as they are used.
        """
        course, steps, envs, plans = self.course, self.steps, self.envs, self.plans
        env, plan = np.arange(envs)[:, None, None], np.arange(plans)
        dear = (links[:, env, self.pair] * course.fills).sum(axis=-1)
        none = np.zeros((1, envs, plans))
        earned = np.concatenate([course.speeds * (1 - dear), none])
        held = np.concatenate([np.einsum("tnk,npk->tnp", devices, self.takes), none])
        value, picks = np.zeros((steps + 2, envs, plans)), np.zeros((steps, envs, plans), dtype=np.int64)
        for step in reversed(range(steps)):
            takes = np.where(course.ups[step][:, :, None], self.pauses[1], self.pauses[0])
            full = takes.astype(np.int64)
            begin = np.minimum(step + full, steps)
            worth = earned[begin, env, plan] * (1 - (takes - full)) - held[begin, env, plan]
            worth += value[begin + 1, env, plan]
            picks[step], value[step] = worth.argmax(axis=2), worth.max(axis=2)
        return value, picks

    def taken(self, starts: Ints, counts: Ints, first: Ints, picks: Ints) -> tuple[Floats, Floats]:
        """Return the shares of domains' devices [T, N, K] and of links' time [T, N, Q + 1] that jobs take.

        counts [G]: of jobs that begin at `starts` [G] on plans `first` [G, N].
        """
        course, steps, envs = self.course, self.steps, self.envs
        used, filled = np.zeros_like(course.there), np.zeros((steps, envs, self.links))
        plan, due = first.copy(), np.tile(starts[:, None], (1, envs))
        for step in range(steps):
            group, env = np.nonzero(due == step)
            before = plan[group, env]
            to = picks[step, env, before]
            takes = self.pauses[course.ups[step, env, before].astype(np.int64), env, before, to]
            begin = step + takes.astype(np.int64)
            plan[group, env], due[group, env] = to, begin + 1
            some = begin < steps
            begin, env, to, many = begin[some], env[some], to[some], counts[group[some]]
            np.add.at(used, (begin, env), self.takes[env, to] * many[:, None])
            trained = course.speeds[begin, env, to] * (1 - takes[some] % 1) * many
            where = begin[:, None], env[:, None], self.pair[env, to]
            np.add.at(filled, where, trained[:, None] * course.fills[begin, env, to])
        return used, filled
