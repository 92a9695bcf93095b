"""Allocation ratios against the choice among candidate plans, as actions of the agent between domains."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any, Final

from strata.errors import need
from strata.files import bundled_names
from strata.progress import Progress, silent
from strata.tables import Shown, rows
from strata.training.hi_ppo.policy import load_policy
from strata.units import show_time
from strata.workload.schema import BUNDLED_JOBS, load_job

HEADS: Final = ("dirichlet_untrained", "dirichlet", "proportional", "exact_ratios", "scorer", "exact")


def measure(*, seconds: float, fleets: int, seed: int, progress: Progress = silent) -> dict[str, Any]:
    """Train the ratios for so long, then compare all heads on fleets of fixed seeds. Raises MissingPart."""
    need("torch", extra="train")
    import torch

    from strata.evaluation.allocation_heads import heads

    jobs = [load_job(name) for name in bundled_names(BUNDLED_JOBS)]
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


LABELS: Final = {
    "dirichlet_untrained": "ratios, untrained",
    "dirichlet": "ratios, trained",
    "proportional": "by devices",
    "exact_ratios": "exact plan's ratios",
    "scorer": "candidate plans",
    "exact": "exact search",
}


def show(data: dict[str, Any]) -> Shown:
    """Yield what is shown of the measurement to people."""
    body = [
        [
            LABELS[item["name"]],
            f"{item['regret_mean']:.1%}",
            f"{item['regret_p95']:.1%}",
            f"{item['optimal']:.0%}",
            f"{item['r_eff_mean']:.1%}",
            str(item["no_plan"]),
            show_time(item["decision_p50_s"]),
            show_time(item["decision_p99_s"]),
        ]
        for item in data["heads"]
    ]
    headers = ["head", "regret", "p95", "within 1 %", "R_eff", "no plan", "p50", "p99"]
    yield rows(headers, body, right=range(1, 8))
    kinds = ", ".join(f"{count} {kind}" for kind, count in data["exact_plans"].items())
    yield f"{data['fleets']} fleets ({data['left_out']} left out: no domain alone can run the job)"
    yield f"exact plans: {kinds}; {data['exact_subsets']} of them leave domains out"
    done = data["training"]
    yield f"trained on {done['decisions']} decisions in {done['updates']} updates, seed {done['seed']}"
