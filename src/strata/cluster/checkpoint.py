"""The newest complete checkpoint among some files: what a moved job goes on from.

Layouts, and what makes one complete (each read in the writer's source, not from memory):
* torch distributed checkpoint: `.metadata` is renamed into place by the coordinator after all ranks have written,
  and holds the names of all `.distcp` files (torch/distributed/checkpoint/filesystem.py, `finish`). It is searched
  for them, never unpickled: a checkpoint is somebody else's data;
* Megatron-LM: `iter_0000100/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`, the whole grid of ranks, and the tracker
  `latest_checkpointed_iteration.txt`, written after a barrier (megatron/training/checkpointing.py);
* DeepSpeed: `global_step100/[bf16_]zero_pp_rank_D_mp_rank_TT_optim_states.pt` and `..._model_states.pt`, the whole
  grid, no fewer than before, and the tracker `latest` with the tag; rank 0 writes it before the barrier, so others
  may not have finished (deepspeed/runtime/engine.py, `save_checkpoint`);
* Hugging Face: all shards of every `*.index.json`; where there is `training_args.bin`, `trainer_state.json` too,
  which the Trainer writes last (transformers/trainer.py, `_save_checkpoint`). PaddleNLP's trainer is alike;
* one file: `...step=1000.ckpt` (Lightning), `prefix-3_1875.ckpt` (MindSpore: epoch, step), `last.ckpt`, `ckpt.pt`;
* anything with a marker, `.complete` or `_SUCCESS`.

Files are told apart by names, sizes and times. What is read of them comes by arguments, so this decides purely.
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

from strata.decision import Reason

GRACE_S: Final = 60.0
"""A checkpoint that no marker ends must have been left alone so long, by the storage's times."""

MARKERS: Final = (".complete", "_SUCCESS")
STEP_DIR: Final = re.compile(r"(?:.*[-_.])?(?:iter|iteration|global_?step|step|checkpoint|ckpt)[-_=]?(\d{1,15})")
_STEP_FILE: Final = re.compile(r"(?:.*[-_=.])?(?:step|iter)[-_=]?(\d{1,15})(?:-v\d+)?\.(?:ckpt|pt|pth)")
_MINDSPORE: Final = re.compile(r".+-(\d{1,9})_(\d{1,9})\.ckpt")
_LOOSE: Final = re.compile(r"(?:last|latest|checkpoint|ckpt)[^/]*\.(?:ckpt|pt|pth)")
_TEMPORARY: Final = re.compile(r"(?:.*[._-])?(?:tmp|temp|partial|incomplete)(?:[._-].*)?")
_DATA: Final = re.compile(r".*\.(?:pt|pth|bin|safetensors|distcp|ckpt|pdparams|pdopt|metadata|json)|\.metadata")
_CONTENT: Final = re.compile(r"\.metadata|.*\.(?:distcp|safetensors|index\.json|pdparams)|pytorch_model.*\.bin")
_MEGATRON: Final = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
_ZERO: Final = re.compile(r"(?:\w+_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(optim|model)_states\.pt")
_MODEL_STATES: Final = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_OF: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\..*)")
_DISTCP: Final = re.compile(rb"__\d{1,9}_\d{1,9}\.distcp")
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class FileSeen:
    """What a listing says of a file; `mtime_s` since the epoch, by the storage's clock."""

    size: int
    mtime_s: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: `path` below the folder that was searched, `.` for the folder itself.

    step: as its name says it (MindSpore: epoch and step), empty where it says nothing. written_s: its newest file.
    """

    path: str
    layout: str
    step: tuple[int, ...]
    written_s: float


@dataclass(frozen=True, slots=True)
class Search:
    """The newest complete checkpoint, if there is any, and why each that looked newer was passed over."""

    newest: Checkpoint | None
    passed: tuple[Reason, ...] = ()


Listing = Mapping[str, FileSeen]
"""Files by their path below a folder, with `/`."""


class _Unfit(Exception):
    """Why a candidate is no complete checkpoint: a token, and what of it."""

    def __init__(self, token: str, what: str) -> None:
        super().__init__(token)
        self.token, self.what = token, what


def newest_of(
    files: Listing,
    *,
    read: Callable[[str], bytes],
    is_torn: Callable[[str], bool],
    now_s: float,
    grace_s: float = GRACE_S,
) -> Search:
    """Return the newest complete checkpoint among some files.

    read: the bytes of a small file of the listing. is_torn: whether a data file ends before its own header or
    index says; asked only of a checkpoint that is complete by name. Newest is by the step in the name where every
    candidate has one, else by time. What is beyond the step a tracker names was never announced: not finished, or
    rolled back.
    """
    groups = _candidates(files)
    announced = _announced(files, groups, read)
    has_steps = all(step_of(path) for path in groups)

    def newness(path: str) -> tuple[tuple[int, ...], float, str]:
        return (step_of(path) if has_steps else (), max(one.mtime_s for one in groups[path].values()), path)

    passed: list[Reason] = []
    order = sorted(groups, key=newness, reverse=True)
    for position, path in enumerate(order):
        group = groups[path]
        try:
            is_announced = _check_announced(path, announced)
            layout = _layout(path, group, _reader(read, path))
            is_marked = _check_marker(group)
            if not is_marked and not is_announced:
                _check_settled(group, now_s, grace_s)
                _check_like(group, [groups[older] for older in order[position + 1 :] if _alike(older, path)])
            torn = sorted(name for name in group if _is_data(path, name) and is_torn(_below(path, name)))
            if torn:
                raise _Unfit("checkpoint-torn", _named(torn))
        except _Unfit as unfit:
            passed.append(Reason(unfit.token, path, {"what": unfit.what}))
            continue
        written_s = max(one.mtime_s for one in group.values())
        return Search(Checkpoint(path, layout or "marked", step_of(path), written_s), tuple(passed))
    return Search(None, tuple(passed))


def step_of(path: str) -> tuple[int, ...]:
    """Return the step a checkpoint's name says, empty where it says none."""
    name = _base(path)
    if found := _MINDSPORE.fullmatch(name):
        return (int(found[1]), int(found[2]))
    found = STEP_DIR.fullmatch(name) or _STEP_FILE.fullmatch(name)
    return (int(found[1]),) if found else ()


