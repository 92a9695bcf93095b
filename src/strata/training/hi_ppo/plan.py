"""Plan a job with the learned policy: the same report as the exact planner's, without a proof."""

from __future__ import annotations

from strata.clock import Clock
from strata.decision import Decision, Reason, Trust
from strata.fleet.fleet import Fleet
from strata.training.hi_ppo.global_agent import InUse, decide
from strata.training.hi_ppo.policy import HiPpoPolicy
from strata.training.plan import explain, relax
from strata.training.plan.exact.result import SearchResult
from strata.training.plan.planner import DEFAULT_TIME_LIMIT_S, REFERENCE_SHARE, alternatives, problem_of
from strata.training.plan.report import TrainingPlanReport
from strata.training.plan.request import inputs_digest
from strata.workload.job import TrainingJob


def plan_hi_ppo(
    fleet: Fleet, job: TrainingJob, *, policy: HiPpoPolicy, clock: Clock,
    time_limit_s: float = DEFAULT_TIME_LIMIT_S, in_use: InUse | None = None,
) -> TrainingPlanReport:  # fmt: skip
    """Return the policy's plan of a job, ranked before the other candidates.

    With a plan in use the answer may be to keep it. What a reward measures against has REFERENCE_SHARE of
    the limit. Raises UsageError as `plan_training` does.
    """
    started = clock()
    problem = problem_of(fleet, job)
    until = started + REFERENCE_SHARE * time_limit_s
    made = decide(problem, policy=policy, clock=clock, in_use=in_use, deadline=until)
    result = SearchResult(branches=len(made.items), evaluated=len(made.items))
    for item in made.ranked:
        result.by_set.setdefault(item.domain_set, item)
    # One row a set of domains, the policy's choice first.
    plans = tuple(result.by_set.values())
    reasons: list[Reason] = [*made.reasons, *problem.excluded, *explain.scale(problem.job, made.scales)]
    if plans:
        reasons = [explain.chosen(problem, plans[0], result), *explain.character(problem, plans[0]), *reasons]
    else:
        reasons += relax.smallest(problem, refusal=None, clock=clock, deadline=started + time_limit_s)
    whole_digest, digests = inputs_digest(fleet, job)
    decision = Decision(
        choice=plans[0].plan if plans else None,
        alternatives=alternatives(problem, plans[:10], result),
        reasons=tuple(reasons),
        trust=plans[0].report.trust if plans else Trust.ANALYTIC,
        inputs_digest=whole_digest,
        seed=0,
        elapsed_s=clock() - started,
    )
    details = {
        "file": policy.file,
        "trained_at": policy.record.get("trained_at"),
        "seed": policy.record.get("seed"),
        "explanation": None if made.explanation is None else made.explanation.to_dict(),
    }
    return TrainingPlanReport(problem, digests, decision, plans, result, made.scales, details)
