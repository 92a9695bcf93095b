"""Tensors of a folder's shards as a layer's parameters: found by name, held against their shape, read into place.

Names are those that Hugging Face's files have; transformers stacks the experts of a layer into one parameter, and
calls Mixtral's block by another name (its `conversion_mapping`). Needs torch and safetensors at import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import torch
from safetensors import safe_open

from strata.errors import BadFile, Fault
from strata.serving.pretrained.folder import INDEX, ModelFolder
from strata.workload.tiny import Tensor

FLOATS: Final = ("F32", "F16", "BF16")
_MIXTRAL: Final = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_IGNORED: Final = "rotary_emb.inv_freq"
"""In files of old: the frequencies follow from the config."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stored tensor, and the place in a parameter that it fills."""

    name: str
    place: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The weights of a folder."""

    folder: ModelFolder

    def pieces(self, name: str, parameter: Tensor) -> Iterator[Piece]:
        """Yield the stored tensors that a parameter is made of. name: as in transformers' model."""
        block, _, part = name.partition(".mlp.experts.")
        is_mixtral = self.folder.config["model_type"] == "mixtral"
        if not part:
            yield Piece(name.replace(".mlp.gate.", ".block_sparse_moe.gate.") if is_mixtral else name)
            return
        width = parameter.shape[1] // 2
        parts = {
            "gate_up_proj": {"gate_proj": slice(0, width), "up_proj": slice(width, None)},
            "down_proj": {"down_proj": slice(None)},
        }[part]
        mlp = "block_sparse_moe" if is_mixtral else "mlp"
        for expert in range(parameter.shape[0]):
            for stored, rows in parts.items():
                stored = _MIXTRAL[stored] if is_mixtral else stored
                yield Piece(f"{block}.{mlp}.experts.{expert}.{stored}.weight", (expert, rows))

    def faults(self, prefix: str, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[Fault]:
        """Yield what is wrong with the stored tensors of a layer; parameters: by name, on any device, meta too.

        prefix: of the layer's tensors, all of which must be wanted.
        """
        wanted = set()
        for name, parameter in parameters:
            for piece in self.pieces(name, parameter):
                wanted.add(piece.name)
                stored, shape = self.folder.tensors.get(piece.name), tuple(parameter[piece.place].shape)
                if stored is None:
                    yield Fault(str(self.folder.path / INDEX), f"has no {piece.name}; the config asks for {shape}")
                elif stored.shape != shape:
                    yield Fault(str(stored.file), f"{piece.name} is {stored.shape}; the config asks for {shape}")
                elif stored.dtype not in FLOATS:
                    message = f"{piece.name} is stored as {stored.dtype}; workers read {', '.join(FLOATS)}"
                    yield Fault(str(stored.file), message)
        for name, stored in self.folder.tensors.items():
            if name.startswith(prefix) and name not in wanted and not name.endswith(_IGNORED):
                yield Fault(str(stored.file), f"{name}: a model of this config has no such tensor")

    def read(self, parameters: Iterable[tuple[str, Tensor]], device: str) -> dict[str, Tensor]:
        """Return parameters, by name, of their shapes and precisions; opens the files that have them, no other."""
        read = dict[str, Tensor]()
        with ExitStack() as stack:
            files = dict[Any, Any]()
            for name, parameter in parameters:
                # A copy of its own: sums may depend on how numbers are aligned, and a file may change under a map.
                made = read[name] = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
                for piece in self.pieces(name, parameter):
                    file = self.folder.tensors[piece.name].file
                    if file not in files:
                        files[file] = stack.enter_context(safe_open(file, framework="pt"))
                    made[piece.place].copy_(files[file].get_tensor(piece.name))
        return read

    def check(self, layers: Iterable[tuple[str, Iterable[tuple[str, Tensor]]]]) -> None:
        """Raise BadFile with what is wrong of all layers. layers: their prefixes and parameters."""
        faults = [fault for prefix, parameters in layers for fault in self.faults(prefix, parameters)]
        if faults:
            hint = "the weights that belong to this config.json, all of the folder's files"
            raise BadFile(faults[:10], hint=hint)
