"""The neutral formulas against the published stand-alone scorer, where that is at hand."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.published_benchmarks.case_file import CaseFile, read_cases
from strata.evaluation.published_benchmarks.formulas import FormulaScore, FormulaScorer
from strata.evaluation.published_benchmarks.plan import BenchmarkPlan, BenchmarkStage, ReplicaRun, plan_from_dict
from tests import SHARED
from tests.evaluation.published_benchmarks.builders import case_file
from tests.support.laws import examples

DATA = SHARED / "data"


def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("score_training_plan", DATA / "score_training_plan.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


needs_reference = pytest.mark.skipif(
    not (DATA / "score_training_plan.py").exists(), reason="../shared with the neutral scorer is not here"
)


@pytest.fixture(scope="module")
def published() -> tuple[ModuleType, dict[str, Any], CaseFile]:
    path = DATA / "training_cases.json"
    return reference(), json.loads(path.read_text()), read_cases(path)


def assert_same(score: FormulaScore, expected: dict[str, Any]) -> None:
    for ours, theirs in (
        (score.iteration_s, expected["iteration_s"]),
        (score.sync_s, expected["t_sync_s"]),
        (score.egress_usd, expected["egress_usd"]),
        (score.cost_usd, expected["cost_usd"]),
    ):
        assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-15)
    assert score.fits_memory == expected["fits_memory"]
    assert score.crosses_regions == expected["dp_crosses_regions"]
    assert score.gpus_used == expected["gpus_used"]


@needs_reference
def test_every_published_plan_scores_as_published(published: tuple[ModuleType, dict[str, Any], CaseFile]) -> None:
    scorer, data, file = published
    for case in data["cases"]:
        ours = FormulaScorer(file, case["model"], case["global_batch"])
        for point in case["points"]:
            for result in point["results"].values():
                if result.get("plan"):
                    expected = scorer.evaluate(data, case["model"], case["global_batch"], result["plan"])
                    assert_same(ours.score(plan_from_dict(result["plan"])), expected)
    for run in data["measured_runs"]:
        expected = scorer.evaluate(data, run["model"], run["global_batch"], run["plan"])
        ours = FormulaScorer(file, run["model"], run["global_batch"])
        assert_same(ours.score(plan_from_dict(run["plan"])), expected)


@st.composite
def plans(draw: st.DrawFn) -> BenchmarkPlan:
    """Plans over A100 and V100 in any zones, every stage with its own runs of replicas."""
    S = draw(st.integers(1, 6))
    cuts = sorted(draw(st.sets(st.integers(1, 25), min_size=S - 1, max_size=S - 1)))
    D = draw(st.integers(1, 12))
    zones = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west1-b")
    run = st.tuples(st.sampled_from(("A100-40", "V100-16")), st.sampled_from((1, 2, 4)), st.sampled_from(zones))
    stages = []
    for first, after in zip((0, *cuts), (*cuts, 26), strict=True):
        ends = sorted({*draw(st.sets(st.integers(1, D), max_size=3)), D})
        sizes = [b - a for a, b in zip((0, *ends), ends, strict=False)]
        stages.append(BenchmarkStage(first, after - 1, tuple(ReplicaRun(*draw(run), size) for size in sizes)))
    return BenchmarkPlan(draw(st.sampled_from((1, 2, 4))), tuple(stages))


@needs_reference
@examples(60)
@given(plan=plans())
def test_any_plan_scores_as_the_published_scorer_says(
    published: tuple[ModuleType, dict[str, Any], CaseFile], plan: BenchmarkPlan
) -> None:
    scorer, data, file = published
    expected = scorer.evaluate(data, "OPT-350", 1024, plan.to_dict())
    assert_same(FormulaScorer(file, "OPT-350", 1024).score(plan), expected)


def test_neighbours_without_a_measured_curve_take_for_ever(tmp_path: Path) -> None:
    file = case_file(tmp_path, {"east-a": {"fast": 4}})
    curves = {ends: curve for ends, curve in file.curves.items() if ends[0].gpu == ends[1].gpu}
    apart = CaseFile(file.models, file.gpus, curves, file.egress_usd_per_byte, file.cases, ())
    stages = (
        BenchmarkStage(0, 2, (ReplicaRun("fast", 1, "east-a", 1),)),
        BenchmarkStage(3, 5, (ReplicaRun("slow", 1, "east-a", 1),)),
    )
    assert math.isinf(FormulaScorer(apart, "tiny", 8).score(BenchmarkPlan(1, stages)).iteration_s)
    assert math.isfinite(FormulaScorer(file, "tiny", 8).score(BenchmarkPlan(1, stages)).iteration_s)


def test_a_ring_inside_one_zone_costs_no_egress(tmp_path: Path) -> None:
    file = case_file(tmp_path, {"east-a": {"fast": 4}})
    scorer = FormulaScorer(file, "tiny", 8)
    inside = scorer.score(BenchmarkPlan(1, (BenchmarkStage(0, 5, (ReplicaRun("fast", 1, "east-a", 4),)),)))
    across = scorer.score(
        BenchmarkPlan(
            1, (BenchmarkStage(0, 5, (ReplicaRun("fast", 1, "east-a", 2), ReplicaRun("fast", 1, "east-b", 2))),)
        )
    )
    assert inside.egress_usd == 0
    assert across.egress_usd > 0
    assert across.gpu_usd >= inside.gpu_usd
