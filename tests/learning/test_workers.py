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
    from strata.learning.checkpoint import Learning
    from strata.learning.ppo import Config

    return Learning(
        updates=1, lesson=1, table_envs=8, tables=2, exam_tables=1, exam_episodes=1, exam_steps=2, width=8,
        warm_start_tables=0, ppo=Config(steps=4, minibatches=2),
    )  # fmt: skip


@pytest.mark.real("torch", "ray")
def test_two_workers_on_ray_give_the_mean_of_their_gradients() -> None:
    import torch

    from strata.learning.learner import make_worker
    from strata.learning.network import Scorer
    from strata.learning.ppo import Scale
    from strata.learning.workers import ray_crew

    torch.manual_seed(0)
    make = partial(make_worker, _small(), "cpu")  # the workers import it, so it cannot be one of ours
    network = Scorer(width=8)
    scale, wanted, rewards = Scale(), [], []
    for number in range(2):
        worker = make(network, number)
        worker.begin(0)
        rewards.append(worker.play(0, scale).reward)
        worker.gradients(0, scale, only_critic=False)
        wanted.append([parameter.grad.clone() for parameter in network.parameters()])
    with ray_crew(network, make, workers=2, width=8) as crew:
        crew.begin(0)
        played = crew.play(0, scale)
        losses = crew.gradients(0, scale, only_critic=False)
        found = [parameter.grad.clone() for parameter in network.parameters()]
        crew.gradients(1, scale, only_critic=True)
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
    from strata.learning.workers import ray_crew

    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MissingPart, match="needs ray") as error,
        ray_crew(Scorer(width=8), lambda *_: None, workers=2, width=8),
    ):
        pass
    assert error.value.hint == "pip install 'strata-compute[train]'"


@pytest.mark.real("torch")
def test_one_worker_never_imports_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from strata.learning.learner import learn

    monkeypatch.setitem(sys.modules, "ray", None)  # an import of it now fails
    assert learn(_small(), tmp_path).update == 1
