from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.evaluation.published_benchmarks.formulas import FormulaScorer
from strata.evaluation.published_benchmarks.plan import BenchmarkPlan, BenchmarkStage, ReplicaRun
from strata.evaluation.published_benchmarks.search.layer_split import SplitBatch, Splitter
from strata.evaluation.published_benchmarks.search.stage_kinds import KindTable, QuotaPools, Rings
from strata.evaluation.published_benchmarks.search.structures import StructureBounds, Structures, most_replicas
from tests.evaluation.published_benchmarks.builders import case_file
from tests.support.laws import examples

LAYERS = 9
QUOTA = {"east-a": {"fast": 16, "slow": 16}, "west-a": {"fast": 16}}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> KindTable:
    file = case_file(tmp_path_factory.mktemp("cases"), QUOTA, layers=LAYERS)
    return KindTable(FormulaScorer(file, "tiny", 64), QuotaPools(file.cases[0].points[0].quota), 2)


def batch_of(kinds: tuple[int, ...], replicas: int, copies: int = 1) -> SplitBatch:
    return SplitBatch(
        np.tile(np.array(kinds), (copies, 1)), np.full(copies, replicas), np.full(copies, -(-32 // replicas))
    )


@examples(60)
@given(data=st.data())
def test_no_split_of_a_short_pipeline_is_better_than_the_one_found(table: KindTable, data: st.DataObject) -> None:
    kinds = tuple(data.draw(st.lists(st.integers(0, len(table.kinds) - 1), min_size=1, max_size=4)))
    replicas, S = data.draw(st.sampled_from((1, 2, 4, 8))), len(kinds)
    splitter = Splitter(table, Rings(table))
    cuts = [(0, *cut, LAYERS) for cut in itertools.combinations(range(1, LAYERS), S - 1)]
    every = splitter.iteration_s(batch_of(kinds, replicas, len(cuts)), np.array(cuts))
    time, first = splitter.best(batch_of(kinds, replicas), keep_within_s=np.array([np.inf]))
    assert time[0] == pytest.approx(every.min(), rel=1e-9)
    if np.isfinite(time[0]):
        assert splitter.iteration_s(batch_of(kinds, replicas), first)[0] == time[0]
        structure = Structures(np.array([kinds]).T, np.ones((S, 1), dtype=np.int64))
        bounds, nb = StructureBounds(table), -(-32 // replicas)
        if len(set(kinds)) == S:  # kinds of a structure are distinct
            least = (nb - 1) * bounds.busiest_s(structure) + bounds.pipeline_s(structure)
            assert least[0] <= time[0] * (1 + 1e-9)


def test_where_a_region_has_one_zone_the_estimate_is_the_score(table: KindTable) -> None:
    kinds = tuple(k for k, kind in enumerate(table.kinds) if len(kind.parts) == 1)[:3]
    first = np.array([[0, 2, 5, LAYERS]])
    estimate = Splitter(table, Rings(table)).iteration_s(batch_of(kinds, 4), first)[0]
    parts = [(table.kinds[k].region + "-a", *table.kinds[k].parts[0]) for k in kinds]
    stages = tuple(
        BenchmarkStage(int(a), int(b) - 1, (ReplicaRun(gpu, tp, zone, 4),))
        for (zone, gpu, tp), a, b in zip(parts, first[0], first[0][1:], strict=False)
    )
    assert table.scorer.score(BenchmarkPlan(2, stages)).iteration_s == pytest.approx(estimate, rel=1e-12)


def test_a_mixed_stage_draws_on_both_pools(table: KindTable) -> None:
    mixed = int(np.flatnonzero(table.is_mixed)[0])
    one = Structures(np.array([[mixed]]), np.array([[1]]))
    two = Structures(np.array([[mixed]]), np.array([[2]]))
    replicas = most_replicas(table, one)[0]
    assert replicas == sum(16 // part.tp for part in table.kinds[mixed].parts)
    assert most_replicas(table, two)[0] == replicas // 2


def test_memory_decides_how_many_layers_an_early_stage_holds(table: KindTable, tmp_path: Path) -> None:
    assert (np.diff(table.last_fitting, axis=1) <= 0).all()  # more stages left, more microbatches held
    file = case_file(tmp_path, {"east-a": {"fast": 4}}, layers=LAYERS)
    scorer = FormulaScorer(file, "tiny", 64)
    alone = KindTable(scorer, QuotaPools(file.cases[0].points[0].quota), 2)
    for left in range(1, 5):
        last = int(alone.last_fitting[0, left, 1])
        need = [
            scorer.memory_bytes(1, b, alone.kinds[0].parts[0].tp, mbs=2, stages_left=left)
            for b in (last, last + 1)
        ]
        room = file.gpus["fast"].memory_bytes
        assert last == LAYERS - 1 or need[0] <= room < need[1]
