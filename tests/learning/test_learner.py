"""Training runs: the same seed gives the same weights, a resumed run the same as one that was not stopped."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.errors import BadFile, UsageError
from tests.learning.worlds.worlds import pool as fleets

pytestmark = pytest.mark.real("torch")


def _small(**changes: Any) -> Any:
    from strata.learning.settings import ImitationSettings, LearningSettings, PpoSettings

    settings = LearningSettings(
        updates=4, updates_per_evaluation=2, table_envs=16, tables=4, evaluation_tables=3, evaluation_episodes=2,
        evaluation_steps=4, width=8, warm_start_tables=0,
        imitation=ImitationSettings(rounds=1, episodes=2, steps=4, batch=16, still=16),
        ppo=PpoSettings(steps=4, critic_first=0),
    )  # fmt: skip
    return replace(settings, **changes)


def _learn(out: Path, learning: Any = None, **more: Any) -> Any:
    from strata.learning.learner import learn

    return learn(learning or _small(), out, **more)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(bool((one[name] == other[name]).all()) for name in one)


def test_the_same_seed_gives_the_same_weights_bit_for_bit(tmp_path: Path) -> None:
    told = _small(warm_start_tables=2)
    first, second = _learn(tmp_path / "a", told), _learn(tmp_path / "b", told)
    other = _learn(tmp_path / "c", replace(told, seed=1))
    assert _same(first.weights, second.weights)
    assert not _same(first.weights, other.weights)


def test_a_resumed_run_ends_with_the_weights_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole = _learn(tmp_path / "whole")
    ticks = count()

    def clock() -> float:
        return float(next(ticks))

    # Of the five readings of the clock before the third update, the limit leaves room for no sixth.
    cut = _learn(tmp_path / "cut", minutes=9.5 / 60, clock=clock)
    assert (cut.ended, cut.update) == ("minutes", 2)
    resumed = _learn(tmp_path / "cut", resume=True)
    assert (resumed.ended, resumed.update) == ("updates", 4)
    assert _same(whole.weights, resumed.weights)
    assert [p.mean_gap for p in whole.curve] == [p.mean_gap for p in resumed.curve]


def test_a_limit_that_imitation_alone_passes_says_what_it_takes(tmp_path: Path) -> None:
    ticks = count(step=60)
    told = _small(warm_start_tables=2)
    told = replace(told, imitation=replace(told.imitation, rounds=8))
    with pytest.raises(UsageError, match="1 of 8 rounds of imitation") as refused:
        _learn(tmp_path, told, minutes=1.5, clock=lambda: float(next(ticks)))
    assert refused.value.hint == "--minutes 9 or more: imitation alone takes 8.0 here"
    assert not list(tmp_path.iterdir())


def test_a_run_ends_when_evaluations_bring_nothing_better(tmp_path: Path) -> None:
    from strata.learning.settings import PpoSettings

    # Only the critic learns, so every evaluation is as good as the first.
    run = _learn(tmp_path, _small(updates=100, patience=2, ppo=PpoSettings(steps=4, critic_first=100)))
    assert (run.ended, run.update, run.best_point.update) == ("patience", 4, 0)


def test_what_is_interrupted_leaves_its_best_policy(tmp_path: Path) -> None:
    from strata.learning.checkpoint import read_checkpoint

    def stop(said: Any) -> None:
        if said.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _learn(tmp_path, report=stop)
    kept = read_checkpoint(tmp_path / "checkpoint.pt")
    assert (kept.update, kept.ended) == (2, "")
    kept.network()


def test_a_checkpoint_is_not_overwritten_unasked(tmp_path: Path) -> None:
    _learn(tmp_path)
    with pytest.raises(UsageError, match="already exists"):
        _learn(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "not a checkpoint", id="empty"),
        pytest.param(b"PK\x03\x04 and then nothing", "not a checkpoint", id="half-a-zip"),
        # A letter is an instruction of pickle: torch.load raised IndexError on "apiVersion".
        pytest.param(b"apiVersion: strata/v1alpha1\nkind: Fleet\n", "not a checkpoint", id="a-fleet-file"),
        pytest.param(pickle.dumps(Path("/")), "not a checkpoint", id="a-pickle"),
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    from strata.learning.checkpoint import read_checkpoint

    file = tmp_path / "checkpoint.pt"
    file.write_bytes(content)
    with pytest.raises(BadFile, match=said) as caught:
        read_checkpoint(file)
    assert "weights_only" not in str(caught.value)  # PyTorch's advice is to load it without safeguards


class _Intruder:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_a_checkpoint_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    import torch

    from strata.learning.checkpoint import FORMAT, read_checkpoint

    file, mark = tmp_path / "checkpoint.pt", tmp_path / "it-ran"
    torch.save({"format": FORMAT, "learning": _Intruder(mark)}, file)
    with pytest.raises(BadFile, match="a damaged one") as caught:
        read_checkpoint(file)
    assert "weights_only" not in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize("key", ["learning", "curve", "scale", "weights"])
def test_a_checkpoint_with_a_part_missing_is_refused(tmp_path: Path, key: str) -> None:
    import torch

    from strata.learning.checkpoint import read_checkpoint

    file = tmp_path / "checkpoint.pt"
    _learn(tmp_path)
    content = torch.load(file, weights_only=True)
    del content[key]
    torch.save(content, file)
    with pytest.raises(BadFile, match="parts missing"):
        read_checkpoint(file)


def test_a_checkpoint_of_another_version_is_refused(tmp_path: Path) -> None:
    import torch

    from strata.learning.checkpoint import read_checkpoint

    torch.save({"format": "strata-hi-ppo-0"}, tmp_path / "checkpoint.pt")
    with pytest.raises(BadFile, match="another version"):
        read_checkpoint(tmp_path / "checkpoint.pt")


def test_evaluations_are_the_same_for_all_and_rounds_never_repeat() -> None:
    from strata.learning.curriculum import training_environment
    from strata.learning.evaluation import Evaluation
    from strata.learning.settings import Curriculum

    first, second = (Evaluation.of(2, episodes=2, steps=3) for _ in range(2))
    assert np.array_equal(first.paths, second.paths)
    curriculum = Curriculum(4, 2)
    played = [
        training_environment(n, seed=s, worker=w, curriculum=curriculum)
        for n, s, w in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    rewards = [table.reward for env in played for table in env.tables] + [t.reward for t in first.tables]  # type: ignore[attr-defined]
    assert len({reward.tobytes() for reward in rewards}) == len(rewards)


def test_the_exact_policy_closes_the_whole_gap_and_the_myopic_rule_none() -> None:
    from strata.learning.evaluation import Evaluation
    from strata.training.replan import rules

    score = Evaluation.of(3, episodes=4, steps=8).score(rules.myopic)
    assert score.closed == pytest.approx(0.0, abs=1e-9)
    assert score.worst_gap >= score.mean_gap


def test_tables_and_worlds_are_played_side_by_side() -> None:
    from strata.learning.curriculum import Mixture, WorldEnv, training_environment
    from strata.learning.settings import Curriculum
    from strata.learning.worlds.pool import make_pool
    from strata.learning.worlds.settings import WorldSettings

    pool = make_pool(0, instances=1, domains=(3, 3), shares=(1.0,), options=6, calm=1.0)
    world = WorldEnv(pool, 3, settings=WorldSettings(episode_steps=2, preference=(0.2, 0.3, 0.5)))
    env = Mixture([training_environment(0, seed=0, worker=0, curriculum=Curriculum(4, 2)), world])
    rng = np.random.default_rng(0)
    options = env.reset(rng)
    assert options.preference.tolist() == [[1, 0, 0]] * 4 + [[0.2, 0.3, 0.5]] * 3
    done = []
    for _ in range(4):
        options, rewards, is_cut = env.step(options.legal.argmax(axis=1), rng)
        done.append(is_cut.tolist())
        assert rewards.shape == (7, 3)
        assert len(options) == env.num_envs == 7
    assert done == [[False] * 7, [False] * 4 + [True] * 3] * 2
    assert env.kinds == (("tables", 4), ("world", 3))


@pytest.mark.parametrize("preset", ["regimes_4_jobs", "stale"])
def test_rewards_are_less_what_the_safe_rule_earns_under_the_same_chance(preset: str) -> None:
    from strata.learning.curriculum import WorldEnv
    from strata.learning.worlds.settings import PRESETS
    from strata.training.replan import rules

    rewards = {}
    for name, rule in (("safe", rules.hysteresis()), ("never", rules.keep)):
        settings = replace(PRESETS[preset], episode_steps=60)
        world, rng = WorldEnv(fleets(), 6, settings=settings), np.random.default_rng(0)
        options, rewards[name] = world.reset(rng), np.zeros((6, 3))
        for _ in range(60):
            options, reward, done = world.step(rule(options), rng)
            rewards[name] += reward
        assert done.all()
    assert np.abs(rewards["safe"]).max() < 1e-9
    assert np.abs(rewards["never"][:, 0]).max() > 0.1


def test_worlds_count_in_the_score_and_what_imitation_left_on_tables_is_kept(tmp_path: Path) -> None:
    told = _small(
        updates=2, warm_start_tables=2, worlds=("regimes",), world_envs=4, world_instances=1,
        evaluation_instances=1,
    )  # fmt: skip
    run = _learn(tmp_path / "a", told)
    assert all(point.missed == point.mean_gap - point.worlds for point in run.curve)
    forgetful = _learn(tmp_path / "b", replace(told, ppo=replace(told.ppo, keep=0.0)))
    assert not _same(run.weights, forgetful.weights)


def test_a_world_of_the_evaluation_tells_a_random_policy_from_the_better_fixed_rule() -> None:
    from strata.learning.evaluation import WorldEvaluation
    from strata.training.replan import rules

    evaluation = WorldEvaluation.of("regimes", instances=1, episodes=4, steps=16)
    assert evaluation.earned(rules.random(np.random.default_rng(0))).mean() < evaluation.rule
    both = [evaluation.earned(rule).mean() for rule in (rules.hysteresis(), rules.mpc())]
    assert max(both) == evaluation.rule


def test_the_bundled_recipe_is_a_training_file() -> None:
    from strata.learning.schema import RECIPE, load_learning

    told = load_learning(RECIPE)
    assert told.worlds
    assert told.warm_start_tables