def _candidates(files: Listing) -> dict[str, dict[str, FileSeen]]:
    """Return what may be checkpoints, each with its files by their path below it; one file is below itself as ``.

    The topmost name with a step is one, with all below it; files below no such name belong to the topmost folder
    that holds files of a known layout.
    """
    groups: dict[str, dict[str, FileSeen]] = defaultdict(dict)
    loose: dict[str, FileSeen] = {}
    for path, seen in files.items():
        parts = path.split("/")
        depth = next((i for i, part in enumerate(parts[:-1]) if STEP_DIR.fullmatch(part)), None)
        if depth is not None:
            groups["/".join(parts[: depth + 1])]["/".join(parts[depth + 1 :])] = seen
        elif _LOOSE.fullmatch(parts[-1]) or _STEP_FILE.fullmatch(parts[-1]) or _MINDSPORE.fullmatch(parts[-1]):
            groups[path][""] = seen
        else:
            loose[path] = seen
    # A marker beside folders of steps ends the job, not a checkpoint.
    content = {path for path in loose if _is_content(path) or (not groups and _base(path) in MARKERS)}
    holders = sorted({_holder(path) for path in content}, key=lambda h: (h.count("/"), h))
    tops: list[str] = []
    for holder in holders:
        if not any(top == "." or holder == top or holder.startswith(f"{top}/") for top in tops):
            tops.append(holder)
    for path, seen in loose.items():
        for top in tops:
            if top == "." or path.startswith(f"{top}/"):
                groups[top][path if top == "." else path.removeprefix(f"{top}/")] = seen
    return dict(groups)


def _is_content(path: str) -> bool:
    name = _base(path)
    is_rank = len(parts := path.split("/")) > 1 and _MEGATRON.fullmatch(parts[-2])
    return bool(_CONTENT.fullmatch(name) or _ZERO.fullmatch(name) or is_rank)


def _holder(path: str) -> str:
    folder = path.rpartition("/")[0]
    while _MEGATRON.fullmatch(_base(folder)):
        folder = folder.rpartition("/")[0]
    return folder or "."


