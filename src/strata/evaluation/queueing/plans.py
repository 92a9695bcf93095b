"""What the jobs of a trace may run: data parallel over their nodes, in one domain or shared by two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Final

from strata.control.candidates import Candidates
from strata.control.core import Planner
from strata.fleet.catalogue import accelerator
from strata.fleet.fleet import Domain, Fleet, Link
from strata.workload.job import TrainingJob
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from strata.workload.schema import BUNDLED_JOBS, load_job

NODE_DEVICES: Final = 8
LOCAL_STEPS: Final = 32
"""Steps between two sums across domains, where a job is shared by two."""

CARD: Final = "A100-SXM4-80GB"


def regular_fleet(count: int = 4, nodes: int = 32, *, gbps: float = 10.0, latency_s: float = 0.015) -> Fleet:
    """Return like domains, each pair by 10 Gbit/s and 15 ms, nodes by 8 x 200 Gbit/s: assumed."""
    names = [f"domain{number}" for number in range(count)]
    domains = tuple(
        Domain(name, accelerator(CARD), nodes * NODE_DEVICES, NODE_DEVICES, 300e9, 2e-6, 200e9, 5e-6)
        for name in names
    )
    links = {(a, b): Link(a, b, gbps * 1e9 / 8, latency_s) for a in names for b in names if a != b}
    return Fleet("queues", domains, links)


@cache
def training() -> TrainingJob:
    """Return the model that every job trains, with local steps between domains."""
    return replace(load_job(BUNDLED_JOBS / "llama-3.1-8b.yaml"), local_steps=(LOCAL_STEPS,), home=None)


@cache
def kind(nodes: int, home: int) -> TrainingJob:
    """Return the training of a job of some nodes, told from others by its name."""
    return replace(training(), name=f"nodes-{nodes}-home-{home}")


def shape_of(job: TrainingJob) -> tuple[int, int]:
    """Return nodes and home of what `kind` made."""
    _, nodes, _, home = job.name.split("-")
    return int(nodes), int(home)


def planner(*, spans: bool = True, at_home: bool = False) -> Planner:
    """Return a planner of such jobs. spans: pairs of domains too. at_home: the job's own domain alone."""
    made: dict[tuple[int, int], Candidates] = {}

    def plan(fleet: Fleet, job: TrainingJob) -> Candidates:
        nodes, home = shape_of(job)
        key = (nodes, home if at_home else -1)
        if key not in made:
            names = [domain.name for domain in fleet.domains]
            plans = [_over(job, {name: nodes}) for name in (names[home : home + 1] if at_home else names)]
            if spans and nodes > 1:
                plans += [_over(job, split) for split in _splits(names, nodes)]
            made[key] = Candidates(fleet, job, plans)
        return made[key]

    return plan


def _splits(names: Sequence[str], nodes: int) -> list[dict[str, int]]:
    """Return halves and quarters in pairs of domains, each way round."""
    parts = dict.fromkeys((nodes // 2, nodes - nodes // 2, max(1, nodes // 4), nodes - max(1, nodes // 4)))
    return [{a: part, b: nodes - part} for a, b in combinations(names, 2) for part in parts]


def _over(job: TrainingJob, nodes: dict[str, int]) -> TrainingPlan:
    total, layers = sum(nodes.values()), len(job.layers)
    each = -(-job.global_batch // total)
    pipelines = tuple(
        Pipeline((Stage(name, 0, layers, NODE_DEVICES),), count, each) for name, count in nodes.items()
    )
    steps = LOCAL_STEPS if len(nodes) > 1 else 1
    return TrainingPlan(pipelines, 1, local_steps=steps).with_samples(job.global_batch)
