"""Stable-Baselines3's PPO on our environment, for `strata bench learn`. Needs stable-baselines3."""

# ruff: noqa: D102 - the methods are theirs, and documented there
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.policies import MultiInputActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnv

from strata.learning.network import Scorer
from strata.learning.ppo import Env
from strata.training.hi_ppo.features import features
from strata.training.replan.options import Options


class PeerEnv(VecEnv):  # type: ignore[misc]
    """Our environment as their vector environment: features made on the way, the scalar reward of efficiency."""

    def __init__(self, env: Env) -> None:
        self._env, self._rng = env, np.random.default_rng(0)
        self._options = env.reset(self._rng)
        seen = self._seen(self._options)
        boxes = {name: spaces.Box(-np.inf, np.inf, part.shape[1:], np.float32) for name, part in seen.items()}
        count = self._options.legal.shape[1]
        super().__init__(env.num_envs, spaces.Dict(boxes), spaces.Discrete(count))

    def _seen(self, options: Options) -> dict[str, Any]:
        of_option, of_decision = features(options)
        return {"features": of_option, "context": of_decision, "legal": options.legal.astype(np.float32)}

    def reset(self) -> dict[str, Any]:
        self._options = self._env.reset(self._rng)
        return self._seen(self._options)

    def step_async(self, actions: Any) -> None:
        # Their perceptron knows no masks: what is not legal keeps the plan in use.
        legal = self._options.legal[np.arange(self.num_envs), actions]
        self._picks = np.where(legal, actions, np.maximum(self._options.current, 0))

    def step_wait(self) -> Any:
        self._options, rewards, done = self._env.step(self._picks, self._rng)
        return self._seen(self._options), rewards[:, 0].astype(np.float32), done, [{} for _ in done]

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self._env, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("PPO never asks an environment for this")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("PPO never asks an environment for this")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class OurNetwork(MultiInputActorCriticPolicy):  # type: ignore[misc]
    """Their policy class around our network, which gives logits and the first of its values."""

    def _build(self, lr_schedule: Any) -> None:
        self.scorer = Scorer()
        self.optimizer = self.optimizer_class(self.scorer.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def forward(self, obs: Any, deterministic: bool = False) -> Any:
        chances = self._chances(obs)
        actions = chances.sample()
        return actions, self.predict_values(obs), chances.log_prob(actions)

    def evaluate_actions(self, obs: Any, actions: Any) -> Any:
        chances = self._chances(obs)
        return self.predict_values(obs), chances.log_prob(actions), chances.entropy()

    def predict_values(self, obs: Any) -> Any:
        return self.scorer.value(obs["features"], obs["context"], obs["legal"] > 0)[:, :1]

    def _chances(self, obs: Any) -> Any:
        logits = self.scorer(obs["features"], obs["context"], obs["legal"] > 0)
        return torch.distributions.Categorical(logits=logits, validate_args=False)


def peer(env: Env, *, device: str, steps: int, epochs: int, minibatches: int, weights: int | None) -> Any:
    """Return their PPO on an environment, with our network, or with a perceptron of about `weights` weights."""
    around = PeerEnv(env)
    policy, options = OurNetwork, {}
    if weights is not None:
        inputs = sum(int(np.prod(box.shape)) for box in around.observation_space.values())
        policy, options = MultiInputActorCriticPolicy, {"net_arch": _layers(inputs, weights)}
    return PPO(
        policy, around, n_steps=steps, batch_size=env.num_envs * steps // minibatches, n_epochs=epochs,
        gamma=0.97, gae_lambda=0.95, ent_coef=0.02, device=device, policy_kwargs=options, verbose=0,
    )  # fmt: skip


def _layers(inputs: int, weights: int) -> Sequence[int]:
    """Return two layers, which actor and critic have each, of about half the weights in all."""
    half = weights / 2
    width = (-inputs + np.sqrt(inputs**2 + 4 * half)) / 2  # inputs x width + width^2 = half
    return [max(1, round(float(width)))] * 2