def _announced(
    files: Listing, groups: Mapping[str, object], read: Callable[[str], bytes]
) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return, by folder, the step its tracker names, and whether all ranks had written it by then."""
    found = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        if name not in ("latest", "latest_checkpointed_iteration.txt") or any(
            path.startswith(f"{group}/") for group in groups
        ):
            continue
        tag = read(path)[:200].decode("utf-8", "replace").strip()
        step = (int(tag),) if re.fullmatch(r"\d{1,15}", tag) else step_of(tag)
        if step:
            found[folder] = (step, name != "latest")
    return found


def _check_announced(path: str, announced: Mapping[str, tuple[tuple[int, ...], bool]]) -> bool:
    last, is_sure = announced.get(path.rpartition("/")[0], ((), False))
    if last and step_of(path) > last:
        raise _Unfit("checkpoint-unannounced", "-".join(map(str, last)))
    return is_sure and step_of(path) == last


def _layout(path: str, group: Listing, read: Callable[[str], bytes]) -> str:
    """Return which layouts a candidate has, joined by `+`. Raises _Unfit where one of them is not complete."""
    empty = [name for name, seen in group.items() if seen.size == 0 and _is_data(path, name)]
    if empty:
        raise _Unfit("checkpoint-incomplete", f"{_named(empty)} empty")
    if temporary := [name for name in (path, *group) if any(map(_TEMPORARY.fullmatch, name.split("/")))]:
        raise _Unfit("checkpoint-unfinished", _named(temporary))
    found = [layout for layout, check in _CHECKS.items() if check(group, read)]
    is_marked = any(name in MARKERS for name in group) and len(group) > 1
    if not found and not is_marked:
        raise _Unfit("checkpoint-unknown", _named(sorted(group)))
    return "+".join(found)


def _is_file(group: Listing, read: Callable[[str], bytes]) -> bool:
    return "" in group


def _is_dcp(group: Listing, read: Callable[[str], bytes]) -> bool:
    shards = [name for name in group if name.endswith(".distcp")]
    indexes = [name for name in group if _base(name) == ".metadata"]
    for shard in shards:
        if _sibling(shard, ".metadata") not in indexes:
            raise _Unfit("checkpoint-incomplete", f"{_sibling(shard, '.metadata')} missing")
    for index in indexes:
        named = sorted({_sibling(index, one.decode()) for one in _DISTCP.findall(read(index))})
        if not named:
            raise _Unfit("checkpoint-torn", index)
        _require(group, named)
        newest = max(group[name].mtime_s for name in named)
        if newest > group[index].mtime_s + GRACE_S:
            raise _Unfit("checkpoint-unfinished", f"{index} is older than its files")
    return bool(indexes)


def _is_megatron(group: Listing, read: Callable[[str], bytes]) -> bool:
    ranks: dict[str, tuple[int, ...]] = {}
    for name in group:
        found = _MEGATRON.fullmatch(name.split("/")[0]) if "/" in name else None
        if found:
            ranks[name.split("/")[0]] = tuple(int(one) for one in found.groups() if one is not None)
    if len({len(rank) for rank in ranks.values()}) > 1:
        raise _Unfit("checkpoint-incomplete", "ranks of two ways to split")
    _require_grid(set(ranks.values()), "mp_rank")
    for rank in sorted(ranks):
        if not any(f"{rank}/{name}" in group for name in ("model_optim_rng.pt", "model_rng.pt")):
            raise _Unfit("checkpoint-incomplete", f"{rank}/model_optim_rng.pt missing")
    return bool(ranks)


def _is_deepspeed(group: Listing, read: Callable[[str], bytes]) -> bool:
    grids: dict[str, dict[str, set[tuple[int, ...]]]] = defaultdict(lambda: defaultdict(set))
    for name in group:
        folder = name.rpartition("/")[0]
        if found := _ZERO.fullmatch(_base(name)):
            grids[folder][found[3]].add((int(found[1]), int(found[2])))
        elif found := _MODEL_STATES.fullmatch(_base(name)):
            grids[folder]["plain"].add((int(found[1]),))
    for folder, grid in grids.items():
        for kind in ("optim", "model", "plain"):
            _require_grid(grid[kind], f"{folder or '.'} {kind} states")
        ranks = {rank[1:] for rank in grid["optim"]}
        if grid["model"] and grid["optim"] and grid["model"] != grid["optim"]:
            raise _Unfit("checkpoint-incomplete", f"{folder or '.'}: states of unlike ranks")
        if not grid["model"] and ranks - grid["plain"]:
            raise _Unfit("checkpoint-incomplete", f"{folder or '.'}: model states missing")
    if grids and "latest" in group:
        tag = read("latest")[:200].decode("utf-8", "replace").strip()
        if tag not in grids:
            raise _Unfit("checkpoint-incomplete", f"{tag[:80]!a} missing, which latest names")
    return bool(grids)


def _is_hugging_face(group: Listing, read: Callable[[str], bytes]) -> bool:
    for index in (name for name in group if name.endswith(".index.json")):
        try:
            named = json.loads(read(index))["weight_map"].values()
            shards = sorted({_sibling(index, str(shard)) for shard in named})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise _Unfit("checkpoint-torn", index) from None
        _require(group, shards)
    counted: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    for name in group:
        if found := _OF.fullmatch(name):
            counted[found[1], found[4], int(found[3])].add(int(found[2]))
    for (stem, suffix, count), numbers in counted.items():
        if len(numbers) < count:
            raise _Unfit("checkpoint-incomplete", f"{count - len(numbers)} of {count} of {stem}*{suffix} missing")
    if "training_args.bin" in group and "trainer_state.json" not in group:
        raise _Unfit("checkpoint-incomplete", "trainer_state.json missing")
    names = [_base(name) for name in group]
    return any(name.endswith((".safetensors", ".pdparams")) for name in names) or any(
        name.startswith("pytorch_model") for name in names
    )


_CHECKS: Final[Mapping[str, Callable[[Listing, Callable[[str], bytes]], bool]]] = {
    "file": _is_file,
    "torch-dcp": _is_dcp,
    "megatron": _is_megatron,
    "deepspeed": _is_deepspeed,
    "hugging-face": _is_hugging_face,
}


def _check_marker(group: Listing) -> bool:
    """Return whether a marker ends the candidate: the writer's own word, so long as nothing was written since."""
    marked = [group[name].mtime_s for name in MARKERS if name in group]
    if marked and max(seen.mtime_s for seen in group.values()) > max(marked) + GRACE_S:
        raise _Unfit("checkpoint-unfinished", "files are newer than the marker")
    return bool(marked)


