"""The policy's plans beside the exact optimum and every baseline, instance by instance: what three rows share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from strata.evaluation.kpi.instances import PLANS, PlanningCase
from strata.evaluation.kpi.study import Study
from strata.training.plan.baselines import BASELINES
from strata.training.plan.baselines.context import best, evaluate
from strata.training.plan.baselines.uniform_rules import data_parallel, equal_share
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.planner import plan_training

SYNC_DP: Final = "uniform_sync_data_parallel"
NAMED: Final = (
    "best_single_domain", "equal_gpus_one_domain", "uniform_split", "home_domain", "mast_like", "sailor_like",
    "latency_blind",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Compared:
    """ours: the policy's plan when asked for time alone; front: its plans under 64 preferences. untrained,
    untrained_front: those of the policy that has learned nothing.

    others: by name, None where the rule finds no legal plan. optimum: the exact planner's.
    """

    instance: PlanningCase
    ours: Evaluated
    front: tuple[Evaluated, ...]
    untrained: Evaluated
    untrained_front: tuple[Evaluated, ...]
    optimum: Evaluated
    others: Mapping[str, Evaluated | None]

    def step_s(self, name: str) -> float | None:
        """Return the step time of a baseline, None without a plan."""
        other = self.others[name]
        return None if other is None else other.report.step_time_s


def compare_all(study: Study) -> Iterator[Compared]:
    """Compare instance by instance; those on which no plan fits at all are left out."""
    instances = PLANS.draw(quick=study.quick)
    for done, instance in enumerate(instances, 1):
        case = compare(study, instance)
        study.advance(done / len(instances))
        if case is not None:
            yield case


def compare(study: Study, instance: PlanningCase) -> Compared | None:
    """Return everything about one instance, None where no plan fits."""
    problem = instance.problem()
    items, untrained = study.candidates(problem), study.untrained
    fronts = [tuple(each.front(problem, items)) for each in (study, untrained)]
    ours, unlearned = study.decide(problem), untrained.decide(problem)
    answer = plan_training(instance.fleet, instance.job, clock=study.clock, rank=0)
    if ours is None or unlearned is None or answer.best is None:
        return None
    context = study.context(num_devices=ours.plan.num_devices, seed=instance.seed)
    others = {name: BASELINES[name](problem, context) for name in NAMED}
    others[SYNC_DP] = uniform_data_parallel(study, problem)
    return Compared(instance, ours, fronts[0], unlearned, fronts[1], answer.best, others)


def uniform_data_parallel(study: Study, problem: Problem) -> Evaluated | None:
    """Return the fastest synchronous data-parallel plan that gives every domain the same share."""
    problem = problem.evenly_recomputed
    part = equal_share(problem)
    plans = [data_parallel(part, setting) for setting in problem.configs]
    return best(evaluate(problem, study.context(), [plan for plan in plans if plan is not None]))
