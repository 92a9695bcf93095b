"""The record of a training run, shipped beside its policy: who trained what, on what, and how it went."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from strata.learning.checkpoint import Run
from strata.training.hi_ppo.features import VERSION

_LIBRARIES: Final = ("torch", "numpy", "ray", "onnx")


def training_record(run: Run, *, date: str, commit: str = "", most_domains: int = 0) -> dict[str, Any]:
    """Return the record as plain JSON data.

    date: of the export, as ISO 8601; commit: of the source it was trained with, "" where not given.
    most_domains: of the largest fleet the policy was evaluated on, 0 where none was.
    """
    best = run.best_point
    settings = asdict(run.learning)
    return {
        "policy_version": VERSION,
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
        "config": settings,
        "libraries": _versions(),
        "curve": [asdict(point) for point in run.curve],
    }


def device_name(device: str) -> str:
    """Return the model of the processor or of the CUDA device."""
    if device != "cpu":
        import torch

        return str(torch.cuda.get_device_name(device))
    return _cpu_model(Path("/proc/cpuinfo")) or platform.processor() or platform.machine()


def _cpu_model(cpuinfo: Path) -> str:
    """Return what Linux calls the processor, "" elsewhere."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _versions() -> Mapping[str, str]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
