"""Layers of a model's folder: transformers' own classes, of which only those a worker serves ever have memory.

A model of one block is built on the meta device, for its classes; each layer is made of them on its own, and its
weights are read into it. Needs torch and transformers at import: `need(..., extra="models")` first.

On a CPU the same tokens follow however the layers are cut and whoever is served beside, as long as workers run on
equal processors with equally many threads: decoding goes through matrices of the same shapes.

Letters: T tokens, R rows (one token of some sequence each), D hidden, H heads, K head size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import numpy as np
import torch
import transformers
from torch import nn

from strata.errors import BadFile, Fault
from strata.serving.pretrained.checkpoint import Checkpoint
from strata.serving.pretrained.folder import ModelFolder
from strata.serving.worker.holder import ROWS, DecodeRow
from strata.serving.worker.kv import KvCache, LayerKv
from strata.serving.worker.layer_range import Activations, LayerRange
from strata.workload.tiny import Tensor

ATTENTION: Final = "strata"
EMBEDDING: Final = "model.embed_tokens.weight"
BY_LAYER_TYPE: Final = ("qwen2", "qwen2_moe", "qwen3")
"""Whose `layer_types` say which blocks slide a window; in the others all do, where there is one."""


def attention(
    _module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: None,
    *,
    scaling: float,
    kvs: Sequence[LayerKv],
    **_rest: Any,
) -> tuple[Tensor, None]:
    """Attend row by row [R, H, T, K]; rows without a sequence, at the end, see nothing. Returns [R, T, H, K]."""
    mixed = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for row, kv in enumerate(kvs):
        here = slice(row, row + 1)
        mixed[here] = kv(query[here], key[here], value[here], scale=scaling)
    return mixed.transpose(1, 2).contiguous(), None


transformers.AttentionInterface.register(ATTENTION, attention)


class PretrainedMaker:
    """Makes layers, numbered as the made-up model's: 0 embeds, then come the blocks, the last is the head.

    Raises BadFile where the folder's tensors are not those of its config.
    """

    def __init__(self, folder: ModelFolder, device: str = "cpu") -> None:
        transformers.logging.set_verbosity_error()
        self.folder, self.device = folder, device
        self.checkpoint = Checkpoint(folder)
        self.dtype = getattr(torch, folder.dtype)
        self.config = transformers.AutoConfig.from_pretrained(folder.path, local_files_only=True)
        self.windows = self._windows()
        single = copy.deepcopy(self.config)
        single.num_hidden_layers = 1
        if getattr(single, "layer_types", None):
            single.layer_types = single.layer_types[:1]
        with torch.device("meta"):
            self._single = transformers.AutoModelForCausalLM.from_config(single)
        # One expert after the other: how many tokens others send to it must not change a token's sums.
        self.config._attn_implementation, self.config._experts_implementation = ATTENTION, "eager"
        self.rotary = type(self._single.model.rotary_emb)(self.config).to(device)
        self.is_sparse = folder.hosted.info.num_experts > 0
        self._shared = WeakValueDictionary[str, Tensor]()  # what embedding and head of one worker have in common
        self.checkpoint.check(
            (self._prefix(number), list(self._named(number, self._meta(number))))
            for number in range(folder.hosted.num_layers + 2)
        )

    def layer(self, number: int) -> Any:
        """Return one layer, with its weights."""
        module = self._meta(number)
        named = list(self._named(number, module))
        made = {name: self._shared[name] for name, _ in named if name in self._shared}
        missing = [(name, parameter) for name, parameter in named if name not in made]
        for name, read in self.checkpoint.read(missing, self.device).items():
            made[name] = nn.Parameter(read, requires_grad=False)
        for (path, _), (name, _) in zip(list(module.named_parameters()), named, strict=True):
            owner, _, leaf = path.rpartition(".")
            setattr(module.get_submodule(owner), leaf, made[name])
        if EMBEDDING in made:
            self._shared[EMBEDDING] = made[EMBEDDING]
        assert not any(each.is_meta for each in (*module.parameters(), *module.buffers())), "all have been read"
        return module.eval()

    def part(self, first: int, end: int, layers: Mapping[int, Any]) -> PretrainedRange:
        """Return blocks [first, end), taken from made layers, as something that runs."""
        return PretrainedRange(self, first, end, layers)

    def cache(self, max_tokens: int) -> KvCache:
        """Return the empty cache of a sequence."""
        return KvCache(max_tokens, self.windows, self.device)

    def _windows(self) -> dict[int, int]:
        """Return the window of each block, 0 for none, as transformers' layers have it.

        Raises BadFile where memory was counted by another: a cache must not outgrow what is reserved for it.
        """
        window, types = (
            getattr(self.config, "sliding_window", None) or 0,
            getattr(self.config, "layer_types", None),
        )
        listed = types if self.config.model_type in BY_LAYER_TYPE else None
        blocks = range(1, self.folder.hosted.num_layers + 1)
        windows = {
            block: window if listed is None or listed[block - 1] == "sliding_attention" else 0 for block in blocks
        }
        counted = [0 if np.isinf(each) else int(each) for each in np.atleast_1d(self.folder.hosted.info.windows)]
        if list(windows.values()) != counted:
            message = (
                f"transformers reads windows {windows}, strata {counted}; say use_sliding_window and layer_types"
            )
            raise BadFile([Fault(str(self.folder.config_file), message, where="sliding_window")])
        return windows

    def _meta(self, number: int) -> Any:
        """Return one layer without memory."""
        model, last = self._single, self.folder.hosted.num_layers + 1
        if number == 0:
            module = copy.deepcopy(model.model.embed_tokens)
        elif number == last:
            module = nn.Sequential(copy.deepcopy(model.model.norm), copy.deepcopy(model.lm_head))
        else:
            with torch.device("meta"):
                module = type(model.model.layers[0])(self.config, number - 1)
        return module.to(self.dtype)

    def _prefix(self, number: int) -> str:
        last = self.folder.hosted.num_layers + 1
        return f"model.layers.{number - 1}." if 0 < number < last else "model.norm." if number else EMBEDDING

    def _named(self, number: int, module: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield a layer's parameters under the names that the whole model has for them."""
        head = EMBEDDING if self.config.tie_word_embeddings else "lm_head.weight"
        names = {"0.weight": "model.norm.weight", "1.weight": head}
        for name, parameter in module.named_parameters():
            if number == 0:
                yield EMBEDDING, parameter
            elif isinstance(module, nn.Sequential):
                yield names[name], parameter
            else:
                yield self._prefix(number) + name, parameter


