"""The whole table: every row in the order of the requirements, each handed out as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from strata.evaluation.kpi import (
    algorithm,
    allocation_error,
    communication_cost_reduction,
    coordination_time,
    inter_domain_latency,
    intra_domain_latency,
    load_stability,
    network_degradation,
    pareto_coverage,
    training_time_reduction,
    utilization_improvement,
)
from strata.evaluation.kpi.compared import Compared, compare_all
from strata.evaluation.kpi.kpi import NAMES, Kpi
from strata.evaluation.kpi.study import Study
from strata.training.hi_ppo.policy import BUNDLED

Advance = Callable[[str, float], None]

ALONE: Final[dict[str, Callable[[Study], Kpi]]] = {
    "algorithm": algorithm.measure,
    "pareto_coverage": pareto_coverage.measure,
    "inter_domain_latency_s": inter_domain_latency.measure,
    "intra_domain_latency_s": intra_domain_latency.measure,
    "utilization_improvement": utilization_improvement.measure,
    "coordination_time_s": coordination_time.measure,
    "allocation_error": allocation_error.measure,
    "load_stability": load_stability.measure,
    "network_degradation": network_degradation.measure,
}
SHARING: Final[dict[str, Callable[[Study, list[Compared]], Kpi]]] = {
    "training_time_reduction": training_time_reduction.measure,
    "communication_cost_reduction": communication_cost_reduction.measure,
}
"""Rows over the same comparisons, which are made once."""


def _nobody(_name: str, _share: float) -> None:
    pass


def measure_all(study: Study, *, names: Collection[str] = NAMES, advance: Advance = _nobody) -> Iterator[Kpi]:
    """Measure the rows named, in the order of NAMES; `advance` is told the row and the share of it done."""
    compared: list[Compared] | None = None
    for name in NAMES:
        if name not in names:
            continue
        row_study = replace(study, advance=partial(advance, name))
        if name in ALONE:
            yield ALONE[name](row_study)
            continue
        if compared is None:
            compared = list(compare_all(row_study))
        yield SHARING[name](row_study, compared)


def answer(kpis: list[Kpi], study: Study, *, elapsed_s: float, is_whole: bool) -> dict[str, Any]:
    """Return the stable JSON form of a run."""
    record = study.policy.record
    return {
        "kpis": [kpi.to_dict() for kpi in kpis],
        "policy": {
            "file": _shown_file(study.policy.file),
            "trained_at": record.get("trained_at"),
            "seed": record.get("seed"),
        },
        "quick": study.quick,
        "interrupted": not is_whole,
        "elapsed_s": elapsed_s,
    }


def _shown_file(file: str) -> str | None:
    """Return a policy's file, the bundled one without the folder this installation happens to lie in."""
    return f"bundled {BUNDLED.name}" if file == str(BUNDLED) else file or None
