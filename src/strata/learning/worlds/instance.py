"""Instances of the re-planning problem: a fleet, kinds of jobs, and for each kind the plans it may run.

A pool stacks instances into arrays, so that thousands of environments step at once. Option 0 of every kind is
"no plan: wait"; the others are chosen to be good in different states of the links, not only at nominal ones.

Letters: I instances, C kinds of job, R = I C rows (row = instance x C + kind), P options, K domains, Q pairs of
domains, l links an option uses at most. What an instance has less of is padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from strata.arrays import Bools, Floats
from strata.fleet.catalogue import accelerator
from strata.fleet.fleet import Fleet
from strata.fleet.synthetic import random_fleet
from strata.simulate.analytic import StepModel
from strata.training.plan.exact.branches import DomainSet
from strata.training.plan.exact.problem import Problem
from strata.training.plan.shortlist.selection import shortlist
from strata.training.replan.relocation import relocation_costs
from strata.training.replan.response import PlanResponse
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan
from strata.workload.schema import BUNDLED_JOBS, load_job

MOST_OPTIONS: Final = 32
STATES: Final = 128
"""Random states of the links under which candidate plans are ranked."""

LEVELS: Final = (1.0, 0.5, 0.15)

MIDDLE_SPEED: Final = 4.0
"""Links are so many times as fast as those of `random_fleet` (a leased 4 to 40 Gbps), a factor of 5 either way."""

CANDIDATES: Final = 48

MOST_LINKS: Final = 10
"""Plans that use more pairs of domains than this (direct sums between six or more) are left out: every option
takes the memory of the one that uses most."""

_CARDS: Final = ("A100-SXM4-80GB", "H100-SXM5-80GB")
_MODELS: Final = ("llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b")
_MIX: Final = (0.6, 0.25, 0.15)
_LOCAL_STEPS: Final[tuple[tuple[int, ...], ...]] = ((), (8,), (8, 32))


@dataclass(frozen=True, eq=False, slots=True)
class JobKind:
    """The plans of one kind of job.

    devices, memory        [P, K]  devices used, and the share of a domain's memory
    utilization, egress_usd  [P]   at nominal links, a step
    moved_s, moved_usd     [P, P]  what moving the weights from plan to plan takes, restart left out
    moves                  [P, P]  whether any layer changes its domain
    reference_s                    step of the best single domain at nominal links, or of the best plan if none
    changes                        share of states of the links in which another plan than the nominal best is best
    """

    plans: tuple[TrainingPlan, ...]
    response: PlanResponse
    devices: Floats
    memory: Floats
    utilization: Floats
    nominal_s: Floats
    egress_usd: Floats
    moved_s: Floats
    moved_usd: Floats
    moves: Bools
    reference_s: float
    changes: float


@dataclass(frozen=True, eq=False, slots=True)
class Instance:
    """A fleet and the kinds of jobs that arrive there."""

    fleet: Fleet
    kinds: tuple[JobKind, ...]


def random_instances(
    rng: np.random.Generator,
    *,
    domains: int,
    variants: int,
    shares: Sequence[float] = (0.25, 0.5, 1.0),
    options: int = MOST_OPTIONS,
) -> list[Instance]:
    """Return random instances on one set of sites, with links of different speed; none where a job fits nowhere.

    Candidate plans are searched once: each variant keeps those that are good on its own links.
    """
    cards = tuple(accelerator(name) for name in _CARDS)
    fleet = random_fleet(domains, cards, rng, devices=int(rng.choice((64, 128))))
    fleet = _faster(fleet, lambda: MIDDLE_SPEED)
    jobs, candidates = [], []
    for share in shares:
        steps = _LOCAL_STEPS[int(rng.integers(len(_LOCAL_STEPS)))]
        job = replace(load_job(BUNDLED_JOBS / f"{rng.choice(_MODELS, p=_MIX)}.yaml"), local_steps=steps)
        problem = Problem.of(_share(fleet, share), job)
        jobs.append(job)
        candidates.append([item.plan for item in shortlist(problem, most=CANDIDATES)])
    if not all(candidates):
        return []
    instances = []
    for _ in range(variants):
        wide = float(np.exp(rng.uniform(-1, 1) * np.log(5)))
        varied = _faster(fleet, lambda: wide * float(np.exp(rng.uniform(-0.4, 0.4))))  # noqa: B023
        kinds = [
            kind_of(varied, job, plans, rng, most=options - 1) for job, plans in zip(jobs, candidates, strict=True)
        ]
        instances.append(Instance(varied, tuple(kinds)))
    return instances


def kind_of(
    fleet: Fleet, job: TrainingJob, plans: Sequence[TrainingPlan], rng: np.random.Generator, *, most: int
) -> JobKind:
    """Return a job with up to `most` of these plans, those that are good in some state of the fleet's links."""
    model = StepModel(fleet, job)
    states = _states(rng, len(fleet.domains))
    response = PlanResponse.of(model, plans)
    links = [int(np.count_nonzero(row >= 0)) for row in response.pair]
    few = [i for i, count in enumerate(links) if count <= MOST_LINKS]
    picked = [few[i] for i in _diverse(response.only(few).step_s(states), [plans[i] for i in few], most)]
    # Those with most links first: pools work through slots of links as far as there are any.
    picked.sort(key=lambda i: -links[i])
    plans, response = [plans[i] for i in picked], response.only(picked)
    reports = model.reports(plans)
    times = response.step_s(states)
    nominal = np.array([report.step_time_s for report in reports])
    alone = [s for s, plan in zip(nominal, plans, strict=True) if plan.kind == "single"]
    count = [domain.num_devices for domain in fleet.domains]
    used = np.array([[plan.devices().get(d.name, 0) for d in fleet.domains] for plan in plans], dtype=float)
    held = np.zeros_like(used)
    for p, report in enumerate(reports):
        for stage in report.stages:
            k = fleet.index(stage.domain)
            size = stage.memory_bytes * stage.tensor_parallel * stage.replicas
            held[p, k] += size / (count[k] * fleet.domains[k].accelerator.memory_bytes)
    moved_s, moved_usd, moves = relocation_costs(fleet, job, plans)
    return JobKind(
        tuple(plans), response, used, held,
        np.array([report.utilization for report in reports]), nominal,
        np.array([report.egress_usd_per_step for report in reports]),
        moved_s, moved_usd, moves,
        reference_s=float(min(alone, default=nominal.min())),
        changes=float((times.argmin(axis=1) != nominal.argmin()).mean()),
    )  # fmt: skip


