"""What going to an option is worth where a fixed margin decides from then on, over futures drawn from a belief.

Rollouts of a base rule (Bertsekas, Tsitsiklis and Wu 1997, Journal of Heuristics 3, 245-262), as the control loop
makes them (`control/rollouts.py`), whose futures are drawn from the past. Here they are drawn from the chains that
links follow. In a future the rule sees what it would see: noisy, old or lost probes, and what to believe of them.
Other jobs keep their plans, and no domain is lost or comes back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Floats, Ints
from strata.learning.worlds import observe
from strata.learning.worlds.belief import Belief
from strata.learning.worlds.links import LinkChance, Links, LinkWorld
from strata.learning.worlds.world import World
from strata.training.replan.options import HORIZONS, Options
from strata.training.replan.rules import MARGIN

FUTURES: Final = 32
DECISIONS: Final = 16
"""Of each future."""

STARTS: Final = 8
"""Options weighed at a decision: the one proposed, the one in use, and those of the most gain less cost."""

SURE: Final = 1.0
SURE_BESIDE_OTHERS: Final = 3.0
"""Standard errors over futures by which a gain must be above nothing. What other jobs do, futures leave out."""

Singles = NDArray[np.float32]


def surest(world: World, options: Options, picks: Ints) -> Ints:
    """Return picks [N] with those replaced that another option surely earns more than.

    options: of the jobs in turn (`others.options`). The draws of a step are the same ones whenever it is asked
    for, and all options meet the same futures.
    """
    envs, rows = world.envs, world.envs[:, None]
    worth = np.where(options.legal, (options.summed_gain() - options.cost[..., None]).max(axis=-1), -np.inf)
    used = envs[(options.current >= 0) & options.legal[envs, options.current]]
    worth[used, options.current[used]] = np.inf
    worth[envs, picks] = np.inf
    starts = np.argsort(-worth, axis=1, kind="stable")[:, :STARTS]
    earned = Futures(world, options, np.random.default_rng(world.step_index)).earned(starts)
    base = (starts == picks[:, None]).argmax(axis=1)
    more = earned - earned[envs, :, base][..., None]
    sure = SURE if world.slots == 1 else SURE_BESIDE_OTHERS
    gain = more.mean(axis=1) - sure * more.std(axis=1) / np.sqrt(FUTURES)
    gain = np.where(worth[rows, starts] > -np.inf, gain, -np.inf)
    gain[envs, base] = 0.0
    return np.asarray(starts[envs, gain.argmax(axis=1)])


class Futures:
    """FUTURES of the job in turn in each of N environments; F futures, S starts, P options below.

    links: as they are; None draws them by what is believed.
    """

    def __init__(
        self, world: World, options: Options, rng: np.random.Generator, *, links: Links | None = None
    ) -> None:
        pool, row, slots = world.pool, world.row[world.envs, world.turn], world.pool.pair.shape[2]
        self.settings, self.options, self.rng = world.settings.by_decision(), options, rng
        self.moves, self.envs = LinkWorld(self.settings), world.envs
        self.links, self.time_s = _many(links or world.links), np.repeat(world.time_s[:, None], FUTURES, axis=0)
        if links is None:
            self.links = self.moves.drawn(self.links, self.time_s, rng)
        tables = (pool.compute_s + pool.wait_s.sum(axis=2), pool.lag_s - pool.hidden_s)
        self.fixed, self.rest = (table[row][:, None].astype(np.float32) for table in tables)
        self.reference = pool.reference_s[row][:, None, None].astype(np.float32)
        serial, steady = (table[row].astype(np.float32) for table in (pool.serial_s, pool.steady_s))
        self.by_link = [
            (pool.pair[row, :, slot][:, None], serial[:, None, :, slot], steady[:, None, :, slot])
            for slot in range(slots) if (pool.pair[row, :, slot] < pool.num_pairs).any()
        ]  # fmt: skip
        self.users, self.beside = np.ones((len(row), 1, 1), np.float32), np.zeros((DECISIONS, len(row), 1, 1))
        if world.slots > 1:
            self.users = observe.sharing(world, row)[:, None].astype(np.float32)
            lost = options.value - observe.options(world).value
            ahead = np.arange(DECISIONS)
            steps = np.stack([np.interp(ahead, HORIZONS, unit) for unit in np.eye(len(HORIZONS))])
            self.beside = np.moveaxis(lost @ steps, 2, 0)[:, :, None]
        pause_s = np.where(pool.moves[row], pool.moved_s[row] + world.settings.restart_s, 0.0)
        self.pause = (pause_s / self.settings.interval_s).astype(np.float32)  # [N, P, P] in decisions
        self.paused = world.jobs.pause_s[world.envs, world.turn] / self.settings.interval_s

    def earned(self, starts: Ints, *, decisions: int = DECISIONS, after: Links | None = None) -> Floats:
        """Return what going to each of starts [N, S] earns over decisions, [N, F, S].

        after: links as they are after the first one, in every future.
        """
        env, shape = self.envs[:, None, None], (len(starts), FUTURES, starts.shape[1])
        current = self.options.current[:, None]
        first = np.where(current < 0, 0.0, self.pause[env[..., 0], current, starts])
        plans = np.broadcast_to(starts[:, None], shape)
        left = np.broadcast_to((self.paused[:, None] + first)[:, None], shape)
        total = np.zeros(shape)
        for decision in range(decisions):
            beside = self.beside[decision]
            speeds = self._speeds(1 / self.links.factor)
            if decision:
                seen = speeds
                if self.links.belief:
                    seen = self._speeds(self.moves.ahead(self.links, self.time_s, believes=True)[0].T)
                worth = np.where(self.options.legal[:, None], seen + beside, -np.inf)[:, :, None]
                pause = self.pause[env, plans]  # (N, F, S, P)
                worth = worth - MARGIN * pause * seen[:, :, None]
                to = worth.argmax(axis=3)
                kept = np.take_along_axis(worth, plans[..., None], 3)[..., 0]
                to = np.where(worth.max(axis=3) > kept, to, plans)
                left, plans = left + self.pause[env, plans, to], to
            total += np.take_along_axis(speeds, plans, 2) * (1 - left).clip(0.0)
            total += np.take_along_axis(np.broadcast_to(beside, speeds.shape), plans, 2)
            left = (left - 1).clip(0.0)
            self.time_s = self.time_s + self.settings.interval_s
            self.moves.step(self.links, self._chance(), self.time_s)
            if after and not decision:
                self.links = _many(after)
        return total

    def _chance(self) -> LinkChance:
        return LinkChance.draw(self.rng, np.zeros(self.links.chain.shape, dtype=np.float32), self.settings)

    def _speeds(self, inverse: Singles) -> Singles:
        """Return speeds [N, F, P] relative to the reference, of 1 / bandwidth [N F, Q]; latency is nominal."""
        padded = np.concatenate([inverse, np.zeros((len(inverse), 1), np.float32)], axis=1)
        padded = padded.reshape(len(self.envs), FUTURES, -1) * self.users
        total: Singles = np.zeros((len(self.envs), FUTURES, self.fixed.shape[2]), np.float32)
        worst = total.copy()
        for pair, serial, steady in self.by_link:
            level = np.take_along_axis(padded, pair, axis=2)
            total += serial * level
            np.maximum(worst, steady * level, out=worst)
        speeds: Singles = self.reference / (total + (worst + self.rest).clip(0.0) + self.fixed)
        return speeds


def _many(links: Links) -> Links:
    """Return links [N F, Q] of N environments."""

    def many(part: Any) -> Any:
        return np.repeat(part, FUTURES, axis=0) if isinstance(part, np.ndarray) else part

    names = ("chain", "regime", "noise", "phase", "seen", "seen_regime", "lost", "factor", "lateness")
    result = replace(links, **{name: many(getattr(links, name)) for name in names})
    result.past = [(many(factor), many(regime)) for factor, regime in links.past]
    if belief := links.belief:
        result.belief = Belief(many(belief.chances), many(belief.noise), many(belief.variance))
    return result
