"""`strata/WanReplan-v0`: the simulated world as a Gymnasium vector environment, for other people's agents.

A thin adapter: `World` steps, `observe` looks. Episodes end by truncation; the next begins at the following step,
whose action is ignored (NEXT_STEP).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from strata.arrays import Floats
from strata.errors import UsageError
from strata.learning.worlds import observe
from strata.learning.worlds.pool import Pool, make_pool
from strata.learning.worlds.settings import PRESETS
from strata.learning.worlds.world import World
from strata.training.replan.arrays import Bools
from strata.training.replan.options import HORIZONS, LINK_FEATURES, Options

Info = dict[str, Any]
Singles = NDArray[np.float32]

PER_OPTION: Final = len(HORIZONS) + 1 + len(LINK_FEATURES) + 2
"""Value at each horizon, cost, link features, in use, legal."""


class WanReplanEnv(VectorEnv[Singles, Any, Any]):  # type: ignore[misc]
    """N environments; one step is one interval, in which one job may change its plan.

    Action: Discrete(P), an option of the job in turn; one that is not legal counts as no change. Observation: Box
    of P x PER_OPTION + 2 K² + 4 K + 7: options; bandwidth and latency over their nominal mean; per domain
    utilisation, memory, queue (log(1 + jobs)) and load; preference, jobs that wait (log), part of the episode
    gone, work left and time to the deadline of the job in turn (log(1 + steps), 0 for none). Reward: preference
    · (efficiency, utilisation, -communication cost). `info` holds `reward_vector` [N, 3], `action_mask` [N, P] and
    `reset` [N] (the step only began an episode; `reset()` itself has no reward).

    preset: a name of `PRESETS`; settings: what of it to change. pool: instances, or None to make some.
    Raises UsageError for a preset that does not exist.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        *,
        preset: str = "regimes",
        pool: Pool | None = None,
        pool_seed: int = 0,
        instances: int = 16,
        domains: tuple[int, int] = (4, 8),
        settings: dict[str, Any] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if preset not in PRESETS:
            raise UsageError(f"no world is named {preset!r}", hint=f"one of {', '.join(PRESETS)}")
        self.num_envs, self.render_mode = num_envs, render_mode
        pool = pool or make_pool(pool_seed, instances=instances, domains=domains)
        self.world = World(pool, num_envs, settings=replace(PRESETS[preset], **(settings or {})))
        size = pool.num_options * PER_OPTION + 2 * pool.num_domains**2 + 4 * pool.num_domains + 7
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.single_action_space = spaces.Discrete(pool.num_options)
        self.observation_space = spaces.Box(-np.inf, np.inf, (num_envs, size), np.float32)
        self.action_space = spaces.MultiDiscrete([pool.num_options] * num_envs)
        self._options: Options | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Singles, Info]:
        """Begin an episode everywhere. All chance comes from the generator `seed` starts; there are no options."""
        super().reset(seed=seed)
        self.world.reset(self.np_random)
        return self._look(), {"action_mask": self._legal()}

    def step(self, actions: Any) -> tuple[Singles, Any, Any, Any, Info]:
        """Run one interval."""
        if self._options is None:
            raise gymnasium.error.ResetNeeded("call reset() before step()")
        picks = np.asarray(actions)
        if not self.action_space.contains(picks):
            most = self.world.pool.num_options - 1
            raise UsageError(f"actions must be {self.num_envs} whole numbers from 0 to {most}")
        legal = self._options.legal[np.arange(self.num_envs), picks]
        outcome = self.world.step(np.where(legal, picks, 0), self.np_random)
        seen = self._look()
        info = {"reward_vector": outcome.reward, "action_mask": self._legal(), "reset": outcome.started}
        return seen, outcome.scalar, np.zeros(self.num_envs, dtype=bool), outcome.ended, info

    def _legal(self) -> Bools:
        assert self._options is not None
        return self._options.legal

    def _look(self) -> Singles:
        world = self.world
        self._options = choices = observe.options(world)
        state, n, pool = observe.state(world), self.num_envs, world.pool
        current = np.arange(pool.num_options) == choices.current[:, None]
        flags = (choices.cost[..., None], choices.links, current[..., None], choices.legal[..., None])
        wide, late = (_relative(part) for part in (state.bandwidth, state.latency))
        waiting = state.jobs[np.arange(n), state.turn]
        gone = np.full(n, world.step_index / world.settings.episode_steps)
        left = np.log1p(
            waiting[:, 2] * pool.reference_s[world.row[np.arange(n), state.turn]] / world.settings.interval_s
        )
        due = np.log1p(np.maximum(waiting[:, 3], 0.0) / world.settings.interval_s)
        rest = np.stack([np.log1p(state.waiting), gone, left, due], axis=1)
        parts = (
            np.concatenate([choices.value, *flags], axis=2), wide, late, state.utilisation, state.memory,
            np.log1p(state.queue), state.load, choices.preference, rest,
        )  # fmt: skip
        return np.concatenate(
            [part.reshape(n, -1) for part in parts], axis=1, dtype=np.float32, casting="same_kind"
        )


def _relative(matrices: Floats) -> Floats:
    """Return matrices over the mean of their links, each environment its own."""
    links = np.maximum((matrices > 0).sum(axis=(1, 2)), 1)
    mean = matrices.sum(axis=(1, 2)) / links
    return np.asarray(matrices / np.where(mean > 0, mean, 1.0)[:, None, None])
