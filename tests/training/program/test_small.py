"""The real small run without torch: whatever stops it, it goes on as if nothing had."""

import signal

import pytest

from strata.training.program.client import STOPPED
from tests.training.program.launched import ALONE, CHAIN, COPIES, Launched

pytestmark = pytest.mark.long("starts processes of their own for every rank")
STEPS = 12


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    run = Launched(tmp_path_factory.mktemp("whole"), steps=STEPS)
    run.start(ALONE)
    assert run.wait() == [0]
    return run.losses()


def test_it_learns(uninterrupted):
    assert list(uninterrupted) == list(range(1, STEPS + 1))
    assert uninterrupted[STEPS] < uninterrupted[1]


@pytest.mark.parametrize("plan", [CHAIN, COPIES], ids=["pipeline", "copies of pipelines"])
def test_however_it_is_cut_the_losses_are_the_same(uninterrupted, tmp_path, plan):
    run = Launched(tmp_path, steps=STEPS)
    run.start(plan)
    assert set(run.wait()) == {0}
    assert run.losses() == pytest.approx(uninterrupted, abs=1e-9)


def test_on_sigterm_it_saves_and_another_plan_goes_on_with_the_next_step(uninterrupted, tmp_path):
    run = Launched(tmp_path, steps=STEPS)
    for plan, step in ((CHAIN, 4), (COPIES, 8)):
        run.hold(step)
        run.start(plan)
        run.until(step)
        for process in run.processes:
            process.send_signal(signal.SIGTERM)
        assert set(run.wait()) == {STOPPED}
    run.release()
    run.start(ALONE)
    assert run.wait() == [0]
    done = [step for attempt in (1, 2, 3) for step in run.steps_of(attempt)]
    assert done == list(range(1, STEPS + 1))
    assert run.losses() == pytest.approx(uninterrupted, abs=1e-9)


def test_when_a_rank_is_killed_the_others_end_and_the_last_checkpoint_goes_on(uninterrupted, tmp_path):
    run = Launched(tmp_path, steps=STEPS, save_every=3)
    run.hold(4)
    run.start(CHAIN)
    run.until(4)
    run.processes[1].kill()
    run.release()
    assert 0 not in run.wait()
    run.start(COPIES)
    assert set(run.wait()) == {0}
    assert run.steps_of(2)[0] % 3 == 1
    assert run.losses() == pytest.approx(uninterrupted, abs=1e-9)
