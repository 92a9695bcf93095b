"""Layouts of the pools of a file of published cases, scored by the neutral model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from strata.evaluation.published_benchmarks.serving_cases import ServingCase
from strata.serving.planning.allocate import Strategy, allocate
from strata.serving.planning.allocation import Allocation
from strata.serving.planning.goal import Goal


def measure(
    cases: Sequence[ServingCase], *, goal: str, strategy: Strategy, time_limit_s: float
) -> Iterator[dict[str, Any]]:
    """Yield what `-o json` prints of each case, case by case: what is done stays when the rest is interrupted."""
    for case in cases:
        started = time.perf_counter()
        allocation = allocate(
            case.pool,
            strategy,
            goal=Goal(goal),
            has_floor=goal == Goal.BOTH,
            time_limit_s=time_limit_s,
        )
        yield _laid_out(case, allocation, time.perf_counter() - started)


def _laid_out(case: ServingCase, allocation: Allocation, seconds: float) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": case.id,
        "pipelines": [[list(stage) for stage in pipeline] for pipeline in allocation.pipelines],
        "tokens_per_s": allocation.performance.tokens_per_s,
        "decode_ms": allocation.performance.decode_s * 1e3 if allocation.pipelines else None,
        "bound": allocation.bound_tokens_per_s,
        "gap": allocation.gap,
        "seconds": seconds,
        "trust": "analytic",
        "reasons": [reason.to_dict() for reason in allocation.reasons],
    }
    if case.parallax is not None:
        data["parallax"] = {
            "tokens_per_s": case.parallax.tokens_per_s,
            "decode_ms": case.parallax.decode_s * 1e3,
        }
    return data
