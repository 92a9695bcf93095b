"""Measured times per layer: what a cost model prefers to FLOPs where somebody has timed the layers.

The file is JSON, one entry per accelerator, microbatch size and tensor-parallel degree:

    {"A100-SXM4-40GB": {"2,1": {"forward_s": [...], "backward_s": [...], "update_s": [...]}}}

`forward_s` and `backward_s` are of one microbatch, tensor-parallel communication included; `update_s` is of one
optimizer step. Every list has one value per layer, embedding first and head last. Accelerators are named as in
the fleet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from pydantic import Field, RootModel

from strata.arrays import Floats
from strata.errors import BadFile, Fault
from strata.files import Document, FileModel, read_json

_FORM: Final = '{"ACCELERATOR": {"2,1": {"forward_s": [...], "backward_s": [...], "update_s": [...]}}}'

TimesOfLayers = list[Annotated[float, Field(ge=0, strict=True)]]


class ProfileRow(FileModel):
    """Seconds of each layer under one condition."""

    forward_s: TimesOfLayers
    backward_s: TimesOfLayers
    update_s: TimesOfLayers


class ProfileFile(RootModel[dict[str, dict[str, ProfileRow]]]):
    """A profile file: by accelerator, then by `microbatch size,tensor-parallel degree`."""


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


def load_profile(path: str | Path, *, num_layers: int) -> LayerProfile:
    """Read a profile file for a model of `num_layers` layers, embedding and head included.

    Raises BadFile with every fault, UsageError where there is no such file.
    """
    # Without places: a profile may hold millions of numbers, and noting where each stands takes minutes.
    document = Document(str(path), read_json(path), {})
    times, faults = dict[tuple[str, int, int], LayerTimes](), list[Fault]()
    for accelerator, rows in document.check(ProfileFile).root.items():
        for key, row in rows.items():
            sizes = re.fullmatch(r"([1-9][0-9]*),([1-9][0-9]*)", key.replace(" ", ""))
            wrong = [] if sizes else ["write 'microbatch size,tensor-parallel degree', like '2,1'"]
            lists = {name: np.array(seconds) for name, seconds in row}
            wrong += [
                f"{name} has {len(seconds)} values, the model has {num_layers} layers (embedding, head included)"
                for name, seconds in lists.items()
                if len(seconds) != num_layers
            ]
            faults += [document.fault((accelerator, key), message) for message in wrong]
            if sizes and not wrong:
                times[accelerator, int(sizes[1]), int(sizes[2])] = LayerTimes(**lists)
    if not times and not faults:
        faults.append(Fault(str(path), "holds no profile"))
    if faults:
        raise BadFile(faults, hint=_FORM)
    return LayerProfile(times)
