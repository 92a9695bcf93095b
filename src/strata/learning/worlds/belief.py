"""What noisy, old or missing measurements say of links: chances of their regimes, by the chain each link follows.

A filter of hidden Markov chains (Hamilton 1989, Econometrica 57, 357-384): chances move on by the chain, and each
measurement weighs the regimes by how likely it is there, its noise and that of the bandwidth drawn anew for each.
The noise that stays is a Kalman filter of its own, given the regimes believed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace

from strata.learning.worlds.settings import WorldSettings
from strata.training.replan.arrays import Array, moved, rows_of
from strata.training.replan.options import HORIZONS

_LEAST: Final = 1e-4
"""Chance of a regime that no measurement rules out: a chain that is known nearly exactly is still no certainty."""


@dataclass(slots=True)
class Belief:
    """Of every link, as of its newest measurement: chances of its regimes [N, Q, 3]; log of the noise that stays
    [N, Q], and how far that may be off, a variance [N, Q].
    """

    chances: Array
    noise: Array
    variance: Array


class Filter:
    """Keeps beliefs of links that follow one of G chains: transition a step [G, 3, 3], stationary chances [G, 3],
    levels [G, 3] of their regimes.
    """

    def __init__(
        self, settings: WorldSettings, *, transition: Any, stationary: Any, levels: Any, device: str | None
    ) -> None:
        def single(table: Any) -> Array:
            return moved(np.ascontiguousarray(table, dtype=np.float32), device)

        elapsed = settings.interval_s / settings.noise_tau_s
        self._keep = math.exp(-elapsed)
        self._fresh = settings.noise_sigma**2 * -math.expm1(-2 * elapsed)
        self._spread, self._error = settings.noise_sigma**2, max(settings.observed_sigma**2, 1e-6)
        self._transition, self._start = single(transition), single(stationary)
        self._levels = single(np.log(levels) - settings.noise_sigma**2 / 2)
        ages = [settings.stale_steps + steps * settings.steps_per_decision for steps in HORIZONS]
        powers = [np.stack([np.linalg.matrix_power(chain, age) for chain in transition]) for age in ages]
        inverse = np.stack([(power @ (1 / levels)[:, :, None])[..., 0] for power in powers])
        self._ahead = single(inverse)  # (H, G, 3)
        each = settings.steps_per_decision
        now = np.stack([np.linalg.matrix_power(chain, settings.stale_steps) for chain in transition])
        stays = np.stack([np.diagonal(np.linalg.matrix_power(chain, each)) for chain in transition])
        self._stay = single((now @ stays[:, :, None])[..., 0])
        self._decay = [self._keep**age for age in ages]
        self._mean = settings.noise_sigma**2 / 2

    def start(self, chain: Array) -> Belief:
        """Return what is known of links before anything was measured."""
        xp = array_namespace(chain)
        like = xp.zeros(chain.shape, dtype=xp.float32, device=chain.device)
        return Belief(rows_of(self._start, chain), like, like + self._spread)

    def move(self, belief: Belief, chain: Array) -> Belief:
        """Return the belief a step later, before anything is measured."""
        xp = array_namespace(chain)
        chances = xp.matmul(belief.chances[..., None, :], rows_of(self._transition, chain))[..., 0, :]
        return Belief(chances, belief.noise * self._keep, belief.variance * self._keep**2 + self._fresh)

    def measure(self, belief: Belief, chain: Array, *, level: Array, lost: Array, possible: Array) -> Belief:
        """Return the belief after measurements of bandwidth `level` [N, Q], the time of day taken out, but where
        they are `lost`. possible [N, Q, 3]: regimes that what else is seen does not rule out.
        """
        xp = array_namespace(chain)
        away = xp.log(level)[..., None] - rows_of(self._levels, chain)
        spread = belief.variance + self._error
        likely = xp.exp(-0.5 * (away - belief.noise[..., None]) ** 2 / spread[..., None])
        likely = xp.where(lost[..., None], xp.ones_like(likely), likely) * possible
        chances = (belief.chances + _LEAST) * (likely + 1e-12)
        chances = chances / chances.sum(axis=-1)[..., None]
        gain = xp.where(lost, xp.zeros_like(spread), belief.variance / spread)
        rest = (chances * away).sum(axis=-1)
        noise = belief.noise + gain * (rest - belief.noise)
        return Belief(chances, noise, belief.variance * (1 - gain))

    def ahead(self, belief: Belief, chain: Array) -> Array:
        """Return 1 / bandwidth relative to nominal expected now and at HORIZONS, [H, Q, N], time of day out."""
        xp = array_namespace(chain)
        chances, noise, variance = (xp.swapaxes(part, 0, 1) for part in (
            belief.chances, belief.noise, belief.variance))  # fmt: skip
        chain = xp.swapaxes(chain, 0, 1)
        parts = []
        for age, decay in enumerate(self._decay):
            inverse = (chances * rows_of(self._ahead[age], chain)).sum(axis=-1)
            # The log of 1 / bandwidth beside its regime is normal: its mean has decayed, its variance come back.
            left = (self._spread - (self._spread - variance) * decay**2) / 2
            parts.append(inverse * xp.exp(self._mean - noise * decay + left))
        return xp.stack(parts)

    def stay(self, belief: Belief, chain: Array) -> Array:
        """Return the chance that each link is in the same regime until the next decision [N, Q]."""
        return (belief.chances * rows_of(self._stay, chain)).sum(axis=-1)
