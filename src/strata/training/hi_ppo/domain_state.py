"""One domain as its local agent sees it: every device's speed, memory and health, and how long such states last.

A device is good, slow by one of some factors, or lost: a Markov chain in continuous time, each device its own.
Nothing public gives these times for single devices, so the chain below is assumed; a measured one is passed in
its place. D devices; node n holds devices [n * devices_per_node, (n + 1) * devices_per_node).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Floats, Ints
from strata.fleet.dynamics.regimes import Regimes
from strata.fleet.fleet import Domain

GOOD: Final = 0

DEVICE_HEALTH: Final = Regimes(
    dwell_s=(8 * 3600.0, 600.0, 600.0, 600.0, 600.0, 3600.0),
    factors=(1.0, 0.9, 0.7, 0.5, 0.3, 0.0),
    next=(
        (0.0, 0.24, 0.24, 0.24, 0.24, 0.04),
        (0.95, 0.0, 0.0, 0.0, 0.0, 0.05),
        (0.95, 0.0, 0.0, 0.0, 0.0, 0.05),
        (0.90, 0.0, 0.0, 0.0, 0.0, 0.10),
        (0.90, 0.0, 0.0, 0.0, 0.0, 0.10),
        (1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    ),
)
"""Assumed: a device slows down once in 8 h, for 10 min, and 1 change in 25 loses it, for an hour; a slow one is
lost more often. About 2 % of the devices are slow and 1 % lost at any time, more than operators report."""


@dataclass(frozen=True, eq=False)
class DomainState:
    """The devices of a domain at one moment.

    health: [D] index into `chain.factors`, best first; 0 is good, the last one lost.
    load: [D] share of each device that other work takes. free_memory_bytes: [D] what other work leaves.
    interval_s: time from one local decision to the next, the step of every horizon.
    """

    domain: Domain
    health: Ints
    load: Floats
    free_memory_bytes: Floats
    interval_s: float = 30.0
    chain: Regimes = DEVICE_HEALTH

    def __post_init__(self) -> None:
        count = (self.domain.num_devices,)
        assert self.health.shape == self.load.shape == self.free_memory_bytes.shape == count

    @cached_property
    def speed(self) -> Floats:
        """[D]: share of a device's nominal speed that is there for the job, 0 where it is lost or taken."""
        return np.asarray(self.chain.factor(self.health) * (1 - self.load))

    @cached_property
    def node(self) -> Ints:
        """[D]: the node of each device."""
        return np.arange(self.domain.num_devices) // self.domain.devices_per_node


def nominal_state(domain: Domain, *, interval_s: float = 30.0) -> DomainState:
    """Return the state with every device good and free."""
    count = domain.num_devices
    memory = np.full(count, float(domain.accelerator.memory_bytes))
    return DomainState(domain, np.zeros(count, dtype=np.int64), np.zeros(count), memory, interval_s, DEVICE_HEALTH)
