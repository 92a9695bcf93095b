"""Simulated roll-outs: jobs whose attempts differ by noise, drift, and what the candidate really changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strata.host.rollout.attempt import Attempt, Policy
from strata.host.rollout.judge import Verdict, judge
from strata.host.rollout.next import next_policy
from strata.host.rollout.rollout import Plan, Rollout


def attempt(
    job: str, number: int, value: float | None, policy: str = "baseline", *, config: str = "", devices: int = 1
) -> Attempt:
    return Attempt(job, number, Policy(policy), value, config, devices)


def simulated(
    seed: int,
    effect: float,
    *,
    plan: Plan | None = None,
    jobs: int = 20,
    attempts: int = 40,
    sd: float = 0.04,
    drift: float = 0.01,
    hurt: tuple[str, ...] = (),
    crashes: float = 0.0,
) -> tuple[Rollout, Verdict]:
    """A roll-out to its end: `effect` is the log-ratio of the candidate; jobs in `hurt` lose half by it."""
    rng = np.random.default_rng(seed)
    plan = plan or Plan(f"simulated {seed}")
    base = np.exp(rng.normal(5, 1, jobs))
    rollout = Rollout(plan)
    verdict = judge(rollout)
    for number in range(attempts):
        done = []
        for j in range(jobs):
            policy, _ = next_policy(rollout, verdict, {"job": f"job-{j}"}, number=number, config="")
            is_tried = policy is Policy.CANDIDATE
            change = (effect if is_tried else 0.0) + (np.log(0.5) if is_tried and f"job-{j}" in hurt else 0.0)
            value = float(base[j] * np.exp(sd * rng.standard_t(4) + drift * number + change))
            has_failed = rng.random() < (crashes if is_tried else 0.01 * bool(crashes))
            done.append(Attempt(f"job-{j}", number, policy, None if has_failed else value, devices=8))
        rollout = replace(rollout, attempts=(*rollout.attempts, *done))
        verdict = judge(rollout)
        if verdict.is_over:
            break
    return rollout, verdict
