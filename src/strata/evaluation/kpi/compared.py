"""The policy's plans beside every baseline, instance by instance: what two rows share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from strata.evaluation.kpi.instances import PLANS, PlanningCase
from strata.evaluation.kpi.study import SEARCH_LIMIT_S, Study
from strata.training.plan.baselines import BASELINES
from strata.training.plan.baselines.context import Context, Unfinished, best, evaluate, exact
from strata.training.plan.baselines.uniform_rules import data_parallel, equal_share
from strata.training.plan.exact.branches import CROSSING
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated

SYNC_DP: Final = "uniform_sync_data_parallel"
SINGLE: Final = "best_single_domain"
SAME: Final = 1e-6
NAMED: Final = (
    "best_single_domain", "equal_gpus_one_domain", "uniform_split", "home_domain", "mast_like", "sailor_like",
    "latency_blind",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Compared:
    """ours: the policy's plan when asked for time alone; front: its plans under 64 preferences. untrained,
    untrained_front: those of the policy that has learned nothing.

    others: by name, None where the rule finds no legal plan or its search did not end within SEARCH_LIMIT_S, which
    `unfinished` names. is_single_best: whether no plan is faster than the best single domain's by SAME; None: not
    known within that limit, or there is no such plan.
    """

    instance: PlanningCase
    ours: Evaluated
    front: tuple[Evaluated, ...]
    untrained: Evaluated
    untrained_front: tuple[Evaluated, ...]
    others: Mapping[str, Evaluated | None]
    unfinished: tuple[str, ...] = ()
    is_single_best: bool | None = None

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
    if ours is None or unlearned is None:
        return None
    context = study.context(num_devices=ours.plan.num_devices, seed=instance.seed)
    others, unfinished = dict[str, Evaluated | None](), list[str]()
    for name in NAMED:
        try:
            others[name] = BASELINES[name](problem, _begun_now(study, context))
        except Unfinished:
            others[name] = None
            unfinished.append(name)
    others[SYNC_DP] = uniform_data_parallel(study, problem)
    plans = (ours, unlearned, *fronts[0], *others.values())
    is_single_best = _is_best(problem, _begun_now(study, context), others[SINGLE], plans)
    return Compared(
        instance, ours, fronts[0], unlearned, fronts[1], others, tuple(unfinished), is_single_best
    )  # fmt: skip


def _begun_now(study: Study, context: Context) -> Context:
    """Return the context with the limit of a search that begins now."""
    return replace(context, deadline=study.clock() + SEARCH_LIMIT_S)


def _is_best(
    problem: Problem, context: Context, single: Evaluated | None, plans: Iterable[Evaluated | None]
) -> bool | None:
    """Return whether no plan is faster than that in a single domain: of those known, or else of all."""
    if single is None:
        return None
    step_s = single.report.step_time_s
    if any(plan is not None and plan.report.step_time_s * (1 + SAME) < step_s for plan in plans):
        return False
    try:
        return exact(problem, context, range(len(problem.fleet.domains)), so_far=single, lots=CROSSING) is None
    except Unfinished:
        return None


def uniform_data_parallel(study: Study, problem: Problem) -> Evaluated | None:
    """Return the fastest synchronous data-parallel plan that gives every domain the same share."""
    problem = problem.evenly_recomputed
    part = equal_share(problem)
    plans = [data_parallel(part, setting) for setting in problem.configs]
    return best(evaluate(problem, study.context(), [plan for plan in plans if plan is not None]))
