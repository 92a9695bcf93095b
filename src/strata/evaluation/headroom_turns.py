"""The best course of plans of one job, with all that comes foreseen: a dynamic program over its turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.learning.worlds.world import World


@dataclass(frozen=True, eq=False, slots=True)
class Taken:
    """What a job does: plans [T, N], 0 while it has none; awake [T, N], the share of a step that is no pause; and
    what all of it is worth [N].
    """

    plans: Ints
    awake: Floats
    worth: Floats


class Moves:
    """What going from plan to plan takes, and when domains are gone.

    ups [T, N, P]: whether all domains of a plan are there. A pause that is not over at a job's next turn is
    forgiven then, so what a course is worth is no less than what the world gives for it.
    """

    def __init__(self, world: World, ups: Bools) -> None:
        pool, row, settings = world.pool, world.row[:, 0], world.settings
        pauses = np.where(pool.moves[row], pool.moved_s[row] + settings.restart_s, 0.0) / settings.interval_s
        pauses[:, 0] = 0.0  # the first start costs nothing
        self.pauses = pauses
        # A job that lost a domain starts anywhere anew: it has nothing to move.
        self.anew = np.broadcast_to(settings.restart_s / settings.interval_s, pauses.shape).copy()
        self.anew[:, :, 0] = 0.0
        self.ups = ups

    def best(self, turns: Ints, *, earned: Floats, beside: Floats, may: Bools | None = None) -> Taken:
        """Return the best course of a job that is in turn at these steps.

        earned [T, N, P]: in a step that is no pause. beside [T, N, P]: in every step from when a plan is gone to,
        0 for none. may [T, N, P]: whether its devices are free; a plan is gone to where they stay so.
        """
        steps, envs, plans = earned.shape
        env, plan = np.arange(envs), np.arange(plans)
        ends = np.append(turns[1:], steps)
        value, picks = np.zeros((envs, plans)), []
        for start, end in zip(turns[::-1], ends[::-1], strict=True):
            alive: Bools = np.asarray(np.logical_and.accumulate(self.ups[start:end], axis=0))
            sums = np.zeros((end - start + 1, envs, plans))
            np.cumsum(earned[start:end] * alive, axis=0, out=sums[1:])
            worth = sums[-1] + (beside[start:end] * alive).sum(axis=0) + value
            # Waiting is no way for who runs, but for who was stopped since its last turn.
            stopped = self._stopped(start, turns)
            pauses = np.where(stopped[:, :, None], self.anew, self.pauses).clip(max=end - start)
            full = pauses.astype(np.int64)
            at = env[:, None, None], plan
            lost = sums[full, *at]
            lost += (pauses - full) * (sums[np.minimum(full + 1, end - start), *at] - lost)
            result = worth[:, None, :] - lost
            result[:, 1:, 0] = np.where(stopped[:, 1:], result[:, 1:, 0], -np.inf)
            if may is not None:
                fits: Bools = np.asarray(may[start:end].all(axis=0))
                result = np.where(fits[:, None, :], result, -1e9)
            picks.append(result.argmax(axis=2))
            value = result.max(axis=2)
        taken, awake = np.zeros((steps, envs), dtype=np.int64), np.zeros((steps, envs))
        now = np.zeros(envs, dtype=np.int64)
        for start, end, pick in zip(turns, ends, picks[::-1], strict=True):
            before, now = now, pick[env, now]
            pause = np.where(self._stopped(start, turns)[env, before], self.anew[env, before, now],
                             self.pauses[env, before, now])  # fmt: skip
            there: Bools = np.asarray(np.logical_and.accumulate(self.ups[start:end, env, now], axis=0))
            taken[start:end] = np.where(there, now, 0)
            awake[start:end] = there * (1 - (pause - np.arange(end - start)[:, None])).clip(0, 1) * (now > 0)
        return Taken(taken, awake, value[:, 0])

    def _stopped(self, turn: int, turns: Ints) -> Bools:
        """Return [N, P]: whether a plan went to at the turn before has lost a domain since."""
        before = turns[np.searchsorted(turns, turn) - 1] if turn > turns[0] else turn
        gone: Bools = np.logical_not(self.ups[before : turn + 1].all(axis=0))
        return gone
