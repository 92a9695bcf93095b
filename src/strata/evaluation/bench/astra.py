"""Our ASTRA-compatible mode against a table of ASTRA-sim's own runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from strata.evaluation.astra_reference.reference import SCALE_ONLY, answers, read_rows, score


def measure(path: str) -> dict[str, Any]:
    """Answer every run of a CSV file as ASTRA-sim would, and count equal nanoseconds by family."""
    runs = answers(read_rows(path))
    counted = [run for run in runs if run.family != SCALE_ONLY]
    families = sorted({run.family for run in runs})
    return {
        "answers": [
            {
                "row": run.row,
                "scenario": run.scenario,
                "topology": run.topology,
                "backend": run.backend,
                "ours_ns": run.ours_ns,
                "default_ns": run.default_ns,
                "reason": run.reason,
                "doubt": run.doubt,
            }
            for run in runs
        ],
        **asdict(score(counted)),
        "families": {name: asdict(score(run for run in runs if run.family == name)) for name in families},
        "not_counted": [name for name in families if name == SCALE_ONLY],
        "misses": [
            {
                "scenario": run.scenario,
                "backend": run.backend,
                "expected_ns": run.expected_ns,
                "ours_ns": run.ours_ns,
            }
            for run in counted
            if run.error
        ],
    }
