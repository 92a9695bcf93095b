"""PPO on problems whose answer is known, and its parts by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from strata.arrays import Bools, Floats, Ints
from strata.learning.settings import PpoSettings
from strata.training.replan.options import Options

pytestmark = pytest.mark.real("torch")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small networks on several threads wait for each other, on a busy machine for minutes."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _options(value: Floats, current: Ints, cost: float, preference: tuple[float, ...] = (1, 0, 0)) -> Options:
    """Options whose value now is expected to stay."""
    rows, count = value.shape
    costs = np.full((rows, count), cost)
    costs[current >= 0, current[current >= 0]] = 0.0
    return Options(
        value=np.repeat(value[..., None], 5, axis=2),
        cost=costs,
        links=np.ones((rows, count, 4)),
        current=current,
        legal=np.ones((rows, count), dtype=bool),
        preference=np.tile(np.array(preference, dtype=float), (rows, 1)),
    )


class Bandit:
    """Three options; the one that looks worst is the only one that pays."""

    def __init__(self, num_envs: int, kind: str = "world") -> None:
        self.num_envs = num_envs
        self.kinds = ((kind, num_envs),)

    def reset(self, _rng: np.random.Generator) -> Options:
        return _options(np.tile([1.0, 0.99, 0.98], (self.num_envs, 1)), np.full(self.num_envs, -1), 0.0)

    def step(self, picks: Ints, rng: np.random.Generator) -> tuple[Options, Floats, Bools]:
        rewards = np.zeros((self.num_envs, 3))
        rewards[:, 0] = picks == 2
        return self.reset(rng), rewards, np.ones(self.num_envs, dtype=bool)


class KeepOrSwitch:
    """Two plans, one of them good: it earns 1, the other `low`; which one changes with chance `flip` a step.

    A switch costs 0.6. Keeping for ever earns (1 + low) / 2; always following the good one 1 - 0.6 flip.
    """

    def __init__(self, num_envs: int, *, low: float, flip: float) -> None:
        self.num_envs = num_envs
        self.kinds = (("world", num_envs),)
        self._low, self._flip = low, flip
        self._good = self._current = np.zeros(num_envs, dtype=np.int64)

    def reset(self, rng: np.random.Generator) -> Options:
        self._good, self._current = rng.integers(0, 2, (2, self.num_envs))
        return self._now()

    def step(self, picks: Ints, rng: np.random.Generator) -> tuple[Options, Floats, Bools]:
        rewards = np.zeros((self.num_envs, 3))
        rewards[:, 0] = np.where(picks == self._good, 1.0, self._low) - 0.6 * (picks != self._current)
        self._current = picks
        self._good = np.where(rng.random(self.num_envs) < self._flip, 1 - self._good, self._good)
        return self._now(), rewards, np.zeros(self.num_envs, dtype=bool)

    def _now(self) -> Options:
        return _options(np.where(np.arange(2) == self._good[:, None], 1.0, self._low), self._current, 0.6)


def _earned(env: Any, choose: Any, *, steps: int = 200) -> float:
    rng = np.random.default_rng(5)
    options, total = env.reset(rng), 0.0
    for _ in range(steps):
        options, rewards, _ = env.step(choose(options), rng)
        total += rewards[:, 0].mean()
    return total / steps


def _trained(make_env: Any, *, updates: int, is_taught: bool = False, **config: Any) -> Any:
    import torch

    from strata.learning import ppo
    from strata.learning.network import Scorer, greedy

    torch.manual_seed(0)
    # Less sure of the safe rule than usual: where it is wrong by a tenth of the value, it would never try.
    network, settings, scale = (
        Scorer(width=16),
        PpoSettings(**{"steps": 16, "critic_first": 2, **config}),
        ppo.Scale(),
    )
    with torch.no_grad():
        network.log_sharpness.fill_(math.log(10.0))
    optimizer = ppo.optimizer_of(network, settings)
    worker = ppo.Worker(network, make_env, settings, seed=(1,), taught=deepcopy(network) if is_taught else None)
    worker.begin(0)
    for number in range(updates):
        scale, _, _ = ppo.update(worker, optimizer, scale, settings, number=number, progress=number / updates)
    return greedy(network)


def test_a_bandit_that_hides_its_best_option_is_learnt() -> None:
    before = _earned(Bandit(16), _trained(lambda _number: Bandit(64), updates=0))
    after = _earned(Bandit(16), _trained(lambda _number: Bandit(64), updates=40))
    assert (before, after) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("low", "flip", "rule", "optimum"),
    [
        pytest.param(0.5, 0.5, 0.70, 0.75, id="switching-never-pays-where-the-safe-rule-switches"),
        pytest.param(0.8, 0.1, 0.90, 0.94, id="switching-pays-where-the-safe-rule-keeps"),
    ],
)
def test_keep_or_switch_is_learnt_where_the_safe_rule_is_wrong(
    low: float, flip: float, rule: float, optimum: float
) -> None:
    def make_env(_number: int) -> KeepOrSwitch:
        return KeepOrSwitch(64, low=low, flip=flip)

    assert _earned(make_env(0), _trained(make_env, updates=0)) == pytest.approx(rule, abs=0.015)
    assert _earned(make_env(0), _trained(make_env, updates=60)) == pytest.approx(optimum, abs=0.015)


def test_what_was_taught_on_tables_is_kept_and_worlds_are_learnt() -> None:
    earned = {
        kind: _earned(
            Bandit(16), _trained(lambda _number, kind=kind: Bandit(64, kind), updates=40, is_taught=True)
        )
        for kind in ("tables", "world")
    }
    assert earned == {"tables": 0.0, "world": 1.0}


def test_advantages_are_those_of_a_case_by_hand() -> None:
    import torch

    from strata.learning.ppo import gae

    rewards, values = torch.zeros(2, 2, 3), torch.zeros(3, 2, 3)
    rewards[:, :, 1] = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    values[:, :, 1] = torch.tensor([[0.5, 0.5], [1.0, 1.0], [2.0, 2.0]])
    done = torch.tensor([[False, True], [False, False]])
    found = gae(rewards, values, done, gamma=0.5, gae_lambda=0.5)
    # 2 + 0.5 x 2 - 1 = 2; 1 + 0.5 x 1 - 0.5 + 0.25 x 2 = 1.5; where it was cut 1 + 0.5 x 0.5 - 0.5 = 0.75
    assert found[:, :, 1].tolist() == [[1.5, 0.75], [2.0, 2.0]]
    assert not found[:, :, 0].any()
    assert not found[:, :, 2].any()


def test_advantages_are_centred_and_scaled_within_each_kind_of_problem() -> None:
    import torch

    from strata.learning.ppo import by_kind

    one, other = torch.randn(6, 4, 3), 100.0 + 50.0 * torch.randn(6, 2, 3)
    scaled = by_kind(torch.cat([one, other], dim=1), (("one", 4), ("other", 2)))
    for part in scaled.split([4, 2], dim=1):
        torch.testing.assert_close(part.mean(dim=(0, 1)), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(part.std(dim=(0, 1)), torch.ones(3))


def test_the_objective_that_falls_short_the_most_gets_the_weight() -> None:
    import torch

    from strata.learning.ppo import tchebycheff

    preference = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    value = torch.tensor([[9.0, -9.0, 0.0], [1.0, 0.0, -9.0], [0.0, 0.0, 1.9]])
    weights = tchebycheff(preference, value, augmentation=0.1)
    # Shortfalls of the second row are 0.5 and 1.0, of the third 0.4, 0.6 and 0.05.
    expected = [[1, 0, 0], [0.05 / 0.6, 0.55 / 0.6, 0], [0.02 / 0.4, 0.33 / 0.4, 0.05 / 0.4]]
    torch.testing.assert_close(weights, torch.tensor(expected))


class Noisy(Bandit):
    """A bandit whose other two objectives are noise nobody asked for."""

    def step(self, picks: Ints, rng: np.random.Generator) -> tuple[Options, Floats, Bools]:
        options, rewards, done = super().step(picks, rng)
        rewards[:, 1:] = np.random.default_rng(3).normal(size=(self.num_envs, 2))
        return options, rewards, done


def test_all_weight_on_efficiency_is_ordinary_ppo() -> None:
    import torch

    from strata.learning import ppo
    from strata.learning.network import Scorer

    found = []
    for env in (Bandit(32), Noisy(32)):
        torch.manual_seed(0)
        settings = PpoSettings(steps=8, value_weight=0.0)
        worker = ppo.Worker(Scorer(width=16), lambda _number, env=env: env, settings, seed=(1,))
        worker.play(0, ppo.Scale())
        losses = worker.gradients(0, ppo.Scale(), only_critic=False)
        found.append((losses.policy, worker.network.score.weight.grad))  # type: ignore[attr-defined]
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][1].any()


def test_first_the_critic_learns_alone() -> None:
    from strata.learning import ppo
    from strata.learning.network import Scorer

    network = Scorer(width=16)
    worker = ppo.Worker(network, lambda _number: Bandit(32), PpoSettings(steps=8), seed=(1,))
    worker.play(0, ppo.Scale())
    worker.gradients(0, ppo.Scale(), only_critic=True)
    moved = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    assert moved == {name for name, _ in network.named_parameters() if name.startswith("critic")}


def test_an_update_stops_where_the_policy_has_moved_far() -> None:
    import torch

    from strata.learning import ppo
    from strata.learning.network import Scorer

    torch.manual_seed(0)
    config = PpoSettings(steps=8, critic_first=0, epochs=10, learning_rate=0.5, clip=10.0)
    asked = []

    class Counting(ppo.Worker):
        def gradients(self, minibatch: int, scale: ppo.Scale, *, only_critic: bool) -> ppo.Losses:
            asked.append(minibatch)
            return super().gradients(minibatch, scale, only_critic=only_critic)

    network = Scorer(width=16)
    worker = Counting(network, lambda _number: Bandit(32), config, seed=(1,))
    ppo.update(worker, ppo.optimizer_of(network, config), ppo.Scale(), config, number=0, progress=0.0)
    assert 1 < len(asked) < config.epochs * config.minibatches


def test_decisions_of_different_sizes_are_padded_with_illegal_options() -> None:
    from strata.learning.network import Scorer, Seen

    rng = np.random.default_rng(0)
    small, large = (
        Seen.of(_options(rng.uniform(0.5, 1.0, (4, count)), np.zeros(4, dtype=np.int64), 0.3), "cpu")
        for count in (2, 5)
    )
    both = Seen.joined([small, large])
    network = Scorer(width=16)
    assert both.legal.sum(dim=1).tolist() == [2] * 4 + [5] * 4
    alone, padded = network(*small.parts()), network(*both.parts())
    np.testing.assert_allclose(padded[:4, :2].detach().numpy(), alone.detach().numpy(), rtol=1e-5)
    assert (padded[:4, 2:] < -1e8).all()


def test_running_decisions_by_width_changes_nothing() -> None:
    from strata.learning.network import Scorer, Seen, by_width

    rng = np.random.default_rng(0)
    parts = [
        Seen.of(_options(rng.uniform(0.5, 1.0, (3, count)), np.zeros(3, dtype=np.int64), 0.3), "cpu")
        for count in (7, 2, 5, 3)
    ]
    seen, network = Seen.joined(parts), Scorer(width=16)
    for found, wanted in zip(by_width(network, seen), network.both(*seen.parts()), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), wanted.detach().numpy(), rtol=1e-4, atol=1e-6)