def _faster(fleet: Fleet, factor: Callable[[], float]) -> Fleet:
    """Return the fleet with links so many times as fast; each gets a factor of its own."""
    links = fleet.links.values()
    return fleet.with_links(replace(k, bandwidth_bytes_per_s=k.bandwidth_bytes_per_s * factor()) for k in links)


def _share(fleet: Fleet, share: float) -> Fleet:
    """Return the fleet with a share of each domain's nodes, at least one."""
    domains = tuple(
        replace(d, num_devices=max(1, round(d.num_nodes * share)) * d.devices_per_node) for d in fleet.domains
    )
    return replace(fleet, domains=domains)


def _states(rng: np.random.Generator, domains: int) -> Floats:
    """Return random factors of the pairs [states, Q]."""
    pairs = max(1, domains * (domains - 1) // 2)
    return np.asarray(rng.choice(LEVELS, size=(STATES, pairs), p=(0.5, 0.3, 0.2)))


def _diverse(times: Floats, plans: Sequence[TrainingPlan], most: int) -> list[int]:
    """Return up to `most` plans: those best in some state, the best of each domain set, then by mean rank.

    Of one kind on one set of domains at most two stay beside: the best over all states, and that of the fewest
    devices, which may fit where the other does not.
    """
    best = np.bincount(times.argmin(axis=1), minlength=len(plans))
    rank = times.argsort(axis=1).argsort(axis=1).mean(axis=0)
    first: dict[DomainSet, int] = {}
    least: dict[DomainSet, int] = {}
    for i in np.argsort(rank, kind="stable").tolist():
        key = (plans[i].kind, frozenset(plans[i].domains))
        first.setdefault(key, i)
        if key not in least or plans[i].num_devices < plans[least[key]].num_devices:
            least[key] = i
    alone = [i for key, i in first.items() if key[0] == "single"]
    wanted = dict.fromkeys(np.argsort(-best, kind="stable")[: int((best > 0).sum())].tolist())
    # A plan without links is what a job falls back to.
    wanted.update(dict.fromkeys(alone))
    wanted.update(dict.fromkeys(sorted(first.values(), key=lambda i: float(rank[i]))))
    wanted.update(dict.fromkeys(sorted(least.values(), key=lambda i: float(rank[i]))))
    return list(wanted)[:most]
