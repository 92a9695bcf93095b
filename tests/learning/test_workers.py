"""Several workers on Ray answer as one."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strata.errors import MissingPart


def _small() -> Any:
    from strata.learning.settings import LearningSettings, PpoSettings

    return LearningSettings(
        updates=1, updates_per_evaluation=1, table_envs=8, tables=2, evaluation_tables=1, evaluation_episodes=1,
        evaluation_steps=2, width=8, warm_start_tables=0, ppo=PpoSettings(steps=4, minibatches=2),
    )  # fmt: skip


@pytest.mark.real("torch", "ray")
def test_two_workers_on_ray_give_the_mean_of_their_gradients() -> None:
    import torch

    from strata.learning.learner import make_worker
    from strata.learning.network import Scorer
    from strata.learning.ppo import Scale
    from strata.learning.workers import ray_workers

    torch.manual_seed(0)
    make = partial(make_worker, _small(), "cpu", None)  # the workers import it, so it cannot be one of ours
    network = Scorer(width=8)
    scale, wanted, rewards = Scale(), [], []
    for number in range(2):
        worker = make(network, number)
        worker.begin(0)
        rewards.append(worker.play(0, scale).reward)
        worker.gradients(0, scale, only_critic=False)
        wanted.append([parameter.grad.clone() for parameter in network.parameters()])
    with ray_workers(network, make, workers=2, width=8) as workers:
        workers.begin(0)
        played = workers.play(0, scale)
        losses = workers.gradients(0, scale, only_critic=False)
        found = [parameter.grad.clone() for parameter in network.parameters()]
        workers.gradients(1, scale, only_critic=True)
        learns = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    assert played.steps == 2 * 8 * 4
    assert np.allclose(played.reward, np.mean(rewards, axis=0))
    assert losses.kl == pytest.approx(0.0, abs=1e-5)
    for mine, one, other in zip(found, *wanted, strict=True):
        torch.testing.assert_close(mine, (one + other) / 2, rtol=1e-4, atol=1e-6)
    assert learns == {name for name, _ in network.named_parameters() if name.startswith("critic")}


@pytest.mark.real("torch")
def test_without_ray_several_workers_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.learning.network import Scorer
    from strata.learning.workers import ray_workers

    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MissingPart, match="needs ray") as error,
        ray_workers(Scorer(width=8), lambda *_: None, workers=2, width=8),
    ):
        pass
    assert error.value.hint == "pip install -e '.[train]', in a clone of strata"


@pytest.mark.real("torch")
def test_one_worker_never_imports_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.learning.learner import learn

    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it now fails
    assert learn(_small(), tmp_path).update == 1
