"""Two actions of the inter-domain agent side by side: ratios between domains, and a choice among candidate plans.

Every fleet is drawn from a seed of its own that training never uses. All answers are step times of the one cost
model, on links as the fleet says, no plan in use. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch

from strata.arrays import Floats
from strata.clock import Clock
from strata.evaluation.allocation_heads.allocation import WORST_REWARD, Allocator
from strata.evaluation.allocation_heads.dirichlet import DirichletHead
from strata.evaluation.allocation_heads.dirichlet_training import UpdateProgress, Yard, decide, learn
from strata.fleet.catalogue import accelerator
from strata.fleet.fleet import Fleet
from strata.fleet.synthetic import random_fleet
from strata.training.hi_ppo import global_agent
from strata.training.hi_ppo.policy import HiPpoPolicy
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.objective import Scales
from strata.training.plan.planner import plan_training, problem_of
from strata.training.plan.reference import best_single
from strata.workload.job import Objective, TrainingJob
from strata.workload.plan import TrainingPlan

CARD: Final = "A100-SXM4-80GB"
SIZES: Final = (16, 32, 64)
"""Devices of the largest site of a fleet, see `random_fleet`."""

SITES: Final = 12
"""Sites of a fleet that training draws its domains from."""

MOST_DOMAINS: Final = 6


@dataclass(frozen=True, slots=True)
class HeadCase:
    """A fleet and a job that training never saw."""

    fleet: Fleet
    job: TrainingJob


@dataclass(frozen=True, slots=True)
class HeadOutcome:
    """What each head made of one case: step times (inf: no plan) and times to decide, by head.

    baseline_s: the best single domain's step. kind: of the exact plan; is_subset: it leaves domains out.
    """

    baseline_s: float
    step_s: Mapping[str, float]
    decision_s: Mapping[str, float]
    kind: str
    is_subset: bool


@dataclass(frozen=True, slots=True)
class HeadRow:
    """One head over all cases. An answer without a plan counts as the worst reward: twice the baseline's step.

    regret: T / T_exact - 1. r_eff: the seeds' (T_base - T) / T_base. optimal: the share within 1 % of exact.
    """

    regret_mean: float
    regret_p95: float
    r_eff_mean: float
    optimal: float
    no_plan: int
    decision_p50_s: float
    decision_p99_s: float


def train(
    jobs: Sequence[TrainingJob], *, seconds: float, seed: int, clock: Clock, seen: Callable[[UpdateProgress], None]
) -> tuple[DirichletHead, DirichletHead]:
    """Return an untrained head and one trained for so many seconds, its fleets' building included."""
    deadline = clock() + seconds
    rng = np.random.default_rng([1, seed])
    cards = (accelerator(CARD),)
    yards = [
        Yard(problem_of(random_fleet(SITES, cards, rng, devices=size), _for_time(job)), MOST_DOMAINS)
        for job in jobs
        for size in SIZES
    ]

    def keep_on(progress: UpdateProgress) -> bool:
        seen(progress)
        return clock() < deadline

    torch.manual_seed(seed)
    return DirichletHead(), learn(yards, rng=rng, keep_on=keep_on)


def cases(jobs: Sequence[TrainingJob], count: int) -> Iterator[HeadCase]:
    """Yield random fleets of 2 to MOST_DOMAINS domains with each job in turn."""
    for number in range(count):
        rng = np.random.default_rng([2, number])
        domains, devices = int(rng.integers(2, MOST_DOMAINS + 1)), int(rng.choice(SIZES))
        fleet = random_fleet(domains, (accelerator(CARD),), rng, devices=devices)
        yield HeadCase(fleet, _for_time(jobs[number % len(jobs)]))


def compare(
    case: HeadCase, heads: Mapping[str, DirichletHead], *, policy: HiPpoPolicy, clock: Clock
) -> HeadOutcome | None:
    """Return what all heads make of a case; None where no domain alone can run the job, so that R_eff has no base.

    Each begins with a problem of its own: nothing one has built helps another. `exact_ratios` are those of the
    exact plan, told, not found: what is lost there is lost by saying it in ratios.
    """
    single = best_single(problem_of(case.fleet, case.job), Scales(), clock=clock, deadline=clock() + 60).ranked
    if not single:
        return None
    step_s, decision_s = {}, {}

    def ask(name: str, answer: Callable[[Problem], Evaluated | None]) -> Evaluated | None:
        started = clock()
        answered = answer(problem_of(case.fleet, case.job))
        decision_s[name] = clock() - started
        step_s[name] = answered.report.step_time_s if answered else np.inf
        return answered

    for name, head in heads.items():
        ask(name, lambda problem, head=head: _follow(problem, decide(head, problem)))  # type: ignore[misc]
    ask("proportional", lambda problem: _follow(problem, _devices(problem)))
    ask("scorer", lambda problem: global_agent.decide(problem, policy=policy, clock=clock).best)
    exact = ask("exact", lambda _: plan_training(case.fleet, case.job, clock=clock).best)
    assert exact is not None, "a domain alone can run the job"
    ask("exact_ratios", lambda problem: _follow(problem, ratios_of(problem, exact.plan)))
    is_subset = len(exact.plan.domains) < len(case.fleet.domains)
    return HeadOutcome(single[0].report.step_time_s, step_s, decision_s, exact.plan.kind, is_subset)


def row(outcomes: Sequence[HeadOutcome], head: str) -> HeadRow:
    """Return the figures of one head."""
    base = np.array([item.baseline_s for item in outcomes])
    step = np.array([item.step_s[head] for item in outcomes])
    none = np.isinf(step)
    step = np.where(none, (1 - WORST_REWARD) * base, step)
    regret = step / np.array([item.step_s["exact"] for item in outcomes]) - 1
    took = np.array([item.decision_s[head] for item in outcomes])
    return HeadRow(
        regret_mean=float(regret.mean()),
        regret_p95=float(np.percentile(regret, 95)),
        r_eff_mean=float((1 - step / base).mean()),
        optimal=float((regret < 0.01).mean()),
        no_plan=int(none.sum()),
        decision_p50_s=float(np.percentile(took, 50)),
        decision_p99_s=float(np.percentile(took, 99)),
    )


def ratios_of(problem: Problem, plan: TrainingPlan) -> Floats:
    """Return the shares [K] of a plan: of the layers where it is one pipeline, else of the batch."""
    shares = np.zeros(len(problem.fleet.domains))
    for pipeline in plan.pipelines:
        samples = pipeline.replicas * pipeline.microbatches
        for stage in pipeline.stages:
            # A domain that holds part of a copy is given that part of the copy's samples.
            shares[problem.fleet.index(stage.domain)] += stage.num_layers * samples
    return np.asarray(shares / shares.sum())


def _follow(problem: Problem, ratios: Floats) -> Evaluated | None:
    return Allocator(problem).allocate(ratios[None])[0].best


def _devices(problem: Problem) -> Floats:
    return np.array([domain.num_devices for domain in problem.fleet.domains], dtype=float)


def _for_time(job: TrainingJob) -> TrainingJob:
    return replace(job, objective=Objective.TIME)
