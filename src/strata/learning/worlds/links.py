"""The links of all environments: regimes, noise, time of day, what is seen of them, and what they may become.

Letters: N environments, Q pairs of domains, H horizons. Both directions of a pair share one state. A pair's
chain is one of a few of different persistence; chains of plain regimes and, after them, of announced episodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace

from strata.arrays import Floats
from strata.fleet.dynamics.regimes import GOOD_DEGRADED_BAD, WARNING, Regimes, precursor
from strata.learning.draws import Draws
from strata.learning.worlds.belief import Belief, Filter
from strata.learning.worlds.settings import WorldSettings
from strata.training.replan.arrays import Array, Bools, Ints, Singles, columns_of, moved, raise_to, rows_of
from strata.training.replan.options import HORIZONS

GRADES: Final = 8
"""Values between the ends of `stay` that a pair's persistence takes."""

LEAST: Final = 0.02
"""No link is ever slower than this share of its nominal bandwidth."""

_DAY_S: Final = 86400.0


@dataclass(frozen=True, eq=False, slots=True)
class Chains:
    """Chains over three regimes; the first half plain, the second announced. G = 2 x GRADES.

    levels  [G, 3]     bandwidth relative to nominal
    cumulative [G, 3, 2]  chance to be at most in regime 0, 1 a step later
    start   [G, 2]     the same of the stationary distribution
    transition [G, 3, 3]  chance to be in each regime a step later
    ahead   [G, 3, H]  expected 1 / level now, and HORIZONS[1:] decisions later
    stay    [G, 3]     chance to be in the same regime a decision later
    middle  [G, 2]     levels between which regimes are told apart, the geometric mean of neighbours
    """

    levels: Floats
    transition: Floats
    cumulative: Floats
    start: Floats
    ahead: Floats
    stay: Floats
    middle: Floats

    @classmethod
    def of(cls, settings: WorldSettings) -> Chains:
        """Tabulate the chains of a world."""
        step_s = settings.interval_s
        grades = np.linspace(*settings.stay, GRADES)
        levels = GOOD_DEGRADED_BAD if settings.regimes else (1.0, 1.0, 1.0)
        chains = [Regimes.with_persistence(stay, step_s=step_s, factors=levels) for stay in grades]
        chains += [_announced(stay, step_s) for stay in grades]
        transition = np.stack([chain.transition(step_s) for chain in chains])
        each = settings.steps_per_decision
        many = [np.linalg.matrix_power(transition, steps * each) for steps in HORIZONS]
        level = np.array([chain.factors for chain in chains])
        ahead = np.stack([(power @ (1 / level)[:, :, None])[..., 0] for power in many], axis=-1)
        rows = np.linalg.matrix_power(transition, 4096)[:, 0]  # far ahead it does not matter where a chain is
        middle = np.sqrt(level[:, :-1] * level[:, 1:])
        # Quiet and announced look alike: the first border of an announced chain is never crossed from below.
        middle[GRADES:, 0] = middle[GRADES:, 1]
        stay = np.diagonal(np.linalg.matrix_power(transition, each), axis1=1, axis2=2).copy()
        if not settings.regimes:
            middle[:GRADES], stay[:GRADES] = 0.0, 1.0
        return cls(
            level, transition, np.cumsum(transition, axis=-1)[..., :2], np.cumsum(rows, axis=-1)[..., :2], ahead,
            stay, middle,
        )  # fmt: skip


def _announced(stay: float, step_s: float) -> Regimes:
    """Return a chain of announced episodes that last as long as a regime that is kept with chance `stay`."""
    scale = -1 / math.log(stay) * step_s / 1500.0
    return precursor(quiet_s=3750.0 * scale, warning_s=max(600.0 * scale, step_s), episode_s=1500.0 * scale)


@dataclass(slots=True)
class Links:
    """State, all [N, Q]: `factor` is the bandwidth relative to nominal, `lateness` the latency.

    `seen` is the last valid measurement of the factor, `seen_regime` what it says, `lost` whether the newest
    measurement was missing. `past` holds the factors and regimes of the last steps, newest first. `belief`: what
    all measurements say together; None where the newest one says all there is to know.
    """

    chain: Ints
    regime: Ints
    noise: Singles
    phase: Singles
    factor: Singles
    lateness: Singles
    seen: Singles
    seen_regime: Ints
    lost: Bools
    past: list[tuple[Singles, Ints]]
    belief: Belief | None = None


