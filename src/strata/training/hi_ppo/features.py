"""What the policy's network sees of some options: numbers without units, the same for 2 domains or 32.

Values are divided by the best option's value now, gains are over the option in use, so a policy trained on
one fleet reads another. Nothing here is a value function: sums of expected values over at most 16 steps.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from strata.training.replan.options import SPAN_SUMS, SPANS, Floats, Options

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


def features(options: Options) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what the network sees of each option [B, P, len(FEATURES)] and of the decision [B, len(CONTEXT)].

    The values of illegal options are set to 0. Values must be finite (see `guard.py` for those that are not).
    """
    legal = options.legal
    scale = _scale(options)[:, None, None]
    best = np.where(legal[..., None], options.value, -np.inf).max(axis=1)
    gain = (options.value - _reference(options)[:, None]) / scale
    behind = (options.value - best[:, None]) / scale
    cost = options.cost[..., None] / scale
    in_use = np.arange(legal.shape[1]) == options.current[:, None]
    # Net gains a step, so that long spans stay of the size of short ones.
    net = (gain @ SPAN_SUMS - cost) / np.array(SPANS)
    parts = [gain, behind, cost, in_use[..., None], net, options.links]
    seen = np.where(legal[..., None], np.concatenate(parts, axis=-1), 0.0)
    others = legal & ~in_use
    context = np.column_stack(
        [
            options.preference,
            np.full(len(options), float(options.inside)),
            np.log(np.maximum(1, legal.sum(axis=1))) / 4,
            options.current >= 0,
            (cost[..., 0] * others).sum(axis=1) / np.maximum(1, others.sum(axis=1)),
            np.where(legal, gain[..., 0], 0.0).max(axis=1),
        ]
    )
    return _small(seen), _small(context)


def _reference(options: Options) -> Floats:
    """Return [B, 5]: the values of the option in use, or of the best one now where there is none."""
    now = np.where(options.legal, options.value[..., 0], -np.inf)
    index = np.where(options.current >= 0, options.current, now.argmax(axis=1))
    return np.asarray(options.value[np.arange(len(options)), index])


def _scale(options: Options) -> Floats:
    size = np.where(options.legal, np.abs(options.value[..., 0]), 0.0).max(axis=1)
    return np.where(size > 0, size, 1.0)


def _small(values: Floats) -> NDArray[np.float32]:
    return np.clip(values, -_CLIP, _CLIP).astype(np.float32)
