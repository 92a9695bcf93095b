"""How large jobs are, how long they run and when they arrive: quantiles of public GPU traces, restated.

Figures of Seren, Kalos, Philly, Helios and PAI: `data/cluster_summary.csv` of AcmeTrace (Shanghai AI
Laboratory, https://github.com/InternLM/AcmeTrace, CC-BY-4.0; Hu et al., NSDI 2024), which gives mean and median
of run times and of GPUs. Openb: lifetimes of GPU pods in Alibaba's cluster-trace-gpu-v2023, p10, p50 and p90
counted by us (a log-normal meets the outer two to 20 %). Times are log-normal with the published median and mean
(Openb: p50 and the distance of the outer two), cut off at 30 days; medians and means are calibrated, the shape
between them is assumed. No trace holds jobs that cross data centres.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from strata.arrays import Floats

LONGEST_S: Final = 30 * 86400.0
MOST_NODES: Final = 64
NODE_DEVICES: Final = 8


@dataclass(frozen=True, slots=True)
class JobTrace:
    """Run times [s] and sizes [GPUs] of the GPU jobs of one trace."""

    median_s: float
    mean_s: float
    mean_devices: float

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm: the cut log-normal then has the published mean."""
        return _sigma(self.median_s, self.mean_s)

    def run_time_s(self, uniform: Any, *, least_s: float = 0.0, normal: tuple[Any, ...] | None = None) -> Any:
        """Return the quantiles of run times at `uniform` in [0, 1), of jobs that run at least `least_s` [s].

        Of torch's arrays too, where `normal` is NORMAL as torch's on the same device.
        """
        low, high = _normal_cdf(self._z(least_s)), _normal_cdf(self._z(LONGEST_S))
        z = _interpolated(low + uniform * (high - low), *(normal or NORMAL))
        return (self.median_s * array_namespace(z).exp(self.sigma * z)).clip(least_s, LONGEST_S)

    def nodes(self, uniform: Floats) -> Floats:
        """Return the quantiles of sizes at `uniform` in [0, 1): whole nodes of 8, from 1 to 64.

        A mixture: one node, or log-uniform over 1 to 64 nodes with the share that meets the mean.
        """
        share = self._wide_share
        wide = np.clip((np.asarray(uniform) - (1 - share)) / max(share, 1e-12), 0.0, 1.0)
        return np.asarray(np.floor(np.exp(wide * math.log(MOST_NODES))))

    @property
    def _wide_share(self) -> float:
        grid = (np.arange(1000) + 0.5) / 1000
        mean = float(np.floor(np.exp(grid * math.log(MOST_NODES))).mean())
        return min(1.0, max(0.0, self.mean_devices / NODE_DEVICES - 1) / (mean - 1))

    def _z(self, time_s: float) -> float:
        return math.log(time_s / self.median_s) / self.sigma if time_s > 1e-9 else -math.inf


@cache
def _sigma(median_s: float, mean_s: float) -> float:
    """Bisect E[X | X < longest] = mean; the median moves by less than 0.5 %."""
    edge, low, high = math.log(LONGEST_S / median_s), 1e-3, 6.0
    for _ in range(60):
        sigma = (low + high) / 2
        kept = _normal_cdf(edge / sigma - sigma) / _normal_cdf(edge / sigma)
        low, high = (sigma, high) if median_s * math.exp(sigma**2 / 2) * kept < mean_s else (low, sigma)
    return low


def _openb() -> JobTrace:
    """p10, p50, p90 = 74, 545, 6260 s: sigma is half the distance of the outer two in normal quantiles."""
    sigma = math.log(6260 / 74) / (2 * 1.2815515655446004)
    return JobTrace(545.0, 545.0 * math.exp(sigma**2 / 2), (6989 + 2 * 16 + 4 * 15 + 8 * 44) / 7064)


TRACES: Final = {
    "seren": JobTrace(122.0, 1414.0, 5.68),
    "kalos": JobTrace(124.0, 1260.0, 26.8),
    "philly": JobTrace(874.0, 18006.0, 1.93),
    "helios": JobTrace(206.0, 6652.0, 3.72),
    "pai": JobTrace(481.0, 4787.0, 0.68),
    "openb": _openb(),
}


def sample(trace: JobTrace, rng: np.random.Generator, n: int, *, least_s: float = 0.0) -> tuple[Floats, Floats]:
    """Return run times [s] and sizes [nodes] of n jobs; the two are drawn independently, which is assumed."""
    return trace.run_time_s(rng.random(n), least_s=least_s), trace.nodes(rng.random(n))


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _interpolated(x: Any, at: Any, values: Any) -> Any:
    """Return `values` at x, linear between the rising points `at`, and held beyond them."""
    if is_numpy_array(x):
        return np.interp(x, at, values)
    xp = array_namespace(x)
    left = (xp.searchsorted(at, x, side="right") - 1).clip(0, len(at) - 2)
    share = ((x - at[left]) / (at[left + 1] - at[left])).clip(0.0, 1.0)
    return values[left] + share * (values[left + 1] - values[left])


_Z: Final = np.linspace(-6.0, 6.0, 4801)
NORMAL: Final = np.array([_normal_cdf(z) for z in _Z]), _Z
"""The distribution of normal numbers, and the numbers: between them the quantile is right to about 1e-4."""
