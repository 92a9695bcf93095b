"""What a binding is expected to earn some steps ahead, exactly, under the chain of its devices' health.

Only devices that are not good now are followed. One that turns bad later is answered when it does, whatever was
chosen before, and would be the end of every option alike: with a thousand devices no fixed binding lasts long.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from strata.arrays import Floats
from strata.fleet.dynamics.regimes import Regimes
from strata.training.hi_ppo.binding import NOBODY, Binding, BindingRate, group_speed
from strata.training.hi_ppo.domain_state import GOOD, DomainState
from strata.training.replan.options import HORIZONS


@lru_cache(maxsize=16)
def chances(chain: Regimes, interval_s: float) -> Floats:
    """Return P[h, i, j]: in state j HORIZONS[h] intervals after i, shape [5, K, K]."""
    return np.stack([chain.transition(steps * interval_s) for steps in HORIZONS])


def expected(domain_state: DomainState, binding: Binding, now: BindingRate, *, planned_s: float) -> Floats:
    """Return the step rate over the planned one (1 / `planned_s`) at each of HORIZONS, [5]; `now` is its pace.

    A copy ends at C + M x, x the time of a microbatch on its slowest group; C is held as it is now. So the step
    is as slow as the slowest device makes it, devices change independently, and the distribution of the
    least of their rates is a product.
    """
    if not np.isfinite(now.step_s):
        return np.zeros(len(HORIZONS))
    cap, caps, states = _caps(domain_state, binding, now, planned_s)
    expected = np.full(len(HORIZONS), planned_s / now.step_s)
    if len(states):
        expected[1:] = [
            _least(cap, caps, chance[states])
            for chance in chances(domain_state.chain, domain_state.interval_s)[1:]
        ]
    return expected


def _caps(
    domain_state: DomainState, binding: Binding, now: BindingRate, planned_s: float
) -> tuple[float, Floats, Floats]:
    """Return the rate the good devices allow, and [Q, K] what each other device allows in each state, and [Q]."""
    devices = binding.devices
    used = devices != NOBODY
    is_off = used & (np.append(domain_state.health, GOOD)[devices] != GOOD)
    share = binding.microbatches[:, None].astype(np.float64)
    fixed = now.copy_s - (share * now.work_s / group_speed(domain_state, devices)).max(axis=1)
    free = np.append(1 - domain_state.load, np.inf)
    good = np.where(is_off, np.inf, free[devices]).min(axis=-1)  # [R, S] slowest good device of each group
    slowest_s = (fixed[:, None] + share * now.work_s / good).max() + now.after_s
    copy, stage, _ = np.nonzero(is_off)
    off = devices[is_off]
    factors = np.asarray(domain_state.chain.factors)
    with np.errstate(divide="ignore"):
        each_s = now.work_s[stage][:, None] / (factors * free[off][:, None])
    end_s = fixed[copy][:, None] + binding.microbatches[copy][:, None] * each_s + now.after_s
    return planned_s / float(slowest_s), planned_s / end_s, domain_state.health[off]


def _least(cap: float, caps: Floats, chance: Floats) -> float:
    """Return E min(cap, the least of independent rates), `caps` [Q, K] falling along K with chances [Q, K].

    The integral of P(all rates >= u) over u in (0, cap): it changes at the rates themselves, each by a factor.
    """
    at_least = np.cumsum(chance, axis=1)
    above = at_least - chance
    with np.errstate(divide="ignore", invalid="ignore"):
        fall = np.where(at_least > 0, np.log(np.maximum(above, 0.0) / at_least), 0.0)
    order = np.argsort(caps, axis=None)
    edges = np.minimum(caps.ravel()[order], cap)
    left = np.exp(np.concatenate([[0.0], np.cumsum(fall.ravel()[order])]))  # chance beyond each edge
    lengths = np.diff(np.concatenate([[0.0], edges, [cap]]))
    return float(left @ lengths)
