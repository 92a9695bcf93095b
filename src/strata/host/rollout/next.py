"""Which policy an attempt that is about to start should run under, and why."""

from __future__ import annotations

from collections.abc import Mapping

from strata.decision import Reason
from strata.host.rollout.assign import turn
from strata.host.rollout.attempt import Arm
from strata.host.rollout.judge import RolloutStatus, Verdict
from strata.host.rollout.rollout import Rollout


def next_policy(
    rollout: Rollout, verdict: Verdict, labels: Mapping[str, str], *, number: int, config: str
) -> tuple[Arm, Reason]:
    """Return the policy of attempt `number` of a job. What was assigned stays, unless it went back.

    `labels` holds at least `job`. The two attempts of a pair get one policy each, or both the baseline.
    """
    job, salt = labels["job"], rollout.plan.name
    why_not = rollout.rules.why_not(labels, salt=salt)
    if why_not is not None:
        return Arm.BASELINE, why_not
    if job in verdict.jobs_back:
        return Arm.BASELINE, Reason("rollout-job-back", job, {"guard": rollout.plan.guard})
    if verdict.is_over:
        return Arm.CANDIDATE if verdict.status is RolloutStatus.ROLL_OUT else Arm.BASELINE, verdict.reason
    known = rollout.assigned.get((job, number))
    if known is None and verdict.status is RolloutStatus.NOISE:
        return Arm.BASELINE, verdict.reason
    partner = rollout.find(job, number ^ 1)
    before = rollout.assigned.get((job, number ^ 1), None if partner is None else partner.policy)
    policy = known or turn(salt, job, config, number)
    # A pair that began in A/A ends so: its second attempt must not be the first to know better.
    if known is None and before is Arm.BASELINE and turn(salt, job, config, number ^ 1) is Arm.CANDIDATE:
        policy = Arm.BASELINE
    return policy, Reason("rollout-turn", job, {"number": number, "policy": str(policy)})