@dataclass(frozen=True, slots=True)
class PretrainedRange(LayerRange):
    """Blocks [first, end) with the embedding before and the head after, where they are an end of the model."""

    maker: PretrainedMaker
    first: int
    end: int
    layers: Mapping[int, Any]

    @property
    def rows(self) -> int:
        """One by one through a mixture of experts: what an expert is given must not depend on others' tokens."""
        return 1 if self.maker.is_sparse else ROWS

    def prompt(self, cache: Any, given: Sequence[int] | Activations, position: int) -> Activations:
        """Return the hidden states [T, D] of tokens of a prompt."""
        with torch.inference_mode():
            places = torch.arange(position, position + len(given), device=self.maker.device)[None]
            hidden: Activations = self._run(self._embedded(given)[None], places, [cache])[0]
            return hidden

    def lump(self, rows: Sequence[DecodeRow]) -> Activations:
        """Return the hidden states [R, D] of at most `self.rows` steps of decoding."""
        empty = [rows[0].given] * (self.rows - len(rows))
        given = np.stack([*(row.given for row in rows), *empty])
        places = [row.position for row in rows] + [0] * len(empty)
        with torch.inference_mode():
            at = torch.tensor(places, device=self.maker.device)[:, None]
            return self._run(self._embedded(given)[:, None], at, [row.cache for row in rows])[: len(rows), 0]

    def logits(self, hidden: Activations) -> Tensor:
        """Return the logits [R, V] of hidden states [R, D]."""
        head = self.layers[self.maker.folder.hosted.num_layers + 1]
        with torch.inference_mode():
            return head(torch.tensor(hidden, device=self.maker.device).to(self.maker.dtype))

    def _embedded(self, given: Any) -> Tensor:
        x = torch.tensor(np.asarray(given), device=self.maker.device)
        return self.layers[0](x) if self.first == 0 else x.to(self.maker.dtype)

    def _run(self, x: Tensor, places: Tensor, caches: Sequence[Any]) -> Activations:
        around = self.maker.rotary(x, places)
        for number in range(self.first + 1, self.end + 1):
            kvs = [cache[number] for cache in caches]
            x = self.layers[number](x, position_embeddings=around, position_ids=places, kvs=kvs)
        activations: Activations = x.float().cpu().numpy()
        return activations
