"""The settings of a training run: plain data, so that reading and checking a training file needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from strata.errors import UsageError
from strata.learning.worlds.settings import PRESETS


@dataclass(frozen=True, slots=True)
class Curriculum:
    """What one worker plays at once: `table_envs` episodes on `tables` random tables, and simulated worlds.

    worlds: presets of `worlds/settings.py`, each with `world_envs` episodes on `world_instances` random fleets.
    """

    table_envs: int
    tables: int
    worlds: tuple[str, ...] = ()
    world_envs: int = 0
    world_instances: int = 0


@dataclass(frozen=True, slots=True)
class ImitationSettings:
    """rounds of running on every table and learning; `astray`: share of decisions replaced by random ones, a
    quarter of which find no plan in use. still: decisions per round in which nothing will change."""

    rounds: int = 12
    episodes: int = 8
    steps: int = 24
    batch: int = 2048
    epochs: int = 2
    learning_rate: float = 3e-3
    astray: float = 0.12
    still: int = 2048


@dataclass(frozen=True, slots=True)
class PpoSettings:
    """Settings of PPO. The defaults suit rewards of about 1 a step and some hundred environments."""

    steps: int = 32
    """T: steps played between two updates."""
    epochs: int = 2
    """Passes over what was played."""
    minibatches: int = 4
    """Optimiser steps a pass."""
    learning_rate: float = 2e-3
    """Of Adam at the start; it falls linearly to a tenth of this at the last update."""
    gamma: float = 0.97
    """Discount a step: 1 / (1 - gamma) steps should exceed the time links stay as they are."""
    gae_lambda: float = 0.95
    clip: float = 0.2
    """How far the probability of a pick may move in one update, as a ratio."""
    entropy: float = 0.02
    """Bonus for trying: the residual network starts out nearly sure of the safe rule."""
    keep: float = 1.0
    """Weight of the cross-entropy to what imitation left, on tables."""
    value_weight: float = 0.5
    max_gradient: float = 0.5
    """Norm to which each gradient is clipped."""
    target_kl: float = 0.02
    """An update stops early once the policy moved 1.5 times this."""
    critic_first: int = 10
    """Updates in which only the critic learns, so that a warm start is not spoilt by its first guesses."""
    augmentation: float = 0.05
    """rho of the augmented Tchebycheff utility: the share of the objectives that are not the worst one."""


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """The settings of a training run; `schema.py` reads them from a file."""

    seed: int = 0
    updates: int = 300
    """At most; the step size falls towards the last of them."""
    updates_per_evaluation: int = 10
    """Updates on the same environments, a round; the policy is evaluated after each."""
    table_envs: int = 512
    """Episodes at once on random tables, for each worker."""
    tables: int = 64
    """Random tables in a round, for each worker; divides table_envs."""
    worlds: tuple[str, ...] = ()
    """Presets of simulated worlds to play beside the tables."""
    world_envs: int = 64
    """Episodes at once in each of them, for each worker."""
    world_instances: int = 8
    """Random fleets in each of them."""
    patience: int = 10
    """Evaluations in a row without a better score after which the run ends."""
    evaluation_tables: int = 48
    evaluation_episodes: int = 32
    evaluation_steps: int = 96
    evaluation_instances: int = 8
    """Fleets in each world of the evaluation."""
    warm_start_tables: int = 96
    """Solved tables to imitate first; 0: PPO starts from the safe rule."""
    width: int = 64
    """Units in each layer of the network."""
    imitation: ImitationSettings = field(default_factory=ImitationSettings)
    ppo: PpoSettings = field(default_factory=PpoSettings)

    def __post_init__(self) -> None:
        if self.table_envs % self.tables:
            raise UsageError(f"table_envs ({self.table_envs}) is not a multiple of tables ({self.tables})")
        for name in self.worlds:
            if name not in PRESETS:
                raise UsageError(f"there is no world {name!r}", hint=f"one of {', '.join(PRESETS)}")

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Self:
        """Return settings from the plain data that a training file or a checkpoint holds."""
        parts = {"imitation": ImitationSettings(**keys["imitation"]), "ppo": PpoSettings(**keys["ppo"])}
        return cls(**{**keys, **parts, "worlds": tuple(keys["worlds"])})

    @property
    def curriculum(self) -> Curriculum:
        """What each worker plays."""
        return Curriculum(self.table_envs, self.tables, self.worlds, self.world_envs, self.world_instances)