@dataclass(frozen=True, slots=True)
class LinkChance:
    """What a step of the links needs of chance, all [N, Q]: uniform draws in [0, 1) and normal ones."""

    regime: Singles
    noise: Singles
    width: Singles
    late: Singles
    measured: Singles
    missing: Singles

    @classmethod
    def draw(cls, rng: Draws, none: Singles, settings: WorldSettings) -> LinkChance:
        """Draw only what these settings use; the rest is `none`, zeros [N, Q]."""

        def uniform(wanted: object) -> Singles:
            return rng.random(none.shape, dtype=none.dtype) if wanted else none

        def normal(wanted: object) -> Singles:
            return rng.standard_normal(none.shape, dtype=none.dtype) if wanted else none

        return cls(
            uniform(settings.regimes or settings.precursor_share),
            normal(settings.noise_sigma),
            uniform(settings.bandwidth_half_width),
            uniform(settings.latency_half_width),
            normal(settings.observed_sigma),
            uniform(settings.missing_share),
        )


class LinkWorld:
    """Moves the links of N environments, a step at a time; arrays of the state are replaced, not written to.

    device: where the arrays are torch's, None for NumPy's.
    """

    def __init__(self, settings: WorldSettings, device: str | None = None) -> None:
        self.settings, self.chains = settings, Chains.of(settings)
        elapsed = settings.interval_s / settings.noise_tau_s
        self._keep = math.exp(-elapsed)
        self._fresh = settings.noise_sigma * math.sqrt(-math.expm1(-2 * elapsed))
        # Tables by chain x 3 + regime, in single precision: a step is mostly looking them up.
        chains = self.chains

        def single(table: Floats) -> Array:
            return moved(np.ascontiguousarray(table, dtype=np.float32), device)

        self._edges = [single(edge) for edge in chains.cumulative.reshape(-1, 2).T]
        self._middles = [single(middle) for middle in chains.middle.T]
        self._levels, self._stay = single(chains.levels.ravel()), single(chains.stay.ravel())
        self._ahead = single(chains.ahead.reshape(-1, len(HORIZONS)).T)
        self._decay = single(np.exp(-elapsed * settings.steps_per_decision * np.array(HORIZONS)))
        self._start = moved(chains.start, device)
        self._filter = None
        if settings.regimes and (settings.stale_steps or settings.observed_sigma or settings.missing_share):
            start = np.diff(chains.start, axis=-1, prepend=0.0, append=1.0)
            self._filter = Filter(
                settings, transition=chains.transition, stationary=start, levels=chains.levels, device=device
            )
        half = settings.bandwidth_half_width
        #: Expected 1 / u of the uniform noise.
        self._jitter = math.log((1 + half) / (1 - half)) / (2 * half) if half else 1.0

    def start(self, chance: LinkChance, chain: Ints, phase: Singles) -> Links:
        """Return links at the start of an episode, stationary; `chain` and `phase` stay as they are."""
        xp = array_namespace(chain)
        regime = (chance.regime[..., None] >= rows_of(self._start, chain)).sum(axis=-1)
        noise = self.settings.noise_sigma * chance.noise
        links = Links(chain, regime, noise, phase, *(xp.ones_like(noise),) * 3, regime, noise > 1e9, [])
        if self._filter:
            links.belief = self._filter.start(chain)
        self._measure(links, chance, xp.zeros((len(noise), 1), dtype=xp.float64, device=noise.device))
        return links

    def step(self, links: Links, chance: LinkChance, time_s: Array) -> None:
        """Move one interval on, to `time_s` [N, 1]."""
        if self.settings.regimes or self.settings.precursor_share:
            at, xp = links.chain * 3 + links.regime, array_namespace(links.chain)
            first, second = (edge.take(at) for edge in self._edges)
            links.regime = xp.astype(chance.regime >= first, xp.int64) + (chance.regime >= second)
        if self.settings.noise_sigma:
            links.noise = links.noise * self._keep + self._fresh * chance.noise
        if self._filter and links.belief and len(links.past) > self.settings.stale_steps:
            links.belief = self._filter.move(links.belief, links.chain)
        self._measure(links, chance, time_s)

    def drawn(self, links: Links, time_s: Array, rng: Draws) -> Links:
        """Return links as they may be at `time_s` [N, 1], drawn by what was measured until then; NumPy's alone.

        A regime that no belief weighs is taken for what its last measurement says.
        """
        settings, belief, shape = self.settings, links.belief, links.chain.shape
        spread = settings.noise_sigma**2 / 2
        if belief is None:
            regime, factor = links.seen_regime, links.seen
            noise = (
                np.log(factor / self._levels.take(links.chain * 3 + regime) / self._wave(links, time_s)) + spread
            )
            return replace(links, regime=regime, noise=noise, factor=factor, past=[(factor, regime)])
        edges = np.cumsum(belief.chances, axis=-1)[..., :2]
        regime = (rng.random(shape, dtype=np.float32)[..., None] >= edges).sum(axis=-1)
        noise = belief.noise + np.sqrt(belief.variance) * rng.standard_normal(shape, dtype=np.float32)
        # What is believed is of the newest measurement's time: links went on since.
        time_s = time_s - settings.stale_steps * settings.interval_s
        factor = self._levels.take(links.chain * 3 + regime) * self._wave(links, time_s) * np.exp(noise - spread)
        result = replace(links, regime=regime, noise=noise, past=[(factor, regime)], factor=factor, belief=None)
        for _ in range(settings.stale_steps):
            time_s = time_s + settings.interval_s
            self.step(result, LinkChance.draw(rng, np.zeros_like(noise), settings), time_s)
        return replace(
            result, belief=belief, seen=links.seen, seen_regime=links.seen_regime, lost=links.lost
        )  # fmt: skip

    def _measure(self, links: Links, chance: LinkChance, time_s: Array) -> None:
        settings, xp = self.settings, array_namespace(links.chain)
        factor, wave = self._levels.take(links.chain * 3 + links.regime), self._wave(links, time_s)
        if settings.diurnal_amplitude:
            factor = factor * wave
        if settings.noise_sigma:
            factor = factor * xp.exp(links.noise - settings.noise_sigma**2 / 2)
        if settings.bandwidth_half_width:
            factor = factor * (1 + settings.bandwidth_half_width * (2 * chance.width - 1))
        raise_to(factor, LEAST)
        links.factor = factor
        if settings.latency_half_width:
            links.lateness = 1 + settings.latency_half_width * (2 * chance.late - 1)
        links.past = [(links.factor, links.regime), *links.past[: settings.stale_steps]]
        seen, regime = links.past[-1]
        if settings.observed_sigma:
            seen = seen * xp.exp(settings.observed_sigma * chance.measured)
        if settings.missing_share:
            links.lost = chance.missing < settings.missing_share
            seen = xp.where(links.lost, links.seen, seen)
        links.seen = seen
        level = seen / wave if settings.diurnal_amplitude else seen
        first, second = (middle.take(links.chain) for middle in self._middles)
        links.seen_regime = xp.astype(level < first, xp.int64) + (level < second)
        if settings.precursor_share:
            # A warning is not in the bandwidth (loss and delay rise first): it is seen as late as the rest.
            warned = (links.chain >= GRADES) & (regime == WARNING) & (links.seen_regime == 0)
            links.seen_regime = xp.where(warned, WARNING, links.seen_regime)
        if self._filter and links.belief:
            links.belief = self._filter.measure(
                links.belief, links.chain, level=level, lost=links.lost, possible=self._possible(links, regime)
            )

    def _possible(self, links: Links, regime: Ints) -> Singles:
        """Return the regimes [N, Q, 3] that warnings, which are seen, do not rule out."""
        xp = array_namespace(regime)
        each = xp.arange(3, device=regime.device)
        is_warned, announced = regime[..., None] == WARNING, links.chain[..., None] >= GRADES
        ruled_out = announced & xp.where(is_warned, each != WARNING, each == WARNING)
        return xp.astype(~ruled_out, xp.float32)

    def _wave(self, links: Links, time_s: Array) -> Any:
        if not self.settings.diurnal_amplitude:
            return 1.0
        xp = array_namespace(links.phase)
        angle = xp.astype(2 * math.pi * time_s / _DAY_S, xp.float32) + links.phase
        return 1 + self.settings.diurnal_amplitude * xp.sin(angle)

    def ahead(self, links: Links, time_s: Array, *, believes: bool) -> Singles:
        """Return 1 / bandwidth relative to nominal, seen now and expected later, [H, Q, N]; single precision.

        believes: expect it by all measurements, not by the newest as if it were exact and of now.
        """
        xp, settings = array_namespace(links.seen), self.settings
        if believes and self._filter and links.belief:
            inverse = self._filter.ahead(links.belief, links.chain)
            return inverse / self._waves(links, time_s) if settings.diurnal_amplitude else inverse
        inverse = columns_of(self._ahead, (links.chain * 3 + links.seen_regime).T)
        if settings.noise_sigma:
            rest = -xp.log(links.seen.T * inverse[0])
            if settings.diurnal_amplitude:
                rest += xp.log(self._wave(links, time_s)).T
            inverse *= xp.exp(rest * self._decay[:, None, None])
        elif settings.bandwidth_half_width:
            inverse *= self._jitter
        if settings.diurnal_amplitude:
            inverse /= self._waves(links, time_s)
        inverse[0] = 1 / links.seen.T
        return inverse

    def _waves(self, links: Links, time_s: Array) -> Singles:
        """Return the daily wave now and at HORIZONS, [H, Q, N]."""
        decision_s = self.settings.steps_per_decision * self.settings.interval_s
        xp = array_namespace(links.phase)
        return xp.stack([self._wave(links, time_s + steps * decision_s).T for steps in HORIZONS])

    def stay(self, links: Links, *, believes: bool) -> Singles:
        """Return the chance that each pair's regime is the same a decision later [N, Q]; believes: see `ahead`."""
        if believes and self._filter and links.belief:
            return self._filter.stay(links.belief, links.chain)
        return self._stay.take(links.chain * 3 + links.seen_regime)
