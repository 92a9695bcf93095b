"""Measured times per layer: what a cost model prefers to FLOPs where somebody has timed the layers.

The file is JSON, one entry per accelerator, microbatch size and tensor-parallel degree:

    {"A100-SXM4-40GB": {"2,1": {"forward_s": [...], "backward_s": [...], "update_s": [...]}}}

`forward_s` and `backward_s` are of one microbatch, tensor-parallel communication included; `update_s` is of one
optimizer step. Every list has one value per layer, embedding first and head last. Accelerators are named as in
the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from strata.arrays import Floats
from strata.errors import BadFile, Fault
from strata.files import read_json

_FORM: Final = '{"ACCELERATOR": {"2,1": {"forward_s": [...], "backward_s": [...], "update_s": [...]}}}'


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of each layer, arrays of shape [L]."""

    forward_s: Floats
    backward_s: Floats
    update_s: Floats


@dataclass(frozen=True)
class LayerProfile:
    """Measured layer times by (accelerator, microbatch size, tensor-parallel degree)."""

    times: Mapping[tuple[str, int, int], LayerTimes]

    def lookup(self, accelerator: str, microbatch_size: int, tensor_parallel: int) -> LayerTimes | None:
        """Return the times measured under exactly these conditions, or None: nothing is interpolated."""
        return self.times.get((accelerator, microbatch_size, tensor_parallel))

    @classmethod
    def from_dict(cls, data: object, *, num_layers: int, path: str = "profile") -> LayerProfile:
        """Read the JSON form above. Raises BadFile with every fault; `path` names the source in them."""
        faults: list[Fault] = []
        times = dict(_entries(data, num_layers, path, faults))
        if not times and not faults:
            faults.append(Fault(path, "holds no profile"))
        if faults:
            raise BadFile(faults, hint=_FORM)
        return cls(times)


def load_profile(path: str | Path, *, num_layers: int) -> LayerProfile:
    """Read a profile file for a model of `num_layers` layers, embedding and head included.

    Raises BadFile with every fault, UsageError where there is no such file.
    """
    return LayerProfile.from_dict(read_json(path), num_layers=num_layers, path=str(path))


def _entries(
    data: object, num_layers: int, path: str, faults: list[Fault]
) -> Iterator[tuple[tuple[str, int, int], LayerTimes]]:
    for accelerator, rows in _items(data, "", path, faults):
        for key, row in _items(rows, accelerator, path, faults):
            sizes = _sizes(key)
            wrong, times = _times(row, num_layers)
            if sizes is None:
                wrong = ["write 'microbatch size,tensor-parallel degree', like '2,1'"]
            elif times is not None:
                yield (accelerator, *sizes), times
            faults.extend(Fault(path, message, where=f"{accelerator}.{key}") for message in wrong)


def _items(data: object, where: str, path: str, faults: list[Fault]) -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        yield from data.items()
    else:
        faults.append(Fault(path, "must be a JSON object", where=where))


def _sizes(key: str) -> tuple[int, int] | None:
    parts = key.split(",")
    if len(parts) != 2 or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        return None
    microbatch_size, tensor_parallel = (int(part) for part in parts)
    return (microbatch_size, tensor_parallel) if microbatch_size and tensor_parallel else None


def _times(row: object, num_layers: int) -> tuple[list[str], LayerTimes | None]:
    """Return what is wrong with one row, and its times where nothing is."""
    if not isinstance(row, Mapping):
        return ["must be a JSON object"], None
    names = [field.name for field in fields(LayerTimes)]
    wrong = [f"unknown key {key!r} (known: {', '.join(names)})" for key in row if key not in names]
    problems = {name: _problem(row.get(name), num_layers) for name in names}
    wrong.extend(f"{name} {problem}" for name, problem in problems.items() if problem)
    if wrong:
        return wrong, None
    return [], LayerTimes(**{name: np.array(row[name], dtype=np.float64) for name in names})


def _problem(value: object, num_layers: int) -> str | None:
    if value is None:
        return "is missing"
    if isinstance(value, str) or not isinstance(value, (Sequence, np.ndarray)):
        return "must be a list of seconds"
    if len(value) != num_layers:
        return f"has {len(value)} values, the model has {num_layers} layers (embedding and head included)"
    for item in value:
        if isinstance(item, bool) or not isinstance(item, (int, float)) or not 0 <= item < float("inf"):
            return f"holds {item!r}, which is not a time in seconds"
    return None
