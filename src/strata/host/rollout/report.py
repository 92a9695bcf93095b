"""What a roll-out found, as figures: the noise floor, the change with two intervals, capacity saved, every job."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from strata.arrays import Floats
from strata.decision import Trust
from strata.host.rollout.judge import RolloutVerdict, changes, judge
from strata.host.rollout.pairs import AttemptPair
from strata.host.rollout.rollout import Rollout
from strata.stats import Interval, bootstrap


@dataclass(frozen=True, slots=True)
class JobReport:
    """A job's A/B pairs: the mean change (log-ratio), and the accelerators it holds."""

    name: str
    pairs: int
    change: float
    devices: int
    is_back: bool


@dataclass(frozen=True, slots=True)
class RolloutReport:
    """A roll-out, judged. Ratios are candidate / baseline where more is better, baseline / candidate else.

    `ratio` is the geometric mean over jobs with its bootstrap interval over jobs: for one look. The verdict
    has the one for any number of looks. `saved` is the share of accelerators no longer needed for the same work,
    by jobs and their devices. `drift`: later over earlier attempt of A/A pairs. None where there are fewer than
    two jobs.
    """

    rollout: Rollout
    verdict: RolloutVerdict
    jobs: tuple[JobReport, ...]
    ratio: Interval | None
    saved: Interval | None
    drift: float | None

    def to_dict(self, *, with_ratios: bool = False) -> dict[str, Any]:
        """Return the stable JSON form; `with_ratios` adds every pair's ratio."""
        verdict, plan = self.verdict, self.rollout.plan
        noise = verdict.noise
        answer = {
            "name": plan.name,
            "unit": str(plan.unit),
            "status": str(verdict.status),
            "reason": verdict.reason.to_dict(),
            "trust": str(Trust.MEASURED),
            "attempts": len(self.rollout.attempts),
            "strayed": self.rollout.strayed,
            "aa_pairs": len(verdict.aa),
            "ab_pairs": len(verdict.ab),
            "noise": noise
            and {
                "pairs": noise.pairs,
                "sd_log_ratio": noise.sd,
                "ratio_low": math.exp(noise.low),
                "ratio_high": math.exp(noise.high),
                "smallest_change": math.expm1(noise.smallest),
            },
            "drift_ratio": self.drift,
            "ratio": self.ratio and asdict(self.ratio),
            "ratio_any_time": {
                "low": math.exp(verdict.low) if math.isfinite(verdict.low) else None,
                "high": math.exp(verdict.high) if math.isfinite(verdict.high) else None,
                "confidence": 1 - plan.alpha,
            },
            "capacity_saved": self.saved and asdict(self.saved),
            "devices": sum(job.devices for job in self.jobs),
            "failures": {"candidate": verdict.failed_candidate, "baseline": verdict.failed_baseline},
            "jobs_back": list(verdict.jobs_back),
            "jobs": [
                {
                    "job": job.name,
                    "pairs": job.pairs,
                    "ratio": math.exp(job.change),
                    "devices": job.devices,
                    "is_back": job.is_back,
                }
                for job in self.jobs
            ],
        }
        if with_ratios:
            answer["ratios"] = {"aa": ratios(verdict.aa), "ab": ratios(verdict.ab)}
        return answer


def report_of(rollout: Rollout) -> RolloutReport:
    """Judge a roll-out and sum it up. The same record gives the same figures."""
    verdict = judge(rollout)
    jobs = _jobs(verdict)
    drifts = [pair.drift for pair in verdict.aa if pair.drift is not None]
    by_job = np.array([job.change for job in jobs])
    devices = np.array([job.devices for job in jobs], np.float64)
    ratio = saved = None
    if len(jobs) >= 2:
        rng = np.random.default_rng(0)
        of_mean = bootstrap(lambda sample: float(np.mean(sample)), by_job, rng=rng)
        ratio = Interval(
            math.exp(of_mean.estimate), math.exp(of_mean.low), math.exp(of_mean.high), of_mean.confidence
        )

        def saved_by(drawn: Floats) -> float:
            chosen = drawn.astype(np.int64)
            return float(np.sum(devices[chosen] * -np.expm1(-by_job[chosen])) / np.sum(devices[chosen]))

        saved = bootstrap(saved_by, np.arange(len(jobs)), rng=rng)
    return RolloutReport(
        rollout, verdict, jobs, ratio, saved, math.exp(float(np.mean(drifts))) if drifts else None
    )


def ratios(pairs: tuple[AttemptPair, ...]) -> list[float]:
    """Return how many times better the candidate was, pair by pair, least first."""
    return sorted(math.exp(change) for change in changes(pairs))


def _jobs(verdict: RolloutVerdict) -> tuple[JobReport, ...]:
    of_job: dict[str, list[AttemptPair]] = defaultdict(list)
    for pair in verdict.ab:
        if pair.change is not None:
            of_job[pair.job].append(pair)
    reports = [
        JobReport(
            name,
            len(pairs),
            float(np.mean(changes(pairs))),
            max(pair.devices for pair in pairs),
            name in verdict.jobs_back,
        )
        for name, pairs in of_job.items()
    ]
    return tuple(sorted(reports, key=lambda job: job.change))
