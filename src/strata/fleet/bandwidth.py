"""Bandwidth as a curve of message size: a 1 MB message gets half the bandwidth of a 512 MB one.

The form is Sailor's (arXiv 2504.17096, eth-easl/sailor `multizone_bandwidths_het.json`): GB/s is a
quadratic in log2 of the message size in MB, fitted to measured transfers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from strata.arrays import Floats


@dataclass(frozen=True, slots=True)
class BandwidthCurve:
    """GB/s = polynomial(log2(MB)), highest power first, exactly as published (no clipping)."""

    coefficients: tuple[float, ...]

    def bandwidth_bytes_per_s(self, message_bytes: float) -> float:
        """Return the bandwidth one message of this size sees [B/s]."""
        x, value = math.log2(message_bytes / 1e6), 0.0
        for coefficient in self.coefficients:
            value = value * x + coefficient
        return value * 1e9

    def transfer_s(self, message_bytes: float) -> float:
        """Return the time one message takes, latency included as far as the fit saw it [s]."""
        return 0.0 if message_bytes <= 0 else message_bytes / self.bandwidth_bytes_per_s(message_bytes)

    def transfers_s(self, message_bytes: Floats) -> Floats:
        """Return `transfer_s` of each of many messages."""
        sizes = np.maximum(np.asarray(message_bytes, dtype=float), 1e-300)
        return np.asarray(sizes / (np.polyval(self.coefficients, np.log2(sizes / 1e6)) * 1e9))
