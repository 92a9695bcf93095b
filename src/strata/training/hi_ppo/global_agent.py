"""The inter-domain agent: which plan a job runs across domains, now that it runs some plan, or none yet.

observe: the fleet at nominal links, what the links are now and expected to become (`Outlook`), the plan in use.
decide: candidates of `shortlist`, evaluated exactly, scored by the policy, guarded. explain: `Explanation`.
Low frequency: the coordinator asks every N iterations, or on drastic change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from strata.arrays import Floats
from strata.clock import Clock
from strata.decision import Reason
from strata.simulate.report import StepReport
from strata.training.hi_ppo.explanation import Explanation, explain
from strata.training.hi_ppo.policy import HiPpoPolicy, safe_policy
from strata.training.plan import explain as words
from strata.training.plan.exact.pareto import vector
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.routes import efficient
from strata.training.plan.exact.splitting import sequences_fit
from strata.training.plan.objective import Scales, money, score
from strata.training.plan.reference import reference
from strata.training.plan.shortlist.layouts import layouts
from strata.training.plan.shortlist.selection import shortlist
from strata.training.replan.options import HORIZONS, Options, joined
from strata.training.replan.relocation import relocation_costs
from strata.training.replan.response import PlanResponse
from strata.workload.job import Objective, Recompute
from strata.workload.plan import TrainingPlan

CANDIDATES: Final = 128
"""Plans a decision is between: enough that the fastest is among them, few enough for half a second."""

REFERENCE_LIMIT_S: Final = 10.0
"""For the plan a reward is measured against: hundredths of a second where a single domain holds the job."""

INTERVAL_S: Final = 300.0
RESTART_S: Final = 60.0
"""Stopping, loading and warming up a job on other domains, the moving of weights aside (assumed)."""


@dataclass(frozen=True, eq=False, slots=True)
class Outlook:
    """What the links do: factors [5, Q] their share of nominal bandwidth now and expected at HORIZONS ahead,
    stay [Q] the chance of a pair's links to be in the same regime a step later. Q pairs of domains."""

    factors: Floats
    stay: Floats

    @classmethod
    def nominal(cls, num_domains: int) -> Self:
        """Links are what the fleet says, and stay so."""
        pairs = max(1, num_domains * (num_domains - 1) // 2)
        return cls(np.ones((len(HORIZONS), pairs)), np.ones(pairs))


@dataclass(frozen=True, slots=True)
class InUse:
    """The plan a job runs, and what leaving it costs: moved weights and a restart, in steps of `interval_s`."""

    plan: TrainingPlan
    interval_s: float = INTERVAL_S
    restart_s: float = RESTART_S


@dataclass(frozen=True, eq=False)
class GlobalDecision:
    """What the inter-domain agent answers: all candidates, and which one is taken (None where nothing fits)."""

    items: tuple[Evaluated, ...]
    pick: int | None
    ranked: tuple[Evaluated, ...]
    explanation: Explanation | None
    reasons: tuple[Reason, ...]
    elapsed_s: float
    scales: Scales

    @property
    def best(self) -> Evaluated | None:
        """The taken plan, evaluated at nominal links."""
        return None if self.pick is None else self.items[self.pick]


def decide(
    problem: Problem,
    *,
    policy: HiPpoPolicy,
    clock: Clock,
    in_use: InUse | None = None,
    outlook: Outlook | None = None,
    items: Sequence[Evaluated] | None = None,
    deadline: float = np.inf,
) -> GlobalDecision:
    """Return the policy's plan for the job's objective, guarded, with its explanation.

    `problem.fleet` holds nominal links. `items` are candidates made before (else those of `candidates_of`). What a
    reward is measured against is looked for until `deadline`, and no longer than REFERENCE_LIMIT_S. A plan in use
    whose domains are gone is left, and that is said; so is a fleet larger than the policy was tried on.
    """
    started = clock()
    notes = []
    is_time = problem.job.objective is Objective.TIME
    candidates = candidates_of(problem, is_time=is_time) if items is None else list(items)
    current = -1
    if in_use is not None:
        current, candidates = _with(problem, in_use.plan, candidates)
        if current < 0:
            gone = sorted(set(in_use.plan.domains) - {d.name for d in problem.fleet.domains})
            notes.append(Reason("plan-gone", "", {"domains": ", ".join(gone) or "of another size"}))
    if policy.most_domains and len(problem.fleet.domains) > policy.most_domains:
        data = {"domains": len(problem.fleet.domains), "most": policy.most_domains}
        notes.append(Reason("fleet-too-large", "", data))
        policy = safe_policy(notes[-1])
    scales = scales_of(candidates)
    if candidates and problem.job.objective in (Objective.REWARD, Objective.REWARD_EGRESS):
        known = reference(problem, clock=clock, deadline=min(deadline, clock() + REFERENCE_LIMIT_S))
        scales = known or replace(scales, is_estimate=True)
    if not candidates:
        return GlobalDecision((), None, (), None, tuple(notes), clock() - started, scales)
    options = options_of(problem, candidates, scales, current=current, in_use=in_use, outlook=outlook)
    picks, refusals = policy.decide(options)
    pick = int(picks[0])
    reasons = tuple(notes) if refusals[0] is None or refusals[0] in notes else (*notes, refusals[0])
    explanation = explain(policy, options, _names(candidates), pick=pick, reasons=reasons)
    worth = options.value[0, :, 0] if policy.session is None else policy.logits(options)[0]
    order = [pick, *(int(i) for i in np.argsort(-worth, kind="stable") if i != pick)]
    scored = tuple(
        replace(item, score=float(1 - value))
        for item, value in zip(candidates, options.value[0, :, 0], strict=True)
    )
    ranked = tuple(scored[i] for i in order)
    return GlobalDecision(scored, pick, ranked, explanation, reasons, clock() - started, scales)


def answers(
    problem: Problem, items: Sequence[Evaluated], weights: Floats, *, policy: HiPpoPolicy
) -> list[Evaluated]:
    """Return the policy's plan for each preference [B, 3] of (time, utilisation, money), repeated ones once."""
    scales = scales_of(items)
    parts = []
    for row in weights:
        job = replace(problem.job, objective=Objective.TCHEBYCHEFF, weights=(row[0], row[1], row[2]))
        parts.append(options_of(replace(problem, job=job), items, scales))
    picks = policy.choose(joined(parts, len(items)))
    return [items[i] for i in dict.fromkeys(picks.tolist())]


def options_of(
    problem: Problem,
    items: Sequence[Evaluated],
    scales: Scales,
    *,
    current: int = -1,
    in_use: InUse | None = None,
    outlook: Outlook | None = None,
) -> Options:
    """Return one decision between candidate plans under the job's objective."""
    reports = [item.report for item in items]
    nominal_s = np.array([report.step_time_s for report in reports])
    links = np.ones((1, len(items), 4))
    times = np.tile(nominal_s, (len(HORIZONS), 1))
    if outlook is not None:
        response = PlanResponse.of(problem.model, [item.plan for item in items])
        times = response.step_s(outlook.factors)
        links[0] = _link_features(response, outlook)
    value = np.stack([worth(problem, scales, reports, row / nominal_s) for row in times], axis=1)[None]
    share = np.zeros(len(items))
    if in_use is not None and current >= 0:
        share = _switch_share(problem, items, current, in_use)
    is_reached = ~np.isposinf(share)  # where no link can bring the weights a plan is no option
    cost = (np.where(is_reached, share, 0.0) * value[0, :, 0])[None]
    job = problem.job
    preference = {Objective.TIME: (1.0, 0.0, 0.0), Objective.COST: (0.0, 0.0, 1.0)}.get(job.objective, job.weights)
    return Options(
        value=value,
        cost=cost,
        links=links,
        current=np.array([current]),
        legal=is_reached[None],
        preference=np.array([preference]),
    )


def worth(problem: Problem, scales: Scales, reports: Sequence[StepReport], slower: Floats) -> Floats:
    """Return what plans earn under the job's objective [P], more is better, steps `slower` times nominal [P].

    time and cost: the best candidate's over the plan's own; reward: 1 + R; tchebycheff: 1 - its distance.
    Devices are paid by the hour, so a slower step costs more; bytes between domains do not change.
    """
    job = problem.job
    step_s = np.array([report.step_time_s for report in reports]) * slower
    used = np.array([report.utilization for report in reports]) / slower
    egress = np.array([report.egress_usd_per_step for report in reports])
    usd = egress + (np.array([money(report) for report in reports]) - egress) * slower
    match job.objective:
        case Objective.TIME:
            return np.asarray(scales.baseline_s / step_s)
        case Objective.COST:
            return np.asarray(scales.baseline_usd / np.maximum(usd, 1e-300))
        case _:
            return np.asarray(1 - score(job, scales, step_s, used, usd))


def scales_of(items: Sequence[Evaluated]) -> Scales:
    """Return what values are measured against: the fastest and the cheapest candidate, and the front's ends."""
    if not items:
        return Scales()
    points = np.array([vector(item.report) for item in items])
    front = points[efficient(points)]
    low, high = front.min(axis=0), front.max(axis=0)
    return Scales(
        baseline_s=float(low[0]),
        baseline_usd=max(float(low[2]), 1e-12),
        ideal=(float(low[0]), float(low[1]), float(low[2])),
        nadir=(float(high[0]), float(high[1]), float(high[2])),
    )


def _names(items: Sequence[Evaluated]) -> list[str]:
    """Return a name of each candidate; those of the same domains are told apart by their inner shape."""
    names = [words.name(item.plan) for item in items]
    return [
        name if names.count(name) == 1 else f"{name} ({_shape(item.plan)})"
        for name, item in zip(names, items, strict=True)
    ]


def _shape(plan: TrainingPlan) -> str:
    first = plan.pipelines[0]
    parts = [f"pp{len(first.stages)} dp{first.replicas} tp{first.stages[0].tensor_parallel}"]
    parts += [f"mb{plan.microbatch_size}x{first.microbatches} {plan.schedule}"]
    parts += ["recompute"] * (plan.recompute is not Recompute.NONE)
    parts += [f"H={plan.local_steps}"] * (plan.local_steps > 1)
    return " ".join([*parts, *[f"grad/{plan.gradient_compression:g}"] * (plan.gradient_compression > 1)])


def candidates_of(problem: Problem, *, is_time: bool = False) -> list[Evaluated]:
    """Return the shortlist, under other layouts too where there are experts, or no room for whole sequences:
    elsewhere they gain little and take as long again. By step time."""
    has_experts = max(problem.splitting.expert_degrees) > 1
    is_split = has_experts or not sequences_fit(problem.fleet, problem.job)
    items, ways = layouts(problem) if is_split else ([], [problem])
    for way in ways:
        items += shortlist(way, most=CANDIDATES // len(ways), is_time=is_time)
    return sorted({item.plan: item for item in items}.values(), key=lambda item: vector(item.report))


def _with(problem: Problem, plan: TrainingPlan, items: list[Evaluated]) -> tuple[int, list[Evaluated]]:
    """Return the position of the plan in use among the candidates, added where needed; -1 where it cannot run."""
    for index, item in enumerate(items):
        if item.plan == plan:
            return index, items
    have = {domain.name: domain.num_devices for domain in problem.fleet.domains}
    if any(count > have.get(name, 0) for name, count in plan.devices().items()) or not problem.model.fits(plan):
        return -1, items
    report = problem.model.reports([plan])[0]
    if not np.isfinite(report.step_time_s):
        return -1, items
    return len(items), [*items, Evaluated(plan, report, report.step_time_s)]


def _switch_share(problem: Problem, items: Sequence[Evaluated], current: int, in_use: InUse) -> Floats:
    """Return what going to each plan burns, in intervals [P]: 0 for the plan in use."""
    pair = [items[current].plan, *(item.plan for item in items)]
    moved_s, _, moves = relocation_costs(problem.fleet, problem.job, pair)
    devices = np.array([item.plan.devices() != items[current].plan.devices() for item in items])
    share = (moved_s[0, 1:] + np.where(moves[0, 1:] | devices, in_use.restart_s, 0.0)) / in_use.interval_s
    share[current] = 0.0
    return np.asarray(share)


def _link_features(response: PlanResponse, outlook: Outlook) -> Floats:
    """Return LINK_FEATURES of each plan [P, 4]."""
    used = response.pair >= 0
    pair = np.maximum(response.pair, 0)

    def least(values: Floats) -> Floats:
        return np.asarray(np.where(used, values[pair], 1.0).min(axis=1))

    count = np.maximum(1, used.sum(axis=1))
    mean = np.where(used, outlook.stay[pair], 0.0).sum(axis=1) / count
    mean = np.where(used.any(axis=1), mean, 1.0)
    return np.stack([least(outlook.factors[0]), least(outlook.factors[-1]), mean, least(outlook.stay)], axis=1)
