"""A training run as a file: what it was told, its weights, the best ones, its curve: all it takes to go on."""

from __future__ import annotations

import io
import pickle
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from strata.errors import BadFile, Fault, UsageError
from strata.files import write_bytes
from strata.learning import ppo
from strata.learning.curriculum import Syllabus
from strata.learning.imitation import ImitationSettings
from strata.learning.network import Scorer
from strata.learning.worlds.presets import PRESETS
from strata.training.hi_ppo.features import VERSION as FEATURES_VERSION

FORMAT: Final = f"strata-hi-ppo-1-features-{FEATURES_VERSION}"


@dataclass(frozen=True, slots=True)
class Learning:
    """What a training run is told; `schema.py` reads it from a file."""

    seed: int = 0
    updates: int = 300
    """At most; the step size falls towards the last of them."""
    lesson: int = 10
    """Updates on the same environments, and between two exams."""
    table_envs: int = 512
    """Episodes at once on random tables, for each worker."""
    tables: int = 64
    """Random tables in a lesson, for each worker; divides table_envs."""
    worlds: tuple[str, ...] = ()
    """Presets of simulated worlds to play beside the tables."""
    world_envs: int = 64
    """Episodes at once in each of them, for each worker."""
    world_instances: int = 8
    """Random fleets in each of them."""
    patience: int = 10
    """Exams in a row without a better grade after which the run ends."""
    exam_tables: int = 48
    exam_episodes: int = 32
    exam_steps: int = 96
    exam_instances: int = 8
    """Fleets in each world of the exam."""
    recall_tables: int = 0
    """Fresh solved tables imitated for one round after each lesson, so that worlds do not displace them."""
    warm_start_tables: int = 96
    """Solved tables to imitate first; 0: PPO starts from the safe rule."""
    width: int = 64
    """Of the network."""
    imitation: ImitationSettings = field(default_factory=ImitationSettings)
    ppo: ppo.Config = field(default_factory=ppo.Config)

    def __post_init__(self) -> None:
        if self.table_envs % self.tables:
            raise UsageError(f"table_envs ({self.table_envs}) is no multiple of tables ({self.tables})")
        for name in self.worlds:
            if name not in PRESETS:
                raise UsageError(f"no world is named {name!r}", hint=f"one of {', '.join(PRESETS)}")

    @property
    def syllabus(self) -> Syllabus:
        """What each worker plays."""
        return Syllabus(self.table_envs, self.tables, self.worlds, self.world_envs, self.world_instances)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the curve: after `update` updates, and what the exam said. Losses are of the last update."""

    update: int
    steps: int
    elapsed_s: float
    reward: float
    mean_gap: float
    worst_gap: float
    closed: float
    policy_loss: float = 0.0
    value_loss: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0
    worlds: float = 0.0

    @property
    def missed(self) -> float:
        """What counts: the mean gap on tables, less what is won in worlds."""
        return self.mean_gap - self.worlds


@dataclass(frozen=True, eq=False)
class Run:
    """A training run as far as it is: what a checkpoint holds. `best` are the weights of the best exam."""

    learning: Learning
    device: str
    """As torch calls it; `device_name` is its model."""
    device_name: str
    workers: int
    weights: dict[str, Any]
    best: dict[str, Any]
    optimizer: dict[str, Any] | None = None
    scale: ppo.Scale = field(default_factory=ppo.Scale)
    update: int = 0
    steps: int = 0
    elapsed_s: float = 0.0
    curve: tuple[Point, ...] = ()
    ended: str = ""
    """Why the run ended: updates, patience or minutes; "" while it has not."""

    @property
    def best_point(self) -> Point:
        """The exam of the best weights: the least `missed`, the first of equals."""
        return min(self.curve, key=lambda point: point.missed)

    @property
    def is_stale(self) -> bool:
        """Whether the last `patience` exams brought nothing better."""
        return len(self.curve) - 1 - self.curve.index(self.best_point) >= self.learning.patience

    def network(self) -> Scorer:
        """Return the best network so far, on the CPU."""
        network = Scorer(width=self.learning.width)
        network.load_state_dict(self.best)
        return network


def write_checkpoint(path: Path, run: Run) -> None:
    """Replace a checkpoint atomically. Raises UsageError where it cannot be written."""
    content = {name: getattr(run, name) for name in Run.__dataclass_fields__}
    content |= {
        "format": FORMAT,
        "learning": asdict(run.learning),
        "scale": asdict(run.scale),
        "curve": [asdict(point) for point in run.curve],
    }
    stream = io.BytesIO()
    torch.save(content, stream)
    write_bytes(path, stream.getvalue())


def read_checkpoint(path: Path) -> Run:
    """Read a checkpoint; only plain data and tensors are loaded from it.

    Raises UsageError for a missing file, BadFile for one that is none or was made by another version.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such checkpoint", hint="strata learn train writes one after each exam")
    try:
        content = torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, OSError) as error:
        reason = (str(error) or "cut short").splitlines()[0]
        raise BadFile([Fault(str(path), f"not a checkpoint: {reason}")]) from None
    made_by = content.pop("format", None) if isinstance(content, dict) else None
    if made_by != FORMAT:
        raise BadFile([Fault(str(path), f"made by another version ({made_by}; this one reads {FORMAT})")])
    told = content.pop("learning")
    learning = Learning(
        **told
        | {"worlds": tuple(told["worlds"])}
        | {"imitation": ImitationSettings(**told["imitation"]), "ppo": ppo.Config(**told["ppo"])}
    )
    scale = ppo.Scale(**content.pop("scale"))
    curve = tuple(Point(**point) for point in content.pop("curve"))
    run = Run(learning=learning, scale=scale, curve=curve, **content)
    try:
        run.network()
    except RuntimeError:
        raise BadFile([Fault(str(path), "made by another version: its network is not ours")]) from None
    return run
