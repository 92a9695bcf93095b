"""The newest complete checkpoint among some files: what a moved job goes on from.

Beside the layouts of `checkpoint_layouts`: one file, such as `...step=1000.ckpt` (Lightning), `prefix-3_1875.ckpt`
(MindSpore: epoch and step in it), `last.ckpt` or `ckpt.pt`; and anything with a marker, `.complete` or `_SUCCESS`.
Files are told apart by names, sizes and times. What is read of them comes by arguments, so this decides purely.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from strata.cluster.controller.checkpoint_layouts import (
    GRACE_S,
    LAYOUTS,
    MEGATRON_RANK,
    ZERO_STATES,
    FileSeen,
    Listing,
    Unfit,
    base,
    named,
)
from strata.decision import Reason

MARKERS: Final = (".complete", "_SUCCESS")
STEP_DIR: Final = re.compile(r"(?:.*[-_.])?(?:iter|iteration|global_?step|step|checkpoint|ckpt)[-_=]?(\d{1,15})")
_STEP_FILE: Final = re.compile(r"(?:.*[-_=.])?(?:step|iter)[-_=]?(\d{1,15})(?:-v\d+)?\.(?:ckpt|pt|pth)")
_MINDSPORE: Final = re.compile(r".+-(\d{1,9})_(\d{1,9})\.ckpt")
_LOOSE: Final = re.compile(r"(?:last|latest|checkpoint|ckpt)[^/]*\.(?:ckpt|pt|pth)")
_TEMPORARY: Final = re.compile(r"(?:.*[._-])?(?:tmp|temp|partial|incomplete)(?:[._-].*)?")
_DATA: Final = re.compile(r".*\.(?:pt|pth|bin|safetensors|distcp|ckpt|pdparams|pdopt|metadata|json)|\.metadata")
_CONTENT: Final = re.compile(r"\.metadata|.*\.(?:distcp|safetensors|index\.json|pdparams)|pytorch_model.*\.bin")


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
class CheckpointSearch:
    """The newest complete checkpoint, if there is any, and why each that looked newer was passed over."""

    newest: Checkpoint | None
    passed: tuple[Reason, ...] = ()


def newest_of(
    files: Listing,
    *,
    read: Callable[[str], bytes],
    is_torn: Callable[[str], bool],
    now_s: float,
    grace_s: float = GRACE_S,
) -> CheckpointSearch:
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
        return (step_of(path) if has_steps else (), max(file.mtime_s for file in groups[path].values()), path)

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
                raise Unfit("checkpoint-torn", named(torn))
        except Unfit as unfit:
            passed.append(Reason(unfit.token, path, {"what": unfit.what}))
            continue
        written_s = max(file.mtime_s for file in group.values())
        return CheckpointSearch(Checkpoint(path, layout or "marked", step_of(path), written_s), tuple(passed))
    return CheckpointSearch(None, tuple(passed))


def step_of(path: str) -> tuple[int, ...]:
    """Return the step a checkpoint's name says, empty where it says none."""
    name = base(path)
    if match := _MINDSPORE.fullmatch(name):
        return (int(match[1]), int(match[2]))
    match = STEP_DIR.fullmatch(name) or _STEP_FILE.fullmatch(name)
    return (int(match[1]),) if match else ()


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
    content = {path for path in loose if _is_content(path) or (not groups and base(path) in MARKERS)}
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
    name = base(path)
    is_rank = len(parts := path.split("/")) > 1 and MEGATRON_RANK.fullmatch(parts[-2])
    return bool(_CONTENT.fullmatch(name) or ZERO_STATES.fullmatch(name) or is_rank)


def _holder(path: str) -> str:
    folder = path.rpartition("/")[0]
    while MEGATRON_RANK.fullmatch(base(folder)):
        folder = folder.rpartition("/")[0]
    return folder or "."


