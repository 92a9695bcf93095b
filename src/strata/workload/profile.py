"""Measured times per layer: what a cost model prefers to FLOPs where somebody has timed the layers.

The file is JSON, one entry per accelerator, microbatch size and tensor-parallel degree:

    {"A100-SXM4-40GB": {"2,1": {"forward_s": [...], "backward_s": [...], "update_s": [...]}}}

`forward_s` and `backward_s` are of one microbatch, tensor-parallel communication included; `update_s` is of one
optimizer step. Every list has one value per layer, embedding first and head last. Accelerators are named as in
the fleet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from pydantic import Field, RootModel

from strata.arrays import Floats
from strata.errors import BadFile, Fault
from strata.files import Document, FileModel, read_document, read_json

_FORM: Final = '{"ACCELERATOR": {"2,1": {"forward_s": [...], "backward_s": [...], "update_s": [...]}}}'

MOST_PLACED: Final = 1 << 18
"""Bytes of a file whose faults are given with line and column: noting places takes a second a megabyte."""

ABSURD: Final = 20.0
"""So far may times be from the ratio of their work: slow wires, small layers, noise."""
LEAST: Final = 0.5
"""Of the time that fewer samples take on as many ranks: kernels that fit better, and noise."""

Condition = tuple[str, int, int]
"""Accelerator, microbatch size, tensor-parallel degree."""

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

    times: Mapping[Condition, LayerTimes]

    def lookup(self, accelerator: str, microbatch_size: float, tensor_parallel: int) -> LayerTimes | None:
        """Return the times measured under exactly these conditions, or None: nothing is interpolated."""
        if microbatch_size != int(microbatch_size):
            return None
        return self.times.get((accelerator, int(microbatch_size), tensor_parallel))


def load_profile(path: str | Path, *, num_layers: int) -> LayerProfile:
    """Read a profile file for a model of `num_layers` layers, embedding and head included.

    Raises BadFile with every fault, UsageError where there is no such file.
    """
    # Without places: a profile may hold millions of numbers, and noting where each stands takes minutes.
    try:
        return checked_profile(read_json(path), source=str(path), num_layers=num_layers)
    except BadFile:
        if Path(path).stat().st_size > MOST_PLACED:
            raise
    return _profile(read_document(path), num_layers)


def checked_profile(data: object, *, source: str, num_layers: int) -> LayerProfile:
    """Check what a profile file holds, or will hold, as `load_profile` does."""
    return _profile(Document(source, data, {}), num_layers)


def _profile(document: Document, num_layers: int) -> LayerProfile:
    times, faults = dict[Condition, LayerTimes](), list[Fault]()
    keys: dict[Condition | None, str] = {}
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
            if not wrong:
                wrong += _instant(LayerTimes(**lists))
            condition = (accelerator, int(sizes[1]), int(sizes[2])) if sizes else None
            if condition in keys:
                wrong.append(f"the same condition as {keys[condition]!r}")
            faults += [document.fault((accelerator, key), message) for message in wrong]
            if condition and not wrong:
                times[condition], keys[condition] = LayerTimes(**lists), key
    faults += [document.fault((at[0], keys[at]), message) for at, message in _contradictions(times)]
    if not times and not faults:
        faults.append(Fault(document.path, "holds no profile"))
    if faults:
        raise BadFile(faults, hint=_FORM)
    return LayerProfile(times)


def _instant(times: LayerTimes) -> Iterator[str]:
    """Yield that blocks take no time: the embedding and the head may round to none."""
    for name, seconds in (("forward_s", times.forward_s), ("backward_s", times.backward_s)):
        if (blocks := np.flatnonzero(seconds[1:-1] == 0)).size:
            yield f"{name} of layer {blocks[0] + 1} is 0, and a layer that computes takes time"


def _contradictions(times: Mapping[Condition, LayerTimes]) -> Iterator[tuple[Condition, str]]:
    """Yield the conditions whose times no machine can have beside those of fewer samples or fewer ranks.

    So many times the samples on so many times the ranks should take about their quotient of the time.
    """
    total_s = {at: float((item.forward_s + item.backward_s).sum()) for at, item in times.items()}
    for card, samples, ranks in sorted(times):
        fewer_ranks = [at for at in times if at[:2] == (card, samples) and at[2] < ranks]
        fewer_samples = [at for at in times if (at[0], at[2]) == (card, ranks) and at[1] < samples]
        for before in (*sorted(fewer_ranks)[-1:], *sorted(fewer_samples)[-1:]):
            work = samples / before[1] * before[2] / ranks
            ratio = total_s[card, samples, ranks] / max(total_s[before], 1e-300)
            least = max(work / ABSURD, LEAST if before[2] == ranks else 0.0)
            if not least <= ratio <= max(work, 1.0) * ABSURD:
                message = f"takes {ratio:.3g}x the time of '{before[1]},{before[2]}'; are both in seconds?"
                yield (card, samples, ranks), message
