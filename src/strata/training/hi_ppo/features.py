"""What the policy's network sees of some options: numbers without units, the same for 2 domains or 32.

Values are divided by the best option's value now, gains are over the option in use, so a policy trained on
one fleet reads another. Nothing here is a value function: sums of expected values over at most 16 steps.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from array_api_compat import array_namespace

from strata.training.replan.arrays import Array, placed
from strata.training.replan.options import SPAN_SUMS, SPANS, Options

VERSION: Final = 1
"""Of the meaning of features and context: a policy file of another version is refused."""

FEATURES: Final = (
    "gain_now", "gain_in_1", "gain_in_2", "gain_in_4", "gain_in_8",
    "behind_best_now", "behind_best_in_1", "behind_best_in_2", "behind_best_in_4", "behind_best_in_8",
    "switch_cost", "in_use",
    "net_gain_1_step", "net_gain_2_steps", "net_gain_4_steps", "net_gain_8_steps", "net_gain_16_steps",
    "lowest_link_now", "lowest_link_in_8", "mean_link_stay", "least_link_stay",
)  # fmt: skip

CONTEXT: Final = (
    "weight_efficiency", "weight_utilization", "weight_cost", "inside", "log_options", "has_current",
    "mean_switch_cost", "best_gain_now",
)  # fmt: skip

_CLIP: Final = 4.0
_SPANS: Final = np.array(SPANS, dtype=np.float64)


def features(options: Options) -> tuple[Array, Array]:
    """Return what the network sees of each option [B, P, len(FEATURES)] and of the decision [B, len(CONTEXT)].

    The values of illegal options are set to 0. Values must be finite (see `guard.py` for those that are not).
    Arrays of the kind and on the device of those of `options`, in single precision.
    """
    legal, xp = options.legal, array_namespace(options.value)
    where = {"device": legal.device}
    scale = _scale(options)[:, None, None]
    best = xp.max(xp.where(legal[..., None], options.value, -np.inf), axis=1)
    gain = (options.value - _reference(options)[:, None]) / scale
    behind = (options.value - best[:, None]) / scale
    cost = options.cost[..., None] / scale
    in_use = xp.arange(legal.shape[1], **where) == options.current[:, None]
    # Net gains a step, so that long spans stay of the size of short ones.
    net = (gain @ placed(SPAN_SUMS, gain) - cost) / placed(_SPANS, gain)
    parts = [gain, behind, cost, in_use[..., None], net, options.links]
    seen = xp.where(legal[..., None], _side_by_side(parts), 0.0)
    others = legal & ~in_use
    count = xp.astype(legal.sum(axis=1), xp.float64)
    context = _side_by_side(
        [
            options.preference,
            xp.full((len(options), 1), float(options.inside), **where),
            xp.log(count.clip(1.0))[:, None] / 4,
            (options.current >= 0)[:, None],
            ((cost[..., 0] * others).sum(axis=1) / others.sum(axis=1).clip(1))[:, None],
            xp.max(xp.where(legal, gain[..., 0], 0.0), axis=1)[:, None],
        ]
    )
    return _small(seen), _small(context)


def _side_by_side(parts: list[Array]) -> Array:
    xp = array_namespace(parts[0])
    return xp.concat([xp.astype(part, xp.float64, copy=False) for part in parts], axis=-1)


def _reference(options: Options) -> Array:
    """Return [B, 5]: the values of the option in use, or of the best one now where there is none."""
    xp = array_namespace(options.value)
    now = xp.where(options.legal, options.value[..., 0], -np.inf)
    index = xp.where(options.current >= 0, options.current, now.argmax(axis=1))
    return options.value[xp.arange(len(options), device=index.device), index]


def _scale(options: Options) -> Array:
    xp = array_namespace(options.value)
    size = xp.max(xp.where(options.legal, xp.abs(options.value[..., 0]), 0.0), axis=1)
    return xp.where(size > 0, size, 1.0)


def _small(values: Array) -> Array:
    xp = array_namespace(values)
    return xp.astype(values.clip(-_CLIP, _CLIP), xp.float32)
