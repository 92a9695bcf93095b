"""The instances every KPI is measured on, fixed before anything is measured.

Seeds 900,000 to 979,999 belong to the KPIs. Training and its evaluation draw from streams that carry a key beside
the seed (`learning/curriculum.stream`), and its fleets have other sizes, devices and links
(`learning/worlds/instance.py`): no policy has seen one of these.
All fleets are `fleet/synthetic.random_fleet` of one kind of accelerator (seed 000 assumes like devices); all
jobs are bundled ones, with and without local steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import numpy as np

from strata.fleet.catalogue import accelerator
from strata.fleet.fleet import Fleet
from strata.fleet.synthetic import random_fleet
from strata.simulate.compute import FLAT_EFFICIENCY, peak_flops
from strata.training.plan.exact.problem import Problem
from strata.workload.job import TrainingJob
from strata.workload.schema import BUNDLED_JOBS, load_job

CARD: Final = "A100-SXM4-80GB"
REGION_LATENCY_S: Final = 9e-3
"""Sites closer than this (1,000 km of fibre and equipment) share a region, for schedulers that know regions."""

LOCAL_STEPS: Final = (8, 32, 128)
JOBS: Final = (
    ("llama-3.1-8b", ()),
    ("llama-3.1-8b", LOCAL_STEPS),
    ("llama-3.1-70b", ()),
    ("llama-3.1-70b", LOCAL_STEPS),
)
"""Dealt out in turn: half of all instances are synchronous only."""


@dataclass(frozen=True, slots=True)
class Series:
    """One pre-registered row of instances: seeds first_seed, first_seed + 1, ..., domains dealt out in turn."""

    first_seed: int
    domains: tuple[int, ...]
    devices: int
    full: int
    quick: int

    def draw(self, *, quick: bool) -> list[PlanningCase]:
        """Return the instances of a quick or a full run; the quick ones are the first of the full ones."""
        return [self.at(index) for index in range(self.quick if quick else self.full)]

    def at(self, index: int) -> PlanningCase:
        """Return one instance."""
        # Domains turn slower than jobs, so that every number of domains meets every job.
        return self._drawn(self.domains[(index // len(JOBS) + index) % len(self.domains)], index)

    def with_domains(self, count: int, index: int) -> PlanningCase:
        """Return one instance of a given number of domains, one of those of the series."""
        return self._drawn(count, 1000 * self.domains.index(count) + index)

    def _drawn(self, count: int, index: int) -> PlanningCase:
        seed = self.first_seed + index
        fleet = with_regions(
            random_fleet(count, (accelerator(CARD),), np.random.default_rng(seed), devices=self.devices)
        )
        return PlanningCase(seed, fleet, job(index))


@dataclass(frozen=True, eq=False)
class PlanningCase:
    """A fleet and a job to be planned on it; each `problem` is made afresh, so that no cache helps."""

    seed: int
    fleet: Fleet
    job: TrainingJob

    def problem(self) -> Problem:
        """Return the planning problem, nothing computed yet."""
        return Problem.of(self.fleet, self.job)

    @property
    def is_sync_only(self) -> bool:
        """Whether gradients cross domains at every step."""
        return not self.job.local_steps


PLANS: Final = Series(900_000, (3, 4, 5, 6, 7, 8), devices=64, full=24, quick=6)
FRONTS: Final = Series(910_000, (7, 8, 5, 6), devices=32, full=24, quick=4)
LATENCY: Final = Series(920_000, (2, 4, 8, 10, 16, 32), devices=64, full=0, quick=0)
NETWORK: Final = Series(930_000, (3, 4, 5, 6), devices=64, full=8, quick=2)
COORDINATION: Final = Series(970_000, (4, 6, 8, 10), devices=64, full=8, quick=2)
LOAD: Final = Series(940_000, (3, 4, 5, 6), devices=64, full=8, quick=2)
QUEUES_SEED: Final = 950_000
SITES_SEED: Final = 960_000


def job(index: int) -> TrainingJob:
    """Return the job of an instance, by its position."""
    return _bundled(*JOBS[index % len(JOBS)])


@cache
def _bundled(name: str, local_steps: tuple[int, ...]) -> TrainingJob:
    return replace(load_job(BUNDLED_JOBS / f"{name}.yaml"), local_steps=local_steps, home=None)


def with_regions(fleet: Fleet) -> Fleet:
    """Return the fleet with a region for every group of sites that all lie close to its first."""
    regions: dict[str, str] = {}
    for domain in fleet.domains:
        close = [
            head
            for head in dict.fromkeys(regions.values())
            if fleet.links[head, domain.name].latency_s <= REGION_LATENCY_S
        ]
        regions[domain.name] = close[0] if close else domain.name
    return replace(fleet, domains=tuple(replace(d, region=regions[d.name]) for d in fleet.domains))


def crossover(problem: Problem) -> float:
    """Return M x / compute: time one link takes for a batch's activations / compute of a step on all devices."""
    link_s = np.median(
        [
            link.serialisation_s(problem.message_bytes(1)) * problem.job.global_batch
            for link in problem.fleet.links.values()
        ]
    )
    return float(link_s / _compute_s(problem))


def at_crossover(instance: PlanningCase, ratio: float) -> PlanningCase:
    """Return the instance with all bandwidths changed by one factor, so that `crossover` is `ratio`."""
    factor = crossover(instance.problem()) / ratio
    links = [
        replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
        for link in instance.fleet.links.values()
    ]
    return replace(instance, fleet=instance.fleet.with_links(links))


def _compute_s(problem: Problem) -> float:
    job, domains = problem.job, problem.fleet.domains
    flops = 3 * float(job.layers.forward_flops.sum()) * job.global_batch
    speed = sum(domain.num_devices * (peak_flops(domain, job) or 0.0) for domain in domains)
    return flops / (speed * (job.flops_efficiency or FLAT_EFFICIENCY))
