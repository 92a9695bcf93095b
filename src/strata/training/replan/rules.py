"""The fixed rules of the ladder: what a policy must beat. Each maps Options to the index of an option.

Ties go to the option in use, then to the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from array_api_compat import array_namespace

from strata.arrays import Floats, Ints
from strata.training.replan.arrays import Array
from strata.training.replan.options import HORIZONS, Options

Rule = Callable[[Options], Ints]

MARGIN: Final = 0.5
"""Of the fixed hysteresis: a gain of half the switch's cost is enough to switch."""

MPC_STEPS: Final = 2
MARGINS: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 3.0)
SPANS: Final = (2, 3, 4, 6, 8)
"""What the tuned rules choose from, per scenario and with hindsight: they are bounds of rules, not rules."""


def best(options: Options, worth: Floats) -> Ints:
    """Return the option of the largest worth [B, P] among the legal ones; a tie keeps the one in use."""
    worth = np.where(options.legal, worth, -np.inf)
    picks = worth.argmax(axis=1)
    rows = np.arange(len(worth))
    kept = np.maximum(options.current, 0)
    tie = (options.current >= 0) & options.legal[rows, kept] & (worth[rows, kept] >= worth[rows, picks])
    return np.asarray(np.where(tie, kept, picks))


def keep(options: Options) -> Ints:
    """Static: the plan in use; the best one now where there is none or it is gone."""
    rows, kept = np.arange(len(options)), np.maximum(options.current, 0)
    usable = (options.current >= 0) & options.legal[rows, kept]
    return np.asarray(np.where(usable, kept, myopic(options)))


def myopic(options: Options) -> Ints:
    """Sailor-like: the exact best plan for what links are now, whatever the switch costs."""
    return best(options, options.value[..., 0])


def hysteresis(margin: float = MARGIN) -> Rule:
    """Return the rule that switches to the best plan now when it gains more than `margin` of the cost."""
    return lambda options: best(options, options.value[..., 0] - margin * options.cost)


def safe_picks(options: Options) -> Array:
    """Return what `hysteresis()` takes, as arrays of any device; a tie goes to the first."""
    xp = array_namespace(options.value)
    worth = options.value[..., 0] - MARGIN * options.cost
    return xp.where(options.legal, worth, xp.zeros_like(worth) - 1e9).argmax(axis=1)


def mpc(steps: int = MPC_STEPS) -> Rule:
    """Return the rule that takes the plan of the most expected reward over `steps` steps, the switch taken off.

    Between the horizons of Options values are interpolated, after the last one they are held; 1, 2 and 3
    steps are exact.
    """
    ahead = np.arange(steps)
    weights = np.stack([np.interp(ahead, HORIZONS, row) for row in np.eye(len(HORIZONS))]).sum(axis=1)
    return lambda options: best(options, options.value @ weights - options.cost)


def random(rng: np.random.Generator) -> Rule:
    """Return the rule that takes any legal option."""
    return lambda options: best(options, rng.random(options.legal.shape))
