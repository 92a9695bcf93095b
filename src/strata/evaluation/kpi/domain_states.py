"""States of domains in use, drawn, and what becomes of them: what the intra-domain rows are measured on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Domain
from strata.training.hi_ppo.domain_state import DomainState, nominal_state


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
