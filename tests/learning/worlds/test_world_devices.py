"""Worlds whose arrays are torch's: the same figures as NumPy's, and on a device nothing that leaves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from strata.learning.settings import PpoSettings
from strata.learning.tables.environment import TableEnv
from strata.learning.tables.random_tables import random_table
from strata.learning.worlds.observe import options, state
from strata.learning.worlds.settings import PRESETS
from strata.learning.worlds.world import World
from strata.training.hi_ppo.features import features
from strata.training.replan import arrays
from tests.learning.worlds.worlds import pool

pytestmark = pytest.mark.real("torch")

BUSY = replace(
    PRESETS["multijob"], slots=3, jobs_per_hour=3.0, least_run_s=600.0, outages_per_day=5.0, preference=None
)
WORLDS = {**PRESETS, "busy": BUSY}
ENVS = 12


def _given(chance: Any, device: str | None) -> Any:
    """The same chance for both, in double precision, in which libraries agree to the last digits."""
    if is_dataclass(chance):
        return type(chance)(*(_given(getattr(chance, part.name), device) for part in fields(chance)))
    if chance is None:
        return None
    exact = chance.astype(np.float64) if chance.dtype.kind == "f" else chance
    return arrays.moved(exact, device)


def _figures(of: Any) -> Iterator[np.ndarray[Any, Any]]:
    """All arrays of a world's part."""
    if of is None:
        return
    if is_dataclass(of):
        for part in fields(of):
            yield from _figures(getattr(of, part.name))
    elif isinstance(of, (list, tuple)):
        for part in of:
            yield from _figures(part)
    else:
        yield np.asarray(of)


