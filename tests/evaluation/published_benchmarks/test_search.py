from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.published_benchmarks.case_file import CaseFile, CasePoint
from strata.evaluation.published_benchmarks.formulas import FormulaScorer
from strata.evaluation.published_benchmarks.plan import BenchmarkPlan, BenchmarkStage, ReplicaRun
from strata.evaluation.published_benchmarks.search.objective import PointObjective
from strata.evaluation.published_benchmarks.search.point import PointResult, search_point
from tests.evaluation.published_benchmarks.builders import case_file
from tests.support.laws import examples

GLOBAL_BATCH = 24


def solve(file: CaseFile) -> PointResult:
    case = file.cases[0]
    return search_point(FormulaScorer(file, case.model, case.global_batch), case.points[0])


def within_quota(plan: BenchmarkPlan, point: CasePoint) -> bool:
    return all(count <= point.quota.get(key, 0) for key, count in plan.gpus_used().items())


def every_plan(file: CaseFile) -> Iterator[BenchmarkPlan]:
    """Yield every plan there is, replica by replica: the naive way, for a handful of accelerators only."""
    model, point = file.models["tiny"], file.cases[0].points[0]
    total = sum(point.quota.values())
    replicas = [ReplicaRun(gpu, tp, zone, 1) for zone, gpu in point.quota for tp in (1, 2)]
    for D in range(1, total + 1):
        for S in range(1, min(total // D, model.num_layers) + 1):
            for rows in itertools.product(replicas, repeat=S * D):
                stages = [BenchmarkStage(0, 0, rows[i * D : (i + 1) * D]) for i in range(S)]
                if not within_quota(BenchmarkPlan(1, tuple(stages)), point):
                    continue
                for cuts in itertools.combinations(range(1, model.num_layers), S - 1):
                    first = (0, *cuts, model.num_layers)
                    split = tuple(BenchmarkStage(first[i], first[i + 1] - 1, stages[i].runs) for i in range(S))
                    for mbs in (1, 2):
                        yield BenchmarkPlan(mbs, split)


def brute_force(file: CaseFile) -> float:
    goal, scorer = PointObjective.of(file.cases[0].points[0]), FormulaScorer(file, "tiny", GLOBAL_BATCH)
    scores = (scorer.score(plan) for plan in every_plan(file))
    return min((goal.value(score) for score in scores if goal.admits(score)), default=math.inf)


@pytest.mark.parametrize(
    ("quota", "point"),
    [
        pytest.param({"east-a": {"fast": 6}}, {}, id="one-zone"),
        pytest.param({"east-a": {"fast": 3}}, {}, id="odd-count"),
        pytest.param({"east-a": {"fast": 2}, "east-b": {"fast": 3}}, {}, id="two-zones"),
        pytest.param({"east-a": {"fast": 2}, "west-a": {"fast": 2}}, {}, id="two-regions"),
        pytest.param({"east-a": {"fast": 3, "slow": 3}}, {}, id="two-types"),
        pytest.param({"east-a": {"fast": 2}, "east-b": {"slow": 3}}, {}, id="a-type-a-zone"),
        pytest.param({"east-a": {"slow": 2}, "west-a": {"fast": 2}}, {}, id="a-type-a-region"),
        pytest.param({"east-a": {"fast": 1, "slow": 3}}, {}, id="mostly-slow"),
        pytest.param({"east-a": {"slow": 4}}, {}, id="memory-binds"),
        pytest.param({"east-a": {"fast": 2, "slow": 2}}, {"minimize": "cost_usd"}, id="cheapest"),
        pytest.param(
            {"east-a": {"fast": 2}, "east-b": {"fast": 2}},
            {"minimize": "cost_usd", "limits": {"min_iterations_per_s": 3.0}},
            id="cheapest-of-the-quick",
        ),
        pytest.param(
            {"east-a": {"fast": 2}, "east-b": {"fast": 2}},
            {"limits": {"max_cost_usd": 0.0015}},
            id="quickest-of-the-cheap",
        ),
    ],
)
def test_a_small_point_is_solved_as_well_as_by_trying_every_plan(
    tmp_path: Path, quota: dict[str, dict[str, int]], point: dict[str, Any]
) -> None:
    file = case_file(tmp_path, quota, layers=5, **point)
    answer = solve(file)
    best = brute_force(file)
    assert answer.score is not None, answer.reason
    assert PointObjective.of(file.cases[0].points[0]).value(answer.score) == pytest.approx(best, rel=1e-9)
    assert answer.bound is not None
    assert answer.bound <= best * (1 + 1e-9)


@examples(25)
@given(
    counts=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    minimize=st.sampled_from(("iteration_s", "cost_usd")),
    layers=st.integers(3, 9),
)
def test_any_plan_is_legal(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], minimize: str, layers: int
) -> None:
    a, b, c, d = counts
    quota = {"east-a": {"fast": a, "slow": b}, "east-b": {"fast": c}, "west-a": {"slow": d}}
    file = case_file(tmp_path_factory.mktemp("cases"), quota, layers=layers, minimize=minimize)
    answer, point = solve(file), file.cases[0].points[0]
    if answer.plan is None or answer.score is None:
        assert answer.reason
        return
    stages = answer.plan.stages
    assert within_quota(answer.plan, point)
    assert answer.score.fits_memory
    assert not answer.score.crosses_regions
    assert (stages[0].first, stages[-1].last) == (0, layers - 1)
    assert all(a.last + 1 == b.first for a, b in itertools.pairwise(stages))
    assert answer.score == FormulaScorer(file, "tiny", GLOBAL_BATCH).score(answer.plan)


def test_more_accelerators_are_never_slower(tmp_path: Path) -> None:
    times = []
    for count in (2, 4, 6, 8, 16, 32):
        answer = solve(case_file(tmp_path, {"east-a": {"fast": count}}))
        assert answer.score is not None
        times.append(answer.score.iteration_s)
    assert times == sorted(times, reverse=True)


def test_planning_again_after_a_shrink_uses_only_what_is_left(tmp_path: Path) -> None:
    file = case_file(tmp_path, {"east-a": {"fast": 128}})
    point = file.cases[0].points[0]
    used = []
    for count in (128, 32, 16):
        smaller = dataclasses.replace(point, quota={("east-a", "fast"): count})
        answer = search_point(FormulaScorer(file, "tiny", 256), smaller)
        assert answer.score is not None
        assert answer.score == search_point(FormulaScorer(file, "tiny", 256), smaller).score
        used.append(answer.score.gpus_used)
        assert used[-1] <= count
    assert used == sorted(used, reverse=True)


@pytest.mark.parametrize(
    ("quota", "point", "reason"),
    [
        pytest.param({"east-a": {"fast": 4}}, {"limits": {"max_cost_usd": 1e-9}}, "limits", id="too-dear"),
        pytest.param({"east-a": {"fast": 4}}, {"limits": {"min_iterations_per_s": 1e6}}, "limits", id="too-slow"),
        pytest.param({"east-a": {"unheard-of": 4}}, {}, "profile", id="unknown-type"),
        pytest.param({"east-a": {}}, {}, "profile", id="nothing-offered"),
        pytest.param({"east-a": {"slow": 1}}, {}, "memory", id="too-small"),
    ],
)
def test_what_cannot_be_met_is_a_reason_not_an_error(
    tmp_path: Path, quota: dict[str, dict[str, int]], point: dict[str, Any], reason: str
) -> None:
    answer = solve(case_file(tmp_path, quota, layers=12, **point))
    assert answer.plan is None
    assert reason in answer.reason
