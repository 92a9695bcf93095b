"""Attempts in a line each, and simulated roll-outs: noise, drift, and what the candidate really changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from strata.host.rollout.judge import RolloutVerdict, judge, next_policy
from strata.host.rollout.rollout import Arm, Attempt, Rollout, RolloutPlan


def attempt(
    job: str, number: int, value: float | None, policy: str = "baseline", *, config: str = "", devices: int = 1
) -> Attempt:
    return Attempt(job, number, Arm(policy), value, config, devices)


def simulated(
    seed: int,
    effect: float,
    *,
    jobs: int = 20,
    attempts: int = 40,
    sd: float = 0.04,
    drift: float = 0.01,
    hurt: Collection[str] = (),
    crashes: float = 0.0,
) -> tuple[Rollout, RolloutVerdict]:
    """Return a roll-out at its end, judged after each round of attempts.

    `effect` is the log-ratio of the candidate, `sd` the scale of an attempt's noise (Student's t, 4 degrees of
    freedom), `drift` what each attempt gains on the one before. Jobs in `hurt` lose half by the candidate;
    `crashes` is its chance to fail, 1 % the baseline's then.
    """
    rng = np.random.default_rng(seed)
    base = np.exp(rng.normal(5, 1, jobs))
    rollout = Rollout(RolloutPlan(f"simulated {seed}"))
    verdict = judge(rollout)
    for number in range(attempts):
        done = []
        for j in range(jobs):
            job = f"job-{j}"
            policy, _ = next_policy(rollout, verdict, {"job": job}, number=number, config="")
            is_tried = policy is Arm.CANDIDATE
            change = (effect + (np.log(0.5) if job in hurt else 0.0)) if is_tried else 0.0
            value = float(base[j] * np.exp(sd * rng.standard_t(4) + drift * number + change))
            has_failed = rng.random() < (crashes if is_tried else 0.01 * bool(crashes))
            done.append(Attempt(job, number, policy, None if has_failed else value, devices=8))
        rollout = replace(rollout, attempts=(*rollout.attempts, *done))
        verdict = judge(rollout)
        if verdict.is_over:
            break
    return rollout, verdict
