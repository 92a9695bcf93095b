"""What jobs can earn together in a simulated fleet with all that comes foreseen: a search, so not a bound.

One job after the other takes its best course beside those of the others, what it takes from them counted, until
that brings nothing more. Who foresees everything reaches that at least: the world itself says what the courses
earn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.evaluation.headroom_turns import Moves
from strata.learning.worlds.world import World
from strata.training.replan.response import step_s

Begin = Callable[[], tuple[World, np.random.Generator]]
"""Makes a world anew at the start of its episode, with the generator of what comes."""

SWEEPS: Final = 4
"""Over all jobs."""

LEAST: Final = 5e-4
"""Share by which a sweep must bring more."""


@dataclass(frozen=True, eq=False, slots=True)
class Foreseen:
    """Everything that comes in T steps of a world: 1 / bandwidth and latency of links relative to nominal
    [T, N, Q + 1], which plans' domains are there [T, N, P], and the job in turn [T].
    """

    inverse: Floats
    lateness: Floats
    moves: Moves
    turns: Ints

    @classmethod
    def of(cls, begin: Begin) -> Foreseen:
        """Return what comes in the world that `begin` makes anew."""
        world, rng = begin()
        pool, row = world.pool, world.row[:, 0]
        inverse, lateness, ups, turns = [], [], [], []
        for _ in range(world.settings.episode_steps):
            inverse.append(1 / world.links.factor)
            lateness.append(world.links.lateness)
            ups.append(~((pool.needs[row] > 0) & ~world.up[:, None]).any(axis=2))
            turns.append(int(world.turn[0]))
            world.step(np.zeros(world.num_envs, dtype=np.int64), rng)
        rest = ((0, 0), (0, 0), (0, 1))
        return cls(
            np.pad(np.array(inverse), rest), np.pad(np.array(lateness), rest), Moves(world, np.array(ups)),
            np.array(turns),
        )  # fmt: skip


def searched(begin: Begin, plans: Ints, foreseen: Foreseen) -> Floats:
    """Return [N] what a job earns a step by the best courses met.

    begin: makes the world anew, under the same chance. plans: of all jobs to begin with, [J, T, N].
    """
    search, plans = _Search(begin()[0], foreseen), plans.copy()
    best, last = np.zeros(1), 0.0
    for _ in range(SWEEPS):
        for job in range(len(plans)):
            plans[job] = search.answer(plans, job)
        earned = followed(begin, plans, foreseen.turns)
        best = np.maximum(best, earned)
        if earned.mean() < (1 + LEAST) * last:
            break
        last = float(earned.mean())
    return best


def followed(begin: Begin, plans: Ints, turns: Ints) -> Floats:
    """Return [N] what a job earns a step where jobs follow these plans [J, T, N] as far as the world lets them."""
    world, rng = begin()
    total = np.zeros(world.num_envs)
    for step, job in enumerate(turns):
        total += world.step(plans[max(job, 0), step], rng).reward[:, 0]
    return total / len(turns)


class _Search:
    def __init__(self, world: World, foreseen: Foreseen) -> None:
        pool, row = world.pool, world.row[:, 0]
        self.foreseen, self.env = foreseen, np.arange(world.num_envs)[None]
        self.is_late = world.settings.latency_half_width > 0
        terms = (pool.compute_s, pool.hidden_s, pool.serial_s, pool.steady_s, pool.wait_s, pool.lag_s)
        self.terms = [table[row].astype(np.float32) for table in terms]
        self.pair, self.reference_s, self.exists = pool.pair[row], pool.reference_s[row], pool.exists[row]
        self.needs, self.devices = pool.needs[row], pool.devices[world.instance]
        self.uses = np.zeros((*self.pair.shape[:2], pool.num_pairs + 1))
        np.put_along_axis(self.uses, self.pair, 1.0, axis=2)

    def answer(self, plans: Ints, job: int) -> Ints:
        """Return the best course [T, N] of a job where the others follow theirs."""
        rest = [own for number, own in enumerate(plans) if number != job]
        shape = (*plans.shape[1:], self.pair.shape[1])
        users = sum((self.uses[self.env, own] for own in rest), np.zeros((*shape[:2], self.uses.shape[2])))
        held = sum((self.needs[self.env, own] for own in rest), np.zeros((*shape[:2], self.needs.shape[2])))
        earned = self._speed(np.arange(shape[2])[None, None], users)
        beside = sum((self._speed(own[..., None], users) for own in rest), np.zeros(shape))
        may = (self.needs <= (self.devices - held)[:, :, None] + 1e-6).all(axis=-1) & self.exists
        turns = np.flatnonzero(self.foreseen.turns == job)
        return self.foreseen.moves.best(turns, earned=earned, beside=beside - beside[..., :1], may=may).plans

    def _speed(self, plans: Ints, users: Floats) -> Floats:
        """Return [T, N, P] the speed of a job on plans [T, N, 1 or P] where so many others use each link, and
        somebody each plan P: the job itself where it has P plans.
        """
        env = self.env[..., None]
        compute, hidden, serial, steady, wait, lag = (table[env, plans] for table in self.terms)
        pair, every = self.pair[env, plans], np.arange(self.pair.shape[1])[:, None]
        at = np.arange(len(users))[:, None, None, None], env[..., None], pair
        if self.is_late:
            late = self.foreseen.lateness[at]
            wait, lag = wait * late, lag * late.max(axis=-1)
        inverse = self.foreseen.inverse[at] * (users[at] + self.uses[env[..., None], every, pair])
        times = step_s(compute, hidden, serial, steady, wait, lag, inverse)
        return np.where(plans > 0, self.reference_s[..., None] / times, 0.0)