def _check_settled(group: Listing, now_s: float, grace_s: float) -> None:
    newest = max(group, key=lambda name: group[name].mtime_s)
    # A time ahead of ours is a clock that differs, or a file being written: neither says it is finished.
    if now_s - group[newest].mtime_s < grace_s:
        raise _Unfit("checkpoint-unfinished", newest or "it")


def _check_like(group: Listing, older: list[dict[str, FileSeen]]) -> None:
    """Raise _Unfit where kinds of data files are missing that all older checkpoints beside it have.

    ZeRO states are also counted: a job does not go on with fewer ranks than it had.
    """
    if older:
        now, before = (sum(1 for name in one if _ZERO.fullmatch(_base(name))) for one in (group, older[0]))
        if now < before:
            raise _Unfit("checkpoint-incomplete", f"{before - now} of {before} ZeRO states missing")
        missing = frozenset.intersection(*map(_kinds, older)) - _kinds(group)
        if missing:
            raise _Unfit("checkpoint-incomplete", f"{_named(sorted(missing))} missing, which older ones have")


def _kinds(group: Listing) -> frozenset[str]:
    return frozenset(re.sub(r"\d+", "#", name) for name in group if _DATA.fullmatch(_base(name)))


def _alike(one: str, other: str) -> bool:
    """Return whether two paths lie beside each other and are named alike."""
    return re.sub(r"\d+", "#", one) == re.sub(r"\d+", "#", other)


def _require(group: Listing, names: list[str]) -> None:
    missing = [name for name in names if name not in group or group[name].size == 0]
    if missing:
        raise _Unfit("checkpoint-incomplete", f"{_named(missing)} missing")


def _require_grid(ranks: set[tuple[int, ...]], what: str) -> None:
    if not ranks:
        return
    sizes = [max(axis) + 1 for axis in zip(*ranks, strict=True)]
    if len(ranks) < math.prod(sizes):
        lacking = (rank for rank in itertools.product(*map(range, sizes)) if rank not in ranks)
        raise _Unfit("checkpoint-incomplete", f"{what} {next(lacking)} missing")


def _reader(read: Callable[[str], bytes], path: str) -> Callable[[str], bytes]:
    return lambda name: read(_below(path, name))


def _is_data(path: str, name: str) -> bool:
    return _DATA.fullmatch(_base(_below(path, name))) is not None


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(name or "it" for name in names[:_MOST_NAMED]) + more


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _sibling(path: str, name: str) -> str:
    folder = path.rpartition("/")[0]
    return f"{folder}/{name}" if folder else name


def _below(path: str, name: str) -> str:
    return name if path == "." else f"{path}/{name}" if name else path
