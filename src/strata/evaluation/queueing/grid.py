"""The domains many jobs share: whole nodes, the links between them, and how fast a job runs across them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Final, Self, TypeVar

import numpy as np

from strata.evaluation.queueing.job import QueuedJob
from strata.fleet.dynamics.regimes import Regimes
from strata.simulate.collective import diloco_s, ring_s
from strata.training.replan.options import HORIZONS

V = TypeVar("V")

Placement = tuple[tuple[int, int], ...]
"""Where a job runs: (domain, nodes > 0) of each domain used, in order of domain."""

Lookup = Sequence[V] | Mapping[int, V]
"""A value of each link, by its number."""

MAX_SPAN: Final = 3
"""Domains a job may span: up to three the ring is the same whatever its order, so speed needs no search."""

STEP_S: Final = 600.0
"""Time between two looks at the links, and the step of the values of an option."""

CHECKPOINT: Final = 8.0
"""Bytes of a checkpoint per byte of gradients: 16 of parameters and optimiser to 2 of bf16 gradients."""


@dataclass(frozen=True, eq=False)
class Grid:
    """K domains of like nodes; every pair is joined by a link of its own, both directions alike.

    nodes: [K] nodes of 8 devices.
    bandwidth_bytes_per_s, latency_s: one per pair, in the order of `pairs`: nominal bandwidth, one-way latency.
    dynamics: the regimes of each link; its factors multiply the bandwidth.
    restart_s: what stopping a job and starting it elsewhere takes, the moved bytes not counted.
    local_steps: the H a spanning job may choose from; (1,) is synchronous only.
    """

    nodes: tuple[int, ...]
    bandwidth_bytes_per_s: tuple[float, ...]
    latency_s: tuple[float, ...]
    dynamics: Regimes
    restart_s: float = 120.0
    local_steps: tuple[int, ...] = (1, 8, 32, 128)
    pairs: tuple[tuple[int, int], ...] = field(init=False)
    links: tuple[tuple[int, ...], ...] = field(init=False)
    forecast: tuple[tuple[float, ...], ...] = field(init=False)
    stay: tuple[float, ...] = field(init=False)
    _lines: tuple[tuple[float, float], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        count = len(self.nodes)
        pairs = tuple(combinations(range(count), 2))
        assert len(self.bandwidth_bytes_per_s) == len(self.latency_s) == len(pairs)
        links = [[-1] * count for _ in range(count)]
        for i, (a, b) in enumerate(pairs):
            links[a][b] = links[b][a] = i
        factors = np.asarray(self.dynamics.factors)
        ahead = [self.dynamics.transition(horizon * STEP_S) @ factors for horizon in HORIZONS]
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "links", tuple(map(tuple, links)))
        object.__setattr__(self, "forecast", tuple(tuple(map(float, row)) for row in ahead))
        object.__setattr__(self, "stay", tuple(map(float, np.diag(self.dynamics.transition(STEP_S)))))
        object.__setattr__(self, "_lines", tuple(_line(steps) for steps in self.local_steps))

    @classmethod
    def alike(
        cls, domains: int, nodes: int, *, gbps: float, latency_s: float, dynamics: Regimes, **more: object
    ) -> Self:
        """Return domains of one size, every pair joined by a like link."""
        count = domains * (domains - 1) // 2
        return cls((nodes,) * domains, (gbps * 1e9 / 8,) * count, (latency_s,) * count, dynamics, **more)  # type: ignore[arg-type]

    def between(self, domains: Sequence[int]) -> tuple[int, ...]:
        """Return the links a job on these domains uses."""
        return tuple(self.links[a][b] for a, b in combinations(domains, 2))

    def bandwidth_now(self, regimes: Sequence[int]) -> tuple[float, ...]:
        """Return the bandwidth of each link in these regimes [bytes/s]."""
        return tuple(
            nominal * self.forecast[0][regime]
            for nominal, regime in zip(self.bandwidth_bytes_per_s, regimes, strict=True)
        )

    def speed(
        self, job: QueuedJob, links: Sequence[int], *, bandwidth_bytes_per_s: Lookup[float], sharing: Lookup[int]
    ) -> float:
        """Return the useful node-seconds a node gives per second, 1 inside one domain.

        The job sums its gradients around a ring, every H steps, at the H that is best now: 1 / (eta(H) + exposed
        sum). `sharing` counts the jobs on each link, this one included; each has an equal part, whatever it
        sends: sums may coincide, so this never promises too much.
        """
        if not links:
            return 1.0
        slowest = min(bandwidth_bytes_per_s[i] / sharing[i] for i in links)
        if slowest <= 0:
            return 0.0
        latency_s = max(self.latency_s[i] for i in links)
        members = 2 if len(links) == 1 else 3
        sum_s = ring_s(job.gradient_bytes, members=members, bandwidth_bytes_per_s=slowest, latency_s=latency_s)
        exposed = float(sum_s) / job.step_s
        return 1 / min(base + slope * exposed for base, slope in self._lines)

    def switch_s(
        self,
        job: QueuedJob,
        source: Iterable[int],
        target: Iterable[int],
        *,
        bandwidth_bytes_per_s: Lookup[float],
        sharing: Lookup[int],
    ) -> float:
        """Return what moving a job costs it: the restart, and its checkpoint to domains that hold no copy."""
        here, moved_s = set(source), 0.0
        for domain in set(target) - here:
            shares = [
                bandwidth_bytes_per_s[i] / (sharing[i] + 1) for i in (self.links[domain][other] for other in here)
            ]
            fastest = max(shares)
            moved_s = max(moved_s, CHECKPOINT * job.gradient_bytes / fastest if fastest > 0 else np.inf)
        return self.restart_s + moved_s


@lru_cache
def _line(local_steps: int) -> tuple[float, float]:
    """Return DiLoCo's step as a + b x, x the time of a sum; both in local steps."""
    base = float(diloco_s(1.0, 0.0, local_steps=local_steps))
    return base, float(diloco_s(1.0, 1.0, local_steps=local_steps)) - base
