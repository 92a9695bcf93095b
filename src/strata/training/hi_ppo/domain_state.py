"""One domain as its local agent sees it: every device's speed, memory and health, and how long such states last.

A device is good, slow by one of some factors, or lost: a Markov chain in continuous time, each device its own.
Nothing public gives these times for single devices, so the chain below is assumed; a measured one is passed in
its place. D devices; node n holds devices [n * devices_per_node, (n + 1) * devices_per_node).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
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

    @cached_property
    def is_lost(self) -> Bools:
        """[D]: whether a device does not answer."""
        return np.asarray(self.health == len(self.chain.factors) - 1)


def nominal_state(domain: Domain, *, interval_s: float = 30.0) -> DomainState:
    """Return the state with every device good and free."""
    count = domain.num_devices
    memory = np.full(count, float(domain.accelerator.memory_bytes))
    return DomainState(domain, np.zeros(count, dtype=np.int64), np.zeros(count), memory, interval_s, DEVICE_HEALTH)


def random_state(domain: Domain, rng: np.random.Generator, *, interval_s: float = 30.0) -> DomainState:
    """Draw the state of a domain in use: health from the stationary chain, every fifth node partly taken.

    A taken device has no memory left; background load slows the devices of one node in ten by up to 30 %.
    """
    domain_state = nominal_state(domain, interval_s=interval_s)
    count, per_node = domain.num_devices, domain.devices_per_node
    taken_in_node = np.where(rng.random(count) < 0.2, rng.integers(1, max(2, per_node // 2 + 1), count), 0)
    shuffled = np.lexsort((rng.random(count), domain_state.node))
    rank = np.empty(count, dtype=np.int64)
    rank[shuffled] = np.arange(count) % per_node
    # A node's number is the one drawn at its first device.
    taken = rank < taken_in_node[domain_state.node * per_node]
    return replace(
        domain_state,
        health=np.asarray(domain_state.chain.reset(rng, (count,))),
        load=np.where(taken, 1.0, _background(domain_state, rng)),
        free_memory_bytes=np.where(taken, 0.0, domain_state.free_memory_bytes),
    )


def advance(domain_state: DomainState, rng: np.random.Generator) -> DomainState:
    """Return the state one interval later. Taken devices stay taken; one node in a hundred changes its load."""
    health = domain_state.chain.step(domain_state.health, domain_state.interval_s, rng)
    changed = (rng.random(len(health)) < 0.01)[domain_state.node * domain_state.domain.devices_per_node]
    load = np.where(changed & (domain_state.load < 1), _background(domain_state, rng), domain_state.load)
    return replace(domain_state, health=health, load=load)


def _background(domain_state: DomainState, rng: np.random.Generator) -> Floats:
    count = len(domain_state.health)
    drawn = np.where(rng.random(count) < 0.1, rng.uniform(0, 0.3, count), 0.0)
    return np.asarray(drawn[domain_state.node * domain_state.domain.devices_per_node])
