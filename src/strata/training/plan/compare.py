"""One request from end to end: plan, then set the plan beside the baselines and on the Pareto front.

`--time-limit` is for all of it: where there is a comparison to make, the search leaves it COMPARISON_SHARE.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from strata.clock import Clock
from strata.errors import UsageError
from strata.fleet.fleet import Fleet
from strata.progress import Progress, silent
from strata.training.plan.baselines import BASELINES, absent
from strata.training.plan.baselines.context import Context, Unfinished
from strata.training.plan.exact.pareto import front
from strata.training.plan.exact.result import SearchResult
from strata.training.plan.exact.usable import check_names
from strata.training.plan.given import evaluate_given, read_given
from strata.training.plan.knee import knee
from strata.training.plan.planned import PlanRequest
from strata.training.plan.planner import plan_training
from strata.training.plan.report import BaselineResult, TrainingPlanReport
from strata.training.plan.request import requested_job
from strata.workload.job import Schedule, TrainingJob

COMPARISON_SHARE: Final = 0.25

KNEE_SHARE: Final = 0.25
"""Of the time that the search took, for the cheapest plan nearly as fast; what is cheap is mostly met early."""

OUT_OF_TIME: Final = "out of time"


def plan_request(
    fleet: Fleet, job: TrainingJob, request: PlanRequest, *, clock: Clock, progress: Progress = silent,
    planned: Callable[[TrainingPlanReport], None] = lambda _: None,
) -> TrainingPlanReport:  # fmt: skip
    """Return the plans of a job, and what was asked to be compared with them.

    `planned` is told of the plans before the comparison, which may take longer than the search. Raises UsageError
    where parts of the request contradict each other. Ctrl-C ends it with what there is.
    """
    job = requested_job(job, request)
    check_names(fleet, job)
    if request.planner == "exact" and (request.policy or request.in_use):
        raise UsageError("--policy and --in-use are for the learned policy", hint="--planner hi-ppo")
    if request.planner == "hi-ppo" and job.pins.names:
        raise UsageError(f"the learned policy keeps no `parallel:` ({job.pins})", hint="--planner exact")
    if request.planner == "hi-ppo" and Schedule.DUAL_PIPE_V in job.schedules:
        raise UsageError("the learned policy plans no dualpipev", hint="--planner exact")
    given = None if request.given is None else read_given(request.given, fleet, job)
    deadline = clock() + request.time_limit_s
    report = _searched(fleet, job, request, deadline, clock=clock, progress=progress)
    if given is not None:
        assert request.given is not None, "there is a file that it was read from"
        evaluated = evaluate_given(given, request.given, fleet, report.problem.job, report.scales)
        report = replace(report, given=evaluated.to_dict(report))
    if report.interrupted:
        return report
    if report.best is not None:
        planned(report)
    if request.baselines and report.best is not None:
        report = _with_baselines(report, request.seed, clock, deadline, progress)
    if request.pareto and not report.interrupted:
        report = _with_front(report, clock, deadline, progress)
    return report


def _searched(
    fleet: Fleet, job: TrainingJob, request: PlanRequest, deadline: float, *, clock: Clock, progress: Progress
) -> TrainingPlanReport:
    compares = request.baselines or request.pareto
    if request.planner == "hi-ppo":
        with progress("planning"):
            report = _learned(fleet, job, request, clock)
    else:
        share = 1 - COMPARISON_SHARE if compares else 1.0
        report = plan_training(
            fleet, job, clock=clock, time_limit_s=request.time_limit_s * share, rank=request.top,
            seed=request.seed, progress=progress,
        )  # fmt: skip
    if report.search.interrupted:
        return replace(report, interrupted=True)
    if request.planner == "exact":
        until = min(deadline, clock() + KNEE_SHARE * report.decision.elapsed_s)
        report = replace(report, knee=knee(report, clock=clock, deadline=until))
    return report


def _learned(fleet: Fleet, job: TrainingJob, request: PlanRequest, clock: Clock) -> TrainingPlanReport:
    # Loaded only where it is asked for: the policy's libraries cost a quarter of a second.
    from strata.training.hi_ppo.global_agent import InUse
    from strata.training.hi_ppo.plan import plan_hi_ppo
    from strata.training.hi_ppo.policy import load_policy

    in_use = None if request.in_use is None else InUse(read_given(request.in_use, fleet, job))
    policy = load_policy(request.policy)
    return plan_hi_ppo(fleet, job, policy=policy, clock=clock, time_limit_s=request.time_limit_s, in_use=in_use)


def _with_baselines(
    report: TrainingPlanReport, seed: int, clock: Clock, deadline: float, progress: Progress
) -> TrainingPlanReport:
    assert report.best is not None, "there is a plan to compare with"
    rng = np.random.default_rng(seed)
    best = report.best
    # What a learned policy has ranked proves nothing.
    known = report.search if report.policy is None else SearchResult(bound=-np.inf)
    context = Context(report.scales, best.report.num_devices, rng, clock, deadline, best.plan, known)
    results: dict[str, BaselineResult] = {}
    try:
        with progress("baselines", total=len(BASELINES)) as advance:
            for done, (name, rule) in enumerate(BASELINES.items(), 1):
                try:
                    context.check_time()
                    plan = rule(report.problem, context)
                    results[name] = BaselineResult(plan, "" if plan is not None else absent(name))
                except Unfinished:
                    results[name] = BaselineResult(None, OUT_OF_TIME)
                advance(done)
    except KeyboardInterrupt:
        return replace(report, baselines=results, interrupted=True)
    return replace(report, baselines=results)


def _with_front(
    report: TrainingPlanReport, clock: Clock, deadline: float, progress: Progress
) -> TrainingPlanReport:
    try:
        with progress("Pareto front", total=1.0) as advance:
            items, complete = front(
                report.problem, clock=clock, deadline=deadline, start=report.plans, advance=advance
            )
    except KeyboardInterrupt:
        return replace(report, interrupted=True)
    return replace(report, front=tuple(items), front_complete=complete)
