"""What a scheduler may look at when it decides: the options, what each earns, and what going there costs.

Every rule of the ladder and every learned policy decides on `Options` and nothing else, at both levels: an
option is a plan of a job (between domains) or a binding of devices (inside one). So the same decision runs on
reward tables, in the simulated world and live.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from array_api_compat import array_namespace

from strata.arrays import Floats
from strata.training.replan.arrays import Array, placed

HORIZONS: Final = (0, 1, 2, 4, 8)
"""Steps ahead at which the value of each option is expected; 0 is now."""

SPANS: Final = (1, 2, 4, 8, 16)
"""Numbers of steps over which values are summed."""

_AHEAD: Final = np.arange(max(SPANS))
SPAN_SUMS: Final[Floats] = np.array(
    [[np.interp(_AHEAD[:span], HORIZONS, unit).sum() for span in SPANS] for unit in np.eye(len(HORIZONS))]
)
"""[5, 5]: value at HORIZONS @ SPAN_SUMS is its sum over SPANS, linear between horizons and held after the last."""

LINK_FEATURES: Final = ("lowest_now", "lowest_in_8", "mean_stay", "least_stay")
"""Of the links an option uses: level now and in 8 steps relative to nominal, chance to be in the same regime
one step later. All 1 for an option that uses no link."""


@dataclass(frozen=True, slots=True)
class Options:
    """B decisions at once, each between up to P options; all arrays NumPy's, or all torch's on one device.

    value: [B, P, 5] what each option earns in a step, now and expected 1, 2, 4 and 8 steps ahead; any unit,
        more is better.
    cost: [B, P] what going to an option costs once, in the same unit; 0 for the one in use.
    links: [B, P, 4] see LINK_FEATURES.
    current: [B] index of the option in use, -1 where there is none yet.
    legal: [B, P] False for options that do not exist or cannot be taken now. The one in use is always legal
        unless what it runs on is gone.
    preference: [B, 3] weights of (efficiency, utilisation, communication cost) the values were made under.
    inside: whether these are options inside one domain.
    """

    value: Array
    cost: Array
    links: Array
    current: Array
    legal: Array
    preference: Array
    inside: bool = False

    def __post_init__(self) -> None:
        rows, count, ahead = self.value.shape
        assert ahead == len(HORIZONS)
        assert self.cost.shape == self.legal.shape == (rows, count)
        assert self.links.shape == (rows, count, len(LINK_FEATURES))
        assert self.current.shape == (rows,)
        assert self.preference.shape == (rows, 3)

    def __len__(self) -> int:
        return len(self.value)

    def summed_gain(self) -> Array:
        """Return [B, P, 5]: what each option earns more than the one in use over SPANS, cost aside.

        Where none is in use the gain is over nothing.
        """
        xp = array_namespace(self.value)
        rows = xp.arange(len(self), device=self.value.device)
        kept = self.value[rows, self.current.clip(0)]
        kept = xp.where((self.current >= 0)[:, None], kept, 0.0)
        return (self.value - kept[:, None, :]) @ placed(SPAN_SUMS, self.value)


def joined(parts: Sequence[Options], most: int) -> Options:
    """Return the decisions of several Options as one, the options padded to `most` with illegal ones."""

    xp = array_namespace(*(part.value for part in parts))

    def padded(name: str) -> Array:
        arrays = [getattr(part, name) for part in parts]
        first, rows = arrays[0], sum(len(array) for array in arrays)
        padded_array = xp.zeros((rows, most, *first.shape[2:]), dtype=first.dtype, device=first.device)
        start = 0
        for array in arrays:
            padded_array[start : start + len(array), : array.shape[1]] = array
            start += len(array)
        return padded_array

    return Options(
        value=padded("value"),
        cost=padded("cost"),
        links=padded("links"),
        current=xp.concat([part.current for part in parts]),
        legal=padded("legal"),
        preference=xp.concat([part.preference for part in parts]),
        inside=parts[0].inside,
    )
