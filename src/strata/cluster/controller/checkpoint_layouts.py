"""Layouts of checkpoints, and what makes one complete; each read in its writer's source, not from memory.

* torch distributed checkpoint: `.metadata` is renamed into place by the coordinator after all ranks have written,
  and holds the names of all `.distcp` files (torch/distributed/checkpoint/filesystem.py, `finish`). It is searched
  for them, never unpickled: a checkpoint is somebody else's data;
* Megatron-LM: `iter_0000100/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`, the whole grid of ranks, and the tracker
  `latest_checkpointed_iteration.txt`, written after a barrier (megatron/training/checkpointing.py);
* DeepSpeed: `global_step100/[bf16_]zero_pp_rank_D_mp_rank_TT_optim_states.pt` and `..._model_states.pt`, the whole
  grid, no fewer than before, and the tracker `latest` with the tag; rank 0 writes it before the barrier, so others
  may not have finished (deepspeed/runtime/engine.py, `save_checkpoint`);
* Hugging Face: all shards of every `*.index.json`; where there is `training_args.bin`, `trainer_state.json` too,
  which the Trainer writes last (transformers/trainer.py, `_save_checkpoint`). PaddleNLP's trainer is alike.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

GRACE_S: Final = 60.0
"""A checkpoint that no marker ends must have been left alone so long, by the storage's times."""

MEGATRON_RANK: Final = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
ZERO_STATES: Final = re.compile(r"(?:\w+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(optim|model)_states\.pt")
_MODEL_STATES: Final = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_OF: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\..*)")
_DISTCP: Final = re.compile(rb"__\d{1,9}_\d{1,9}\.distcp")
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class FileSeen:
    """What a listing says of a file; `mtime_s` since the epoch, by the storage's clock."""

    size: int
    mtime_s: float


Listing = Mapping[str, FileSeen]
"""Files by their path below a folder, with `/`."""


class Unfit(Exception):
    """Why a candidate is not a complete checkpoint: a token and the detail."""

    def __init__(self, token: str, what: str) -> None:
        super().__init__(token)
        self.token, self.what = token, what


def _is_file(group: Listing, read: Callable[[str], bytes]) -> bool:
    return "" in group


def _is_dcp(group: Listing, read: Callable[[str], bytes]) -> bool:
    shards = [name for name in group if name.endswith(".distcp")]
    indexes = [name for name in group if base(name) == ".metadata"]
    for shard in shards:
        if _sibling(shard, ".metadata") not in indexes:
            raise Unfit("checkpoint-incomplete", f"{_sibling(shard, '.metadata')} missing")
    for index in indexes:
        shards = sorted({_sibling(index, shard_name.decode()) for shard_name in _DISTCP.findall(read(index))})
        if not shards:
            raise Unfit("checkpoint-torn", index)
        _require(group, shards)
        newest = max(group[name].mtime_s for name in shards)
        if newest > group[index].mtime_s + GRACE_S:
            raise Unfit("checkpoint-unfinished", f"{index} is older than its files")
    return bool(indexes)


def _is_megatron(group: Listing, read: Callable[[str], bytes]) -> bool:
    ranks: dict[str, tuple[int, ...]] = {}
    for name in group:
        match = MEGATRON_RANK.fullmatch(name.split("/")[0]) if "/" in name else None
        if match:
            ranks[name.split("/")[0]] = tuple(int(group) for group in match.groups() if group is not None)
    if len({len(rank) for rank in ranks.values()}) > 1:
        raise Unfit("checkpoint-incomplete", "ranks of two ways to split")
    _require_grid(set(ranks.values()), "mp_rank")
    for rank in sorted(ranks):
        if not any(f"{rank}/{name}" in group for name in ("model_optim_rng.pt", "model_rng.pt")):
            raise Unfit("checkpoint-incomplete", f"{rank}/model_optim_rng.pt missing")
    return bool(ranks)


def _is_deepspeed(group: Listing, read: Callable[[str], bytes]) -> bool:
    grids: dict[str, dict[str, set[tuple[int, ...]]]] = defaultdict(lambda: defaultdict(set))
    for name in group:
        folder = name.rpartition("/")[0]
        if match := ZERO_STATES.fullmatch(base(name)):
            grids[folder][match[3]].add((int(match[1]), int(match[2])))
        elif match := _MODEL_STATES.fullmatch(base(name)):
            grids[folder]["plain"].add((int(match[1]),))
    for folder, grid in grids.items():
        for kind in ("optim", "model", "plain"):
            _require_grid(grid[kind], f"{folder or '.'} {kind} states")
        ranks = {rank[1:] for rank in grid["optim"]}
        if grid["model"] and grid["optim"] and grid["model"] != grid["optim"]:
            raise Unfit("checkpoint-incomplete", f"{folder or '.'}: states of unlike ranks")
        if not grid["model"] and ranks - grid["plain"]:
            raise Unfit("checkpoint-incomplete", f"{folder or '.'}: model states missing")
    if grids and "latest" in group:
        tag = read("latest")[:200].decode("utf-8", "replace").strip()
        if tag not in grids:
            raise Unfit("checkpoint-incomplete", f"{tag[:80]!a} missing, which latest names")
    return bool(grids)


def _is_hugging_face(group: Listing, read: Callable[[str], bytes]) -> bool:
    for index in (name for name in group if name.endswith(".index.json")):
        try:
            shard_names = json.loads(read(index))["weight_map"].values()
            shards = sorted({_sibling(index, str(shard)) for shard in shard_names})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Unfit("checkpoint-torn", index) from None
        _require(group, shards)
    counted: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for name in group:
        if match := _OF.fullmatch(name):
            counted[match[1], match[4], int(match[3])].add(int(match[2]))
    for (stem, suffix, count), numbers in counted.items():
        if len(numbers) < count:
            raise Unfit("checkpoint-incomplete", f"{count - len(numbers)} of {count} of {stem}*{suffix} missing")
    if "training_args.bin" in group and "trainer_state.json" not in group:
        raise Unfit("checkpoint-incomplete", "trainer_state.json missing")
    names = [base(name) for name in group]
    return any(name.endswith((".safetensors", ".pdparams")) for name in names) or any(
        name.startswith("pytorch_model") for name in names
    )


LAYOUTS: Final[Mapping[str, Callable[[Listing, Callable[[str], bytes]], bool]]] = {
    "file": _is_file,
    "torch-dcp": _is_dcp,
    "megatron": _is_megatron,
    "deepspeed": _is_deepspeed,
    "hugging-face": _is_hugging_face,
}


def _require(group: Listing, names: list[str]) -> None:
    missing = [name for name in names if name not in group or group[name].size == 0]
    if missing:
        raise Unfit("checkpoint-incomplete", f"{named(missing)} missing")


def _require_grid(ranks: set[tuple[int, ...]], what: str) -> None:
    if not ranks:
        return
    sizes = [max(axis) + 1 for axis in zip(*ranks, strict=True)]
    if len(ranks) < math.prod(sizes):
        lacking = (rank for rank in itertools.product(*map(range, sizes)) if rank not in ranks)
        raise Unfit("checkpoint-incomplete", f"{what} {next(lacking)} missing")


def named(names: list[str]) -> str:
    """Return a few names in words."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(name or "it" for name in names[:_MOST_NAMED]) + more


def base(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def _sibling(path: str, name: str) -> str:
    folder = path.rpartition("/")[0]
    return f"{folder}/{name}" if folder else name
