"""Allocation ratios against the choice among candidate plans, as actions of the agent between domains."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

from strata.errors import need
from strata.evaluation.bench.progress import Progress, silent
from strata.training.hi_ppo.policy import load_policy
from strata.workload.presets import job_names
from strata.workload.schema import load_job

HEADS: Final = ("dirichlet_untrained", "dirichlet", "proportional", "exact_ratios", "scorer", "exact")


def measure(*, seconds: float, fleets: int, seed: int, progress: Progress = silent) -> dict[str, Any]:
    """Train the ratios for so long, then compare all heads on fleets of fixed seeds. Raises MissingPart."""
    need("torch", extra="train")
    import torch

    from strata.evaluation.allocation_heads import heads

    jobs = [load_job(name) for name in job_names()]
    torch.set_num_threads(1)  # a batch of some dozens: threads only cost
    curve: list[Any] = []
    started = time.perf_counter()
    with progress("seconds of training", total=max(1, round(seconds))) as advance:

        def seen(update: Any) -> None:
            curve.append(update)
            advance(min(round(seconds), round(time.perf_counter() - started)))

        untrained, trained = heads.train(jobs, seconds=seconds, seed=seed, clock=time.perf_counter, seen=seen)
    outcomes = []
    policy = load_policy()
    with progress("fleets", total=fleets) as advance:
        for number, case in enumerate(heads.cases(jobs, fleets)):
            both = {"dirichlet_untrained": untrained, "dirichlet": trained}
            outcome = heads.compare(case, both, policy=policy, clock=time.perf_counter)
            outcomes += [] if outcome is None else [outcome]
            advance(number + 1)
    kinds = [outcome.kind for outcome in outcomes]
    return {
        "fleets": len(outcomes),
        "left_out": fleets - len(outcomes),
        "exact_plans": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "exact_subsets": sum(outcome.is_subset for outcome in outcomes),
        "training": {
            "seconds": seconds,
            "decisions": curve[-1].decisions if curve else 0,
            "updates": len(curve),
            "seed": seed,
        },
        "heads": [{"name": name, **asdict(heads.row(outcomes, name))} for name in HEADS] if outcomes else [],
        "trust": "analytic",
    }
