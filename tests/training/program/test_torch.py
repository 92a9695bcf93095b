"""The bundled trainer under torch: checkpoints are cut anew by torch.distributed.checkpoint for every plan."""

import signal

import pytest

from strata.training.program.client import STOPPED
from strata.workload.plan import Pipeline, Stage, TrainingPlan
from tests.training.program.launched import ALONE, CHAIN, Launched

TRAIN = ("strata.training.export.train",)
SHARDS = TrainingPlan((Pipeline((Stage("a", 0, 3, 2, 1), Stage("b", 3, 2, 1)), 1, 3),), 8)
"""Tensor parallel in the first stage, whole in the second: 24 samples, as the others have."""
STEPS = 8


@pytest.mark.real("torch")
def test_a_run_stopped_killed_and_cut_anew_has_the_losses_of_one_that_was_not(tmp_path):
    whole = Launched(tmp_path / "whole", steps=STEPS, command=TRAIN)
    whole.folder.mkdir()
    whole.start(ALONE)
    assert whole.wait() == [0]
    run = Launched(tmp_path, steps=STEPS, command=TRAIN)
    run.hold(2)
    run.start(SHARDS)
    run.until(2)
    for process in run.processes:
        process.send_signal(signal.SIGTERM)
    assert set(run.wait()) == {STOPPED}
    run.save_every = 1
    run.hold(5)
    run.start(CHAIN)
    run.until(5)
    run.processes[1].kill()
    run.release()
    assert 0 not in run.wait()
    run.start(SHARDS)
    assert set(run.wait()) == {0}
    assert run.steps_of(2)[0] == run.steps_of(1)[-1] + 1
    assert run.losses() == pytest.approx(whole.losses(), abs=2e-5)
