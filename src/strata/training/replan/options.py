"""What a scheduler may look at when it decides: the options, what each earns, and what going there costs.

Every rule of the ladder and every learned policy decides on `Options` and nothing else, at both levels: an
option is a plan of a job (between domains) or a binding of devices (inside one). So the same decision runs on
reward tables, in the simulated world and live.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HORIZONS: Final = (0, 1, 2, 4, 8)
"""Steps ahead at which the value of each option is expected; 0 is now."""

LINK_FEATURES: Final = ("lowest_now", "lowest_in_8", "mean_stay", "least_stay")
"""Of the links an option uses: level now and in 8 steps relative to nominal, chance to be in the same regime
one step later. All 1 for an option that uses no link."""


@dataclass(frozen=True, slots=True)
class Options:
    """B decisions at once, each between up to P options.

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

    value: Floats
    cost: Floats
    links: Floats
    current: Ints
    legal: Bools
    preference: Floats
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