def _announced(
    files: Listing, groups: Mapping[str, object], read: Callable[[str], bytes]
) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return, by folder, the step its tracker names, and whether all ranks had written it by then."""
    announced = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        if name not in ("latest", "latest_checkpointed_iteration.txt") or any(
            path.startswith(f"{group}/") for group in groups
        ):
            continue
        tag = read(path)[:200].decode("utf-8", "replace").strip()
        step = (int(tag),) if re.fullmatch(r"\d{1,15}", tag) else step_of(tag)
        if step:
            announced[folder] = (step, name != "latest")
    return announced


def _check_announced(path: str, announced: Mapping[str, tuple[tuple[int, ...], bool]]) -> bool:
    last, is_sure = announced.get(path.rpartition("/")[0], ((), False))
    if last and step_of(path) > last:
        raise Unfit("checkpoint-unannounced", "-".join(map(str, last)))
    return is_sure and step_of(path) == last


def _layout(path: str, group: Listing, read: Callable[[str], bytes]) -> str:
    """Return which layouts a candidate has, joined by `+`. Raises Unfit where one of them is not complete."""
    empty = [name for name, seen in group.items() if seen.size == 0 and _is_data(path, name)]
    if empty:
        raise Unfit("checkpoint-incomplete", f"{named(empty)} empty")
    if temporary := [name for name in (path, *group) if any(map(_TEMPORARY.fullmatch, name.split("/")))]:
        raise Unfit("checkpoint-unfinished", named(temporary))
    layouts = [layout for layout, check in LAYOUTS.items() if check(group, read)]
    is_marked = any(name in MARKERS for name in group) and len(group) > 1
    if not layouts and not is_marked:
        raise Unfit("checkpoint-unknown", named(sorted(group)))
    return "+".join(layouts)


def _check_marker(group: Listing) -> bool:
    """Return whether a marker ends the candidate: the writer's own word, so long as nothing was written since."""
    marked = [group[name].mtime_s for name in MARKERS if name in group]
    if marked and max(seen.mtime_s for seen in group.values()) > max(marked) + GRACE_S:
        raise Unfit("checkpoint-unfinished", "files are newer than the marker")
    return bool(marked)


def _check_settled(group: Listing, now_s: float, grace_s: float) -> None:
    newest = max(group, key=lambda name: group[name].mtime_s)
    # A time ahead of ours is a clock that differs, or a file being written: neither says it is finished.
    if now_s - group[newest].mtime_s < grace_s:
        raise Unfit("checkpoint-unfinished", newest or "it")


def _check_like(group: Listing, older: list[dict[str, FileSeen]]) -> None:
    """Raise Unfit where kinds of data files are missing that all older checkpoints beside it have.

    ZeRO states are also counted: a job does not go on with fewer ranks than it had.
    """
    if older:
        now, before = (
            sum(1 for name in listing if ZERO_STATES.fullmatch(base(name))) for listing in (group, older[0])
        )
        if now < before:
            raise Unfit("checkpoint-incomplete", f"{before - now} of {before} ZeRO states missing")
        missing = frozenset.intersection(*map(_kinds, older)) - _kinds(group)
        if missing:
            raise Unfit("checkpoint-incomplete", f"{named(sorted(missing))} missing, which older ones have")


def _kinds(group: Listing) -> frozenset[str]:
    return frozenset(re.sub(r"\d+", "#", name) for name in group if _DATA.fullmatch(base(name)))


def _alike(path: str, other: str) -> bool:
    """Return whether two paths lie beside each other and are named alike."""
    return re.sub(r"\d+", "#", path) == re.sub(r"\d+", "#", other)


def _reader(read: Callable[[str], bytes], path: str) -> Callable[[str], bytes]:
    return lambda name: read(_below(path, name))


def _is_data(path: str, name: str) -> bool:
    return _DATA.fullmatch(base(_below(path, name))) is not None


def _below(path: str, name: str) -> str:
    return name if path == "." else f"{path}/{name}" if name else path
