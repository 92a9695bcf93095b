"""strata/WanReplan-v0: the conventions of Gymnasium's vector environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from strata.errors import UsageError
from strata.learning.worlds import WAN_REPLAN, register
from strata.learning.worlds.settings import PRESETS
from tests.learning.worlds.worlds import pool


def make(envs=4, **more):
    register()
    return gymnasium.make_vec(WAN_REPLAN, num_envs=envs, pool=pool(), **more)


@pytest.mark.parametrize("preset", PRESETS)
def test_observations_rewards_and_ends_have_the_shapes_and_types_of_their_spaces(preset):
    env = make(preset=preset, settings={"episode_steps": 3})
    seen, info = env.reset(seed=1)
    for _ in range(6):
        assert seen in env.observation_space
        assert seen[0] in env.single_observation_space
        assert np.isfinite(seen).all()
        assert info["action_mask"].shape == (4, env.single_action_space.n)
        picks = info["action_mask"].argmax(axis=1)
        assert picks in env.action_space
        seen, rewards, terminated, truncated, info = env.step(picks)
        assert rewards.shape == terminated.shape == truncated.shape == (4,)
        assert terminated.dtype == truncated.dtype == np.bool_
        np.testing.assert_allclose(info["reward_vector"] @ [1.0, 0.0, 0.0], rewards)
    env.close()


def test_an_episode_is_truncated_and_the_next_step_only_begins_another():
    env = make(settings={"episode_steps": 2})
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.reset(seed=1)
    ends, begins, rewards = [], [], []
    for _ in range(4):
        _, reward, terminated, truncated, info = env.step(np.ones(4, dtype=np.int64))
        assert not terminated.any()
        ends.append(bool(truncated.all()))
        begins.append(bool(info["reset"].all()))
        rewards.append(float(reward.sum()))
    assert ends == [False, True, False, False]
    assert begins == [False, False, True, False]
    assert rewards[2] == 0.0


def test_the_same_seed_gives_the_same_episode():
    env = make()
    runs = []
    for _ in range(2):
        seen, _ = env.reset(seed=11)
        parts = [seen, *(env.step(np.ones(4, dtype=np.int64))[0] for _ in range(4))]
        runs.append(np.stack(parts))
    np.testing.assert_array_equal(*runs)
    assert not np.array_equal(runs[0][0], env.reset(seed=12)[0])


def test_an_action_that_is_not_legal_counts_as_no_change():
    env = make(envs=1)
    env.reset(seed=0)
    _, _, _, _, info = env.step(np.array([1]))
    assert not info["action_mask"][0, 0]
    env.step(np.array([0]))
    assert env.unwrapped.world.jobs.plan[0, 0] == 1


def test_what_cannot_be_used_is_said():
    with pytest.raises(UsageError, match="no world is named"):
        make(preset="storm")
    env = make()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(4, dtype=np.int64))
    env.reset(seed=0)
    with pytest.raises(UsageError, match="whole numbers"):
        env.step(np.full(4, 99))