def _same(one: Any, other: Any, *, rtol: float) -> None:
    for a, b in zip(_figures(one), _figures(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=rtol, atol=rtol)


def _parts(world: World) -> tuple[Any, ...]:
    return (world.instance, world.time_s, world.waiting, world.turn, world.background, world.backlog_s, world.load,
            world.up, world.preference, world.jobs, world.links, world.free(), state(world))  # fmt: skip


@pytest.mark.parametrize("name", WORLDS)
def test_the_same_chance_and_picks_give_the_same_figures_as_with_numpy(name: str) -> None:
    settings, rng = replace(WORLDS[name], episode_steps=25), np.random.default_rng(0)
    host, there = (World(pool(), ENVS, settings=settings, device=device) for device in (None, "cpu"))
    chance = host.draw(rng, start=True)
    host.begin(_given(chance, None))
    there.begin(_given(chance, "cpu"))
    switched = 0
    for _ in range(60):
        mine, theirs = options(host), options(there)
        np.testing.assert_array_equal(theirs.legal, mine.legal)
        _same(mine, theirs, rtol=1e-6)
        _same(features(mine), features(theirs), rtol=1e-5)
        anything = (rng.random(mine.legal.shape) * mine.legal).argmax(axis=1)
        picks = np.where(rng.random(ENVS) < 0.5, anything, np.maximum(mine.current, 0))
        chance = host.draw(rng, start=host.begins)
        outcome = host.advance(picks, _given(chance, None))
        _same(outcome, there.advance(arrays.moved(picks, "cpu"), _given(chance, "cpu")), rtol=1e-9)
        _same(_parts(host), _parts(there), rtol=1e-9)
        switched += int(outcome.switched.sum())
    assert switched > 60


class Numpys:
    """The draws of NumPy's generator, as torch's arrays."""

    def __init__(self, seed: Any) -> None:
        self._rng = np.random.default_rng(seed)

    def random(self, size: Any, dtype: Any = None) -> Any:
        return self._single(self._rng.random(size, dtype=_dtype(dtype)))

    def standard_normal(self, size: Any, dtype: Any = None) -> Any:
        return self._single(self._rng.standard_normal(size, dtype=_dtype(dtype)))

    def standard_exponential(self, size: Any) -> Any:
        return self._single(self._rng.standard_exponential(size))

    def poisson(self, lam: Any, size: Any = None) -> Any:
        return self._single(self._rng.poisson(np.asarray(lam), size))

    def integers(self, low: int, high: Any, size: Any) -> Any:
        return self._single(self._rng.integers(low, high, size))

    def _single(self, drawn: Any) -> Any:
        return arrays.moved(np.asarray(drawn), "cpu")


def _dtype(dtype: Any) -> Any:
    return np.float64 if dtype is None else np.dtype(str(dtype).removeprefix("torch."))


def test_tables_answer_the_same_as_with_numpy() -> None:
    rng = np.random.default_rng(4)
    tables = [random_table(rng) for _ in range(4)]
    host, there = (TableEnv(tables, 12, steps=10, centred=True, device=device) for device in (None, "cpu"))
    mine_rng, their_rng = np.random.default_rng(1), Numpys(1)
    mine, theirs = host.reset(mine_rng), there.reset(their_rng)
    for _ in range(25):
        _same(mine, theirs, rtol=1e-9)
        picks = (rng.random(mine.legal.shape) * mine.legal).argmax(axis=1)
        mine, *earned = host.step(picks, mine_rng)
        theirs, *also = there.step(arrays.moved(picks, "cpu"), their_rng)
        _same(earned, also, rtol=1e-9)


def _mixture(device: str | None, names: Iterable[str], *, steps: int) -> Any:
    from strata.learning.curriculum import Mixture, WorldEnv, training_environment
    from strata.learning.settings import Curriculum

    worlds = [
        WorldEnv(pool(), 8, settings=replace(WORLDS[name], episode_steps=steps), device=device) for name in names
    ]
    tables = training_environment(0, seed=0, worker=0, curriculum=Curriculum(16, 4), device=device)
    return Mixture([tables, *worlds])


def test_a_policy_learns_the_same_as_with_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from strata.learning import ppo
    from strata.learning.network import Scorer

    monkeypatch.setattr(ppo, "draws", lambda seed, on: np.random.default_rng(seed) if on is None else Numpys(seed))
    config, learnt = PpoSettings(steps=12, critic_first=1), []
    for device in (None, "cpu"):
        torch.manual_seed(0)
        network, scale = Scorer(width=16), ppo.Scale()
        env = _mixture(device, ("diurnal", "stale", "busy"), steps=9)
        worker = ppo.Worker(network, lambda _number, env=env: env, config, seed=(3,), arrays=device)
        optimizer = ppo.optimizer_of(network, config)
        first = [parameter.detach().clone() for parameter in network.parameters()]
        for number in range(2):
            scale, played, losses = ppo.update(worker, optimizer, scale, config, number=number, progress=0.0)
        moved = [now.detach() - then for now, then in zip(network.parameters(), first, strict=True)]
        learnt.append((moved, played, losses))
    (mine, played, losses), (theirs, also, found) = learnt
    assert all(bool(one.any()) for one in mine)
    torch.testing.assert_close(theirs, mine, rtol=0.0, atol=2e-4)
    np.testing.assert_allclose(also.reward, played.reward, rtol=1e-6)
    assert found.value == pytest.approx(losses.value, rel=1e-4)


def test_draws_on_a_device_are_distributed_as_numpys() -> None:
    from strata.learning.draws import draws

    rng = draws(np.random.SeedSequence(0), "cpu")
    again = draws(np.random.SeedSequence(0), "cpu")
    uniform = rng.random((20_000,))
    assert bool((uniform == again.random((20_000,))).all())
    assert uniform.mean() == pytest.approx(0.5, abs=0.01)
    assert 0 <= float(uniform.min()) < float(uniform.max()) < 1
    assert rng.standard_normal((20_000,)).std() == pytest.approx(1.0, abs=0.02)
    assert rng.standard_exponential((20_000,)).mean() == pytest.approx(1.0, abs=0.03)
    assert rng.poisson(0.3, 20_000).double().mean() == pytest.approx(0.3, abs=0.02)
    levels = rng.integers(0, (2, 5), (20_000, 2))
    assert [sorted(set(column.tolist())) for column in levels.T] == [[0, 1], [0, 1, 2, 3, 4]]
    assert levels.double().mean(dim=0).tolist() == pytest.approx([0.5, 2.0], abs=0.05)


def test_a_rollout_and_what_is_learnt_from_it_stay_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA device that is only pretended: to ask it for a figure, or to mix it with the CPU's arrays, raises."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    from strata.learning import ppo
    from strata.learning.draws import draws
    from strata.learning.network import Scorer

    class Elsewhere(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seen: Counter[tuple[int, ...]] = Counter()

        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            answer = operation(*args, **(kwargs or {}))
            for part in tree_leaves((args, kwargs, answer)):
                if isinstance(part, torch.Tensor) and part.device.type != "cuda":
                    self.seen[tuple(part.shape)] += 1
            return answer

    class Generator:
        def __init__(self, device: str) -> None:
            assert device == "cuda"

        def manual_seed(self, _seed: int) -> None:
            return None

    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(arrays, "_PLACED", {})
    with FakeTensorMode():
        env = _mixture("cuda", ("seed30", "diurnal", "stale", "busy"), steps=3)
        with torch.device("cuda"):
            network = Scorer(width=16)
        worker = ppo.Worker(network, lambda _number: env, PpoSettings(steps=4), seed=(1,), device="cuda",
                            arrays="cuda")  # fmt: skip
        rng = draws(np.random.SeedSequence(0), "cuda")
        chosen = env.reset(rng)
        for number in range(5):
            with Elsewhere() as elsewhere, torch.no_grad():
                decided = worker._decide(chosen, None)
                chosen, _, _ = env.step(decided.picks, rng)
            # Constants are moved at the first step that needs them; then nothing comes or goes.
            assert number == 0 or not elsewhere.seen
        # What is told of an update is asked of the device when all is done; no gradient runs on a pretended one.
        monkeypatch.setattr(torch.Tensor, "numpy", lambda tensor: np.zeros(tensor.shape))
        monkeypatch.setattr(FakeTensor, "tolist", lambda tensor: [0.0] * len(tensor))
        worker.play(0, ppo.Scale())
        losses: list[Any] = []
        monkeypatch.setattr(torch.Tensor, "backward", lambda loss: losses.append(loss))
        worker.gradients(0, ppo.Scale(), only_critic=False)
        assert [loss.device.type for loss in losses] == ["cuda"]
