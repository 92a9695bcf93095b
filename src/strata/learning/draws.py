"""Random numbers where the arrays are: NumPy's generator on the host, torch's on a device under the same names."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from strata.training.replan.arrays import Array


class DeviceDraws:
    """The part of `numpy.random.Generator` that worlds and tables use, as torch's arrays on a device.

    The numbers are others than NumPy's for the same seed, and on another kind of device others again.
    """

    def __init__(self, seed: int, device: str) -> None:
        import torch

        self._torch: Any = torch
        self._where = {"generator": torch.Generator(device).manual_seed(seed), "device": device}

    def random(self, size: Any, dtype: Any = None) -> Array:
        """Return uniform numbers in [0, 1)."""
        return self._torch.rand(size, dtype=dtype or self._torch.float64, **self._where)

    def standard_normal(self, size: Any, dtype: Any = None) -> Array:
        """Return normal numbers."""
        return self._torch.randn(size, dtype=dtype or self._torch.float64, **self._where)

    def standard_exponential(self, size: Any) -> Array:
        """Return exponential numbers of mean 1."""
        return -self._torch.log1p(-self.random(size))

    def poisson(self, lam: Any, size: Any = None) -> Array:
        """Return numbers of events where `lam` are expected: one number, or an array of them."""
        if size is not None:
            lam = self._torch.full((size,), lam, dtype=self._torch.float64, device=self._where["device"])
        return self._torch.poisson(lam, generator=self._where["generator"]).long()

    def integers(self, low: int, high: Any, size: Any) -> Array:
        """Return whole numbers from `low` to below `high`: one number, or one for each column."""
        if not isinstance(high, int):
            columns = [self.integers(low, int(bound), size[:-1]) for bound in high]
            return self._torch.stack(columns, dim=-1)
        return low + (self.random(size) * (high - low)).long()


Draws: TypeAlias = np.random.Generator | DeviceDraws


def draws(source: np.random.SeedSequence, device: str | None) -> Draws:
    """Return random numbers for arrays of NumPy (None) or on a device."""
    if device is None:
        return np.random.default_rng(source)
    return DeviceDraws(int(source.generate_state(3)[2]), device)
