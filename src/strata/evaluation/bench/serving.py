"""Layouts of the pools of a file of published cases, scored by the neutral model."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from strata.evaluation.published_benchmarks.serving_cases import ServingCase
from strata.serving.planning.allocate import Strategy, allocate
from strata.serving.planning.allocation import Allocation
from strata.serving.planning.goal import Goal
from strata.tables import Line, Shown, rows


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


def show(answers: list[dict[str, Any]], cases: list[ServingCase]) -> Shown:
    """Yield what is shown of the measurement to people."""
    body = []
    for answer, case in zip(answers, cases, strict=True):
        peer = answer.get("parallax")
        gap = answer["gap"]
        body.append(
            (
                answer["id"],
                str(len(case.pool.nodes)),
                str(len(answer["pipelines"])),
                f"{answer['tokens_per_s']:.0f}",
                "-" if gap is None else f"{gap:.1%}",
                _ratio(answer, peer, "tokens_per_s"),
                "-" if answer["decode_ms"] is None else f"{answer['decode_ms']:.1f}",
                _ratio(answer, peer, "decode_ms"),
                f"{answer['seconds']:.2f}",
            )
        )
    headers = ("case", "nodes", "pipes", "tokens/s", "gap", "x peer", "decode ms", "x peer", "s")
    yield rows(headers, body, right=range(1, len(headers)))
    for answer in answers:
        for reason in answer["reasons"]:
            yield Line(f"{answer['id']}: {reason['text']}", style="yellow")
    groups = {"all cases": 0, "16+ nodes and 64+ layers": 1}
    for title, large in groups.items():
        pairs = [
            (answer, answer["parallax"])
            for answer, case in zip(answers, cases, strict=True)
            if "parallax" in answer
            and answer["pipelines"]
            and (not large or (len(case.pool.nodes) >= 16 and case.pool.num_layers >= 64))
        ]
        if pairs:
            tokens, decode = (
                math.exp(sum(math.log(a[key] / b[key]) for a, b in pairs) / len(pairs))
                for key in ("tokens_per_s", "decode_ms")
            )
            yield f"{title} ({len(pairs)}): {tokens:.3f}x tokens/s, {decode:.3f}x decode (geometric means)"
    if any("parallax" in answer for answer in answers):
        yield "peer: Parallax's stored plan of the most tokens/s. Figures: analytic."


def _ratio(answer: dict[str, Any], peer: dict[str, float] | None, key: str) -> str:
    return "-" if peer is None or answer[key] is None else f"{answer[key] / peer[key]:.3f}"
