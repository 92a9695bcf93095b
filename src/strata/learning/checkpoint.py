"""A training run as files: a checkpoint, with all it takes to go on, and the record beside an exported policy."""

from __future__ import annotations

import io
import pickle
import platform
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

from strata.errors import BadFile, Fault, UsageError
from strata.files import write_bytes
from strata.learning import ppo
from strata.learning.network import Scorer
from strata.learning.settings import LearningSettings
from strata.training.hi_ppo.features import VERSION as FEATURES_VERSION

_LIBRARIES: Final = ("torch", "numpy", "ray", "onnx")
FORMAT: Final = f"strata-hi-ppo-3-features-{FEATURES_VERSION}"


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the curve: the score of the policy after `update` updates. Losses are of the last update."""

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
class TrainingRun:
    """A training run as far as it is: what a checkpoint holds. `best` are the weights of the best score."""

    learning: LearningSettings
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
    before: dict[str, Any] | None = None
    """The weights before the first update; None in checkpoints that do not hold them."""
    ended: str = ""
    """Why the run ended: updates, patience or minutes; "" while it has not."""

    @property
    def best_point(self) -> Point:
        """The evaluation of the best weights: the least `missed`, the first of equals."""
        return min(self.curve, key=lambda point: point.missed)

    @property
    def is_stale(self) -> bool:
        """Whether the last `patience` evaluations brought nothing better."""
        return len(self.curve) - 1 - self.curve.index(self.best_point) >= self.learning.patience

    def network(self) -> Scorer:
        """Return the best network so far, on the CPU."""
        network = Scorer(width=self.learning.width)
        network.load_state_dict(self.best)
        return network


def write_checkpoint(path: Path, run: TrainingRun) -> None:
    """Replace a checkpoint atomically. Raises UsageError where it cannot be written."""
    stream = io.BytesIO()
    torch.save({"format": FORMAT, **asdict(run)}, stream)
    write_bytes(path, stream.getvalue())


def read_checkpoint(path: Path) -> TrainingRun:
    """Read a checkpoint; only plain data and tensors are loaded from it.

    Raises UsageError for a missing file, BadFile for one that is none or was made by another version.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such checkpoint", hint="strata learn train writes one after each evaluation")
    content = _content(path)
    if content.get("format") != FORMAT:
        reason = f"made by another version ({content.get('format')}; this one reads {FORMAT})"
        raise BadFile([Fault(str(path), reason)])
    try:
        learning = LearningSettings.of(content.pop("learning"))
        scale = ppo.Scale(**content.pop("scale"))
        curve = tuple(Point(**point) for point in content.pop("curve"))
        del content["format"]
        run = TrainingRun(learning=learning, scale=scale, curve=curve, **content)
        run.best_point, run.network()
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError):
        raise BadFile([Fault(str(path), "a checkpoint with parts missing, or made by another version")]) from None
    return run


def _content(path: Path) -> dict[str, Any]:
    """Return what `write_checkpoint` saved. Raises BadFile where it is something else."""
    stream = io.BytesIO(path.read_bytes())
    # torch.load still reads its format of before 2020, takes any other file for it, and advises to load it
    # without safeguards; what we write is a zip archive.
    if not zipfile.is_zipfile(stream):
        raise BadFile([Fault(str(path), "not a checkpoint of `strata learn train`")])
    stream.seek(0)
    try:
        content = torch.load(stream, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, LookupError, RuntimeError, EOFError, ValueError, OSError):
        content = None
    if not isinstance(content, dict):
        raise BadFile([Fault(str(path), "not a checkpoint of `strata learn train`, or a damaged one")])
    return content


def training_record(
    run: TrainingRun, *, date: str, gains: Mapping[str, Any], commit: str = "", most_domains: int = 0
) -> dict[str, Any]:
    """Return the record as plain JSON data. gains: of `gain.py`.

    date: of the export, as ISO 8601; commit: of the source it was trained with, "" where not given.
    most_domains: of the largest fleet the policy was evaluated on, 0 where none was.
    """
    best = run.best_point
    settings = asdict(run.learning)
    return {
        "policy_version": FEATURES_VERSION,
        "trained_at": date,
        "seed": settings.pop("seed"),
        "commit": commit,
        "device": run.device_name,
        "workers": run.workers,
        "most_domains": most_domains,
        "updates": run.update,
        "steps": run.steps,
        "elapsed_s": run.elapsed_s,
        "ended": run.ended or "interrupted",
        "evaluation": {
            "tables": run.learning.evaluation_tables,
            "update": best.update,
            "mean_gap": best.mean_gap,
            "worst_gap": best.worst_gap,
            "closed": best.closed,
            "worlds": best.worlds,
        },
        **gains,
        "config": settings,
        "libraries": {name: part.version for name in _LIBRARIES for part in metadata.distributions(name=name)},
        "curve": [asdict(point) for point in run.curve],
    }


def device_name(device: str) -> str:
    """Return the model of the processor or of the CUDA device."""
    if device != "cpu":
        return str(torch.cuda.get_device_name(device))
    with suppress(OSError):  # Linux names the processor here, where `platform` does not know it
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
