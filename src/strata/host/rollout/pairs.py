"""Pairs of attempts: a job in one configuration, once under each policy, or twice under the baseline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from strata.host.rollout.rollout import Arm, Attempt, Rollout, Unit, turn


@dataclass(frozen=True, slots=True)
class AttemptPair:
    """Attempts 2k and 2k + 1 of a job. `change`: log of how much better the candidate was; None if one failed.

    In an A/A pair (`is_ab` false) both ran the baseline, and a lot says which is called the candidate. `drift` is
    the log-ratio of the later attempt to the earlier one.
    """

    job: str
    is_ab: bool
    change: float | None
    drift: float | None
    has_candidate_failed: bool
    has_baseline_failed: bool
    devices: int


def pairs_of(rollout: Rollout) -> tuple[AttemptPair, ...]:
    """Return the pairs that are complete, in the order in which they became so."""
    waiting: dict[tuple[str, str, int], Attempt] = {}
    pairs = []
    for attempt in rollout.kept:
        key = attempt.job, attempt.config, attempt.number // 2
        other = waiting.pop(key, None)
        if other is None:
            waiting[key] = attempt
            continue
        first, second = sorted((other, attempt), key=lambda each: each.number)
        pair = _pair(rollout, first, second)
        if pair is not None:
            pairs.append(pair)
    return tuple(pairs)


def _pair(rollout: Rollout, first: Attempt, second: Attempt) -> AttemptPair | None:
    policies = {first.policy, second.policy}
    if policies == {Arm.CANDIDATE}:
        return None
    is_ab = len(policies) == 2
    if is_ab:
        is_first = first.policy is Arm.CANDIDATE
    else:
        is_first = turn(rollout.plan.name, first.job, first.config, first.number) is Arm.CANDIDATE
    candidate, baseline = (first, second) if is_first else (second, first)
    drift = _log_ratio(second, first, rollout.plan.unit)
    change = drift if drift is None or not is_first else -drift
    return AttemptPair(
        first.job,
        is_ab,
        change,
        drift,
        candidate.value is None,
        baseline.value is None,
        max(first.devices, second.devices),
    )


def _log_ratio(new: Attempt, old: Attempt, unit: Unit) -> float | None:
    """Return the log of how many times better `new` was than `old`."""
    if new.value is None or old.value is None:
        return None
    return math.log(old.value / new.value if unit.is_lower_better else new.value / old.value)
