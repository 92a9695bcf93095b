"""What a training program may count on: a checkpoint is whole or it is none."""

import json

import pytest

from strata.training.program.client import Attempt, SupersededError, sample_range
from tests.training.program.launched import CHAIN, COPIES


def save(attempt, step, text="weights"):
    with attempt.saving(step) as folder:
        (folder / "part").write_text(text)


def test_without_a_scheduler_nothing_is_reported_and_nothing_resumed():
    attempt = Attempt.of({})
    attempt.report(1, loss=2.0)
    assert attempt.newest() is None
    assert attempt.launch() is None


def test_the_newest_complete_checkpoint_is_taken_up(tmp_path):
    attempt = Attempt(checkpoints=tmp_path)
    save(attempt, 5)
    save(attempt, 10)
    assert attempt.newest().step == 10


def test_one_that_was_not_finished_does_not_count(tmp_path):
    attempt = Attempt(checkpoints=tmp_path)
    save(attempt, 5)
    (attempt.begin(10) / "part").write_text("half")
    assert attempt.newest().step == 5


def test_one_that_lost_bytes_or_a_file_does_not_count(tmp_path):
    attempt = Attempt(checkpoints=tmp_path)
    for step in (5, 10):
        save(attempt, step)
    (tmp_path / "step-000000010" / "part").write_text("")
    assert attempt.newest().step == 5
    (tmp_path / "step-000000005" / "part").unlink()
    assert attempt.newest() is None


def test_a_marker_of_nonsense_is_none(tmp_path):
    attempt = Attempt(checkpoints=tmp_path)
    save(attempt, 5)
    for nonsense in ("", "[]", '{"files": 3}', '{"files": {"part": "x"}}'):
        (tmp_path / "step-000000005" / "complete.json").write_text(nonsense)
        assert attempt.newest() is None


def test_the_last_two_are_kept_and_halves_of_earlier_attempts_go(tmp_path):
    Attempt(checkpoints=tmp_path, number=1).begin(3)
    attempt = Attempt(checkpoints=tmp_path, number=2)
    for step in (5, 10, 15):
        save(attempt, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000010", "step-000000015"]


def test_an_attempt_that_saves_a_step_again_leaves_it_whole(tmp_path):
    save(Attempt(checkpoints=tmp_path, number=1), 5)
    save(Attempt(checkpoints=tmp_path, number=2), 5)
    assert Attempt(checkpoints=tmp_path).newest().step == 5


def test_rank_0_alone_reports_steps_and_any_rank_transfers(tmp_path):
    for rank in (0, 1):
        attempt = Attempt(rank=rank, progress=tmp_path / "progress", number=7)
        attempt.report(3, loss=0.5)
        attempt.report_transfer("a", "b", num_bytes=10, seconds=2.0)
    lines = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    assert [line.get("step") for line in lines] == [3, None, None]
    assert {line["attempt"] for line in lines} == {7}


def test_every_sample_of_a_step_is_one_ranks_whatever_the_plan():
    for plan in (CHAIN, COPIES):
        ranks = [{"pipeline": 0, "copy": copy} for copy in range(plan.pipelines[0].replicas)]
        launch = {"plan": plan.to_dict(), "ranks": ranks}
        assert [n for r in range(len(ranks)) for n in sample_range(launch, r)] == list(range(24))


def test_an_attempt_that_was_superseded_neither_begins_nor_saves(tmp_path):
    first, second = (Attempt(number=number, checkpoints=tmp_path) for number in (1, 2))
    assert first.newest() is None
    with first.saving(5) as folder:
        (folder / "a").write_text("1")
    half = first.begin(10)
    (half / "a").write_text("1")
    assert second.newest().step == 5
    with pytest.raises(SupersededError, match="attempt 2 has begun"):
        first.finish(10)
    with pytest.raises(SupersededError):
        first.newest()
    with second.saving(7) as folder:
        (folder / "a").write_text("2")
    assert Attempt(checkpoints=tmp_path).newest().step == 7
    assert not half.exists()
