"""Random tables to train and test on: fleets, jobs, levels and chains of many kinds, none from a file.

Step times follow the closed forms of docs/cost-model.md on fleets of 3 to 5 domains: one domain alone,
synchronous data parallel, DiLoCo, and pipelines. Tables on which one plan is best in every state are drawn
again, for they teach nothing.
"""

from __future__ import annotations

from itertools import combinations
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.learning.tables.table import LinkChains, ReplanTable
from strata.simulate.collective import eta

MOST_STATES: Final = 4096
MOST_PLANS: Final = 16
LOCAL_STEPS: Final = (1, 8, 64)
LEAST_SPREAD: Final = 0.02
"""Best plan of each state over the best plan of all states, on average: below this nothing can be won."""


def random_table(rng: np.random.Generator, *, name: str = "random") -> ReplanTable:
    """Return a random table whose best plan depends on the state."""
    while True:
        table = _draw(rng, name)
        reward = table.reward
        if reward.max(axis=1).mean() > (1 + LEAST_SPREAD) * reward.mean(axis=0).max():
            return table


def _draw(rng: np.random.Generator, name: str) -> ReplanTable:
    domains = int(rng.choice([3, 4, 4, 4, 5]))
    pairs = list(combinations(range(domains), 2))
    chains = _chains(len(pairs), rng)
    devices = 8.0 * rng.integers(2, 17, size=domains)
    nominal = rng.uniform(1.0, 10.0, size=len(pairs)) if rng.random() < 0.7 else np.full(len(pairs), 5.0)
    levels = np.stack([chains.levels[link][chains.indices[:, link]] for link in range(len(pairs))], axis=1)
    # What the gradients of one step take over a link of nominal 5, over what the largest domain computes.
    weight = float(np.exp(rng.uniform(np.log(0.2), np.log(20.0))))
    latency = float(rng.uniform(0.0, 0.05))
    alone = 1.0 / devices
    local_steps = LOCAL_STEPS if rng.random() < 0.5 else (64,)
    names: list[tuple[int, ...]]
    names, times = [(int(devices.argmax()),)], [np.full(chains.num_states, alone.min())]
    for size in range(2, domains + 1):
        for group in combinations(range(domains), size):
            links = [pairs.index(pair) for pair in combinations(group, 2)]
            slow = 5.0 / (nominal[links] * levels[:, links])  # [S, links]
            compute, largest = 1.0 / devices[list(group)].sum(), alone.min()
            sum_s = largest * (weight * 2 * (1 - 1 / size) * slow.max(axis=1) + latency)
            for steps in local_steps:
                hidden = 0.3 * compute
                names.append(group)
                times.append(compute * float(eta(steps)) + np.maximum(0.0, sum_s - hidden) / steps)
            chain = np.sort(slow, axis=1)[:, : size - 1]  # the order uses the fastest links there are
            names.append(group)
            times.append(compute * 1.05 + np.maximum(0.0, weight / 4 * largest * chain.max(axis=1) - compute))
    reward = alone.min() / np.stack(times, axis=1)
    kept = _useful(reward, rng)
    plan_links = tuple(
        tuple(pairs.index(pair) for pair in combinations(names[plan], 2)) if len(names[plan]) > 1 else ()
        for plan in kept
    )
    reward = reward[:, kept]
    switch = float(rng.choice([np.exp(rng.uniform(np.log(0.02), np.log(0.7))), rng.uniform(0.1, 0.6)]))
    start = int(reward.mean(axis=0).argmax())
    return ReplanTable(name, reward, chains, switch, start, plan_links)


def _useful(reward: Floats, rng: np.random.Generator) -> list[int]:
    """Return the first plan and up to MOST_PLANS - 1 that are close to the best somewhere, often first."""
    near = (reward >= rng.uniform(0.9, 1.0) * reward.max(axis=1, keepdims=True)).mean(axis=0)
    most = int(rng.integers(4, MOST_PLANS))
    order = [int(i) for i in np.argsort(-near, kind="stable") if near[i] > 0 and i != 0]
    return [0, *order[:most]]


def _chains(links: int, rng: np.random.Generator) -> LinkChains:
    most = 2 if links > 6 else int(rng.choice([2, 3, 3, 3, 4])) if links > 3 else int(rng.choice([2, 3, 4, 5]))
    kind = rng.choice(["sticky", "mixed", "free", "precursor", "cycle"], p=[0.25, 0.25, 0.2, 0.2, 0.1])
    if kind == "precursor" and most < 3:
        kind = "mixed"
    stay = float(rng.uniform(0.35, 0.98))
    ladder = _levels(most, rng)
    shared = rng.random() < 0.6
    levels, transitions = [], []
    extremes = rng.uniform(0.4, 0.7), rng.uniform(0.85, 0.985)
    for _ in range(links):
        factors = ladder if shared else _levels(most, rng)
        if kind == "sticky":
            chain = _even(most, stay)
        elif kind == "mixed":
            chain = _even(
                most, float(rng.choice(extremes)) if rng.random() < 0.7 else float(rng.uniform(0.4, 0.98))
            )
        elif kind == "free":
            off = rng.dirichlet(np.ones(most), size=most)
            hold = rng.uniform(0.3, 0.97, size=most)
            chain = np.diag(hold) + (1 - hold)[:, None] * off
        elif kind == "precursor":
            # The second level is announced trouble: the same bandwidth, then the lowest level.
            factors = np.array([1.0, 0.999, float(rng.uniform(0.05, 0.5))])
            quiet, warn, bad = rng.uniform(0.02, 0.2), rng.uniform(0.3, 0.9), rng.uniform(0.05, 0.5)
            chain = np.array([[1 - quiet, quiet, 0.0], [0.0, 1 - warn, warn], [bad, 0.0, 1 - bad]])
        else:
            move = rng.uniform(0.05, 0.4)
            chain = (1 - move) * np.eye(most) + move * np.roll(np.eye(most), 1, axis=1)
        levels.append(factors)
        transitions.append(chain)
    return LinkChains(tuple(levels), tuple(transitions))


def _levels(count: int, rng: np.random.Generator) -> Floats:
    if count == 3 and rng.random() < 0.3:
        return np.array([1.0, 0.5, 0.15])
    lower = np.sort(np.exp(rng.uniform(np.log(0.05), np.log(0.9), size=count - 1)))[::-1]
    return np.concatenate([[1.0], lower])


def _even(count: int, stay: float) -> Floats:
    """Stay with this chance, else any other level alike."""
    stay = max(stay, 1.0 / count)
    return np.full((count, count), (1 - stay) / (count - 1)) + (stay - (1 - stay) / (count - 1)) * np.eye(count)
