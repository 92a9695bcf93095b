"""What moves when plans change: the layers that domains really hold."""

from strata.training.replan.relocation import relocation_costs
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.support.builders import domain, fleet, job, layers


def test_interleaving_moves_the_layers_that_lie_elsewhere_then():
    pipeline = Pipeline((Stage("a", 0, 5, 1), Stage("b", 5, 5, 1)), 1, 4)
    plans = [TrainingPlan((pipeline,), 1, virtual_stages=count) for count in (1, 2)]
    seconds, _, moves = relocation_costs(fleet(domain("a"), domain("b")), job(layers(10)), plans)
    assert moves.tolist() == [[False, True], [True, False]]
    assert seconds[0, 1] > 0
