"""The verdict on a roll-out after any number of attempts, and the policy that the next attempt should run under.

Pure functions of what was recorded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from strata.arrays import Bools
from strata.decision import Reason
from strata.host.rollout.pairs import AttemptPair, pairs_of
from strata.host.rollout.rollout import Arm, Rollout, RolloutPlan, turn
from strata.host.rollout.sequence import interval, log_evidence, log_failure_evidence, radius, rho_of
from strata.stats import mad

EQUAL: Final = math.log(1.01)
"""A change of less than 1 % is called none (assumed: the roll-out of seed 004 was made for 4 %)."""
GUARD_SDS: Final = 3.0
"""Noise alone does not cross the guard: it is never nearer than this many standard deviations of all pairs."""
JOBS_BACK: Final = 3
JOBS_BACK_SHARE: Final = 0.05
"""From how many jobs that went back on the whole roll-out goes back: 5 % of them, and three at least (assumed)."""
_LEAST_SD: Final = 1e-6
Flags = Bools


class RolloutStatus(StrEnum):
    """Where a roll-out stands."""

    NOISE = "a/a"
    RUNNING = "a/b"
    ROLL_OUT = "roll-out"
    ROLL_BACK = "roll-back"
    NO_DIFFERENCE = "no-difference"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class NoiseFloor:
    """How far two attempts under equal policies differ (log-ratio): the floor below which no change is seen.

    `sd` is robust (MAD); `low` and `high` hold 95 % of the pairs; `smallest`: the change that `ab_pairs` show.
    """

    pairs: int
    sd: float
    low: float
    high: float
    smallest: float


@dataclass(frozen=True, slots=True)
class RolloutVerdict:
    """Where a roll-out stands and why. `aa` and `ab` are the pairs that were used, to where it stopped.

    `low` and `high`: the interval of the change (log-ratio) that holds at any time; infinite before it is known.
    `jobs_back`: jobs that are kept on the baseline since they lost too much.
    """

    status: RolloutStatus
    reason: Reason
    aa: tuple[AttemptPair, ...]
    ab: tuple[AttemptPair, ...]
    noise: NoiseFloor | None
    low: float
    high: float
    jobs_back: tuple[str, ...]
    failed_candidate: int
    failed_baseline: int

    @property
    def is_over(self) -> bool:
        """Whether no further pair changes it."""
        return self.status not in (RolloutStatus.NOISE, RolloutStatus.RUNNING)


def changes(pairs: Sequence[AttemptPair]) -> list[float]:
    """Return the changes of the pairs in which both attempts have a value."""
    return [pair.change for pair in pairs if pair.change is not None]


def judge(rollout: Rollout) -> RolloutVerdict:
    """Return the verdict. It is the first that any prefix of the record gives: what stopped stays stopped."""
    plan = rollout.plan
    pairs = pairs_of(rollout)
    known = [i for i, pair in enumerate(pairs) if not pair.is_ab and pair.change is not None]
    aa = tuple(pair for pair in pairs if not pair.is_ab)
    if len(known) < plan.aa_pairs:
        reason = Reason("rollout-noise-first", plan.name, {"pairs": len(known), "wanted": plan.aa_pairs})
        verdict = RolloutVerdict(RolloutStatus.NOISE, reason, aa, (), None, -math.inf, math.inf, (), 0, 0)
    else:
        since = known[plan.aa_pairs - 1] + 1
        # The first pairs alone set the scale: it must not depend on anything seen beside the A/B pairs.
        first = changes([pair for pair in pairs[:since] if not pair.is_ab])
        noise = _noise(plan, first)
        ab = tuple(pair for pair in pairs[since:] if pair.is_ab)[: plan.ab_pairs]
        verdict = _judge_ab(plan, aa, ab, noise, first=first)
    if rollout.is_stopped and verdict.status is not RolloutStatus.ROLL_BACK:
        reason = Reason("rollout-stopped", plan.name)
        return replace(verdict, status=RolloutStatus.STOPPED, reason=reason)
    return verdict


def _judge_ab(
    plan: RolloutPlan,
    aa: tuple[AttemptPair, ...],
    ab: tuple[AttemptPair, ...],
    noise: NoiseFloor,
    *,
    first: Sequence[float],
) -> RolloutVerdict:
    """Return the first stop, looking after every pair; dangers first. `first`: the changes that set the noise."""
    rho = rho_of(noise.sd, plan.ab_pairs, alpha=plan.alpha)
    better, worse = _rejected(plan, ab, rho, 0.0)
    not_worse, _ = _rejected(plan, ab, rho, -EQUAL)
    _, not_better = _rejected(plan, ab, rho, EQUAL)
    fails = [(pair.has_candidate_failed, pair.has_baseline_failed) for pair in ab]
    crashed = np.cumsum([a and not b for a, b in fails], dtype=np.int64).tolist()
    others = np.cumsum([b and not a for a, b in fails], dtype=np.int64).tolist()
    back_at = _jobs_back(plan, ab, first)
    jobs: set[str] = set()
    status, token, num_used = RolloutStatus.RUNNING, "rollout-running", len(ab)
    for i, pair in enumerate(ab):
        jobs.add(pair.job)
        num_back = sum(at <= i for at in back_at.values())
        if crashed[i] > others[i] and log_failure_evidence(crashed[i], others[i]) >= math.log(1 / plan.alpha):
            status, token = RolloutStatus.ROLL_BACK, "rollout-crashes"
        elif worse[i]:
            status, token = RolloutStatus.ROLL_BACK, "rollout-worse"
        elif num_back >= max(JOBS_BACK, math.ceil(JOBS_BACK_SHARE * len(jobs))):
            status, token = RolloutStatus.ROLL_BACK, "rollout-jobs-worse"
        elif better[i]:
            status, token = RolloutStatus.ROLL_OUT, "rollout-better"
        elif not_worse[i] and not_better[i]:
            status, token = RolloutStatus.NO_DIFFERENCE, "rollout-no-difference"
        elif i + 1 >= plan.ab_pairs:
            status, token = RolloutStatus.NO_DIFFERENCE, "rollout-undecided"
        else:
            continue
        num_used = i + 1
        break
    used = ab[:num_used]
    back = tuple(job for job, at in back_at.items() if at < num_used)
    failed = (crashed[num_used - 1], others[num_used - 1]) if used else (0, 0)
    seen = changes(used)
    low, high = interval(seen, rho=rho, alpha=plan.alpha)
    data = {
        "pairs": len(seen),
        "change": math.expm1(float(np.mean(seen))) if seen else 0.0,
        "candidate": failed[0],
        "baseline": failed[1],
        "jobs": len(back),
        "of": len({pair.job for pair in used}),
    }
    return RolloutVerdict(status, Reason(token, plan.name, data), aa, used, noise, low, high, back, *failed)


def _rejected(plan: RolloutPlan, ab: Sequence[AttemptPair], rho: float, centre: float) -> tuple[Flags, Flags]:
    """Return after each pair whether the change is known to lie above this centre, and whether below.

    A pair without values says nothing about it: zero adds to neither sum.
    """
    x = np.array([0.0 if pair.change is None else pair.change - centre for pair in ab])
    is_rejected = log_evidence(x, rho=rho) >= math.log(1 / plan.alpha)
    total = np.cumsum(x)
    return is_rejected & (total > 0), is_rejected & (total < 0)


def _noise(plan: RolloutPlan, seen: Sequence[float]) -> NoiseFloor:
    sd = max(mad(seen), _LEAST_SD)
    low, high = np.quantile(seen, [0.025, 0.975])
    rho = rho_of(sd, plan.ab_pairs, alpha=plan.alpha)
    return NoiseFloor(len(seen), sd, float(low), float(high), radius(sd, plan.ab_pairs, rho=rho, alpha=plan.alpha))


def _jobs_back(plan: RolloutPlan, ab: Sequence[AttemptPair], first: Sequence[float]) -> dict[str, int]:
    """Return the jobs that lost more than the guard twice in a row, or failed so, and at which pair.

    The scale is of all changes so far, of A/A and A/B: noise may grow after A/A. A minority of jobs that lose,
    however much, moves it little (MAD); where most lose, the mean shows it.
    """
    seen, guard = list(first), -math.log1p(-plan.guard)
    was_bad: dict[str, bool] = defaultdict(bool)
    back: dict[str, int] = {}
    for i, pair in enumerate(ab):
        has_crashed = pair.has_candidate_failed and not pair.has_baseline_failed
        # Few pairs lose that much: the scale, which takes a look at all before, is asked for those alone.
        has_lost = pair.change is not None and pair.change <= -guard and pair.change <= -GUARD_SDS * mad(seen)
        is_bad = has_crashed or has_lost
        if is_bad and was_bad[pair.job]:
            back.setdefault(pair.job, i)
        was_bad[pair.job] = is_bad
        seen += changes([pair])
    return back


def next_policy(
    rollout: Rollout, verdict: RolloutVerdict, labels: Mapping[str, str], *, number: int, config: str
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
