"""What moves when plans change: the layers that domains really hold."""

import pytest

from strata.training.replan.relocation import relocation_costs
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers, tied


def test_interleaving_moves_the_layers_that_lie_elsewhere_then():
    pipeline = Pipeline((Stage("a", 0, 5, 1), Stage("b", 5, 5, 1)), 1, 4)
    plans = [TrainingPlan((pipeline,), 1, virtual_stages=count) for count in (1, 2)]
    seconds, _, moves = relocation_costs(fleet(domain("a"), domain("b")), job(layers(10)), plans)
    assert moves.tolist() == [[False, True], [True, False]]
    assert seconds[0, 1] > 0


def test_a_tied_table_moves_once_to_where_the_embedding_and_the_head_are_and_again_to_a_head_alone():
    alone = Pipeline((Stage("a", 0, 12, 1),), 1, 4)
    halves = Pipeline((Stage("a", 0, 6, 1), Stage("b", 6, 6, 1)), 1, 4)
    back = Pipeline((Stage("b", 0, 6, 1), Stage("c", 6, 6, 1)), 1, 4)
    plans = [TrainingPlan((pipeline,), 1) for pipeline in (alone, halves, back)]
    place = fleet(domain("a"), domain("b"), domain("c"), gbps=8.0, ms=0.0)
    table = layers(10, mparams=100.0)

    def seconds(asked):
        return relocation_costs(place, asked, plans)[0]

    # 40 million of the embedding's 100 million parameters are the table: 80 MB of 2 bytes each at 1 GB/s.
    more = seconds(job(tied(table, 40e6))) - seconds(job(table))
    assert more[0, 1] == pytest.approx(0.08)  # b gets the head, which needs a table
    assert more[1, 2] == pytest.approx(0.08)  # c does; b, which had one, needs the rest of the embedding alone
    assert more[1, 0] == 0.0  # a has the table
