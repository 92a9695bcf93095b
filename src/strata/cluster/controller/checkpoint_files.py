"""Checkpoints in a folder of this machine: lists it, never follows a link, and asks `checkpoint.py`.

A job's owner names the folder, so it is read as an enemy's: no way out of the root by `..` or a link, bounds on
how much is listed and read, and nothing is unpickled.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from strata.cluster.controller.checkpoint import STEP_DIR, CheckpointSearch, newest_of, step_of
from strata.cluster.controller.checkpoint_layouts import GRACE_S, FileSeen
from strata.decision import Reason
from strata.errors import StrataError, UsageError

MOST_STEPS: Final = 20
"""Of the folders named after a step, the newest are looked into."""
MOST_FILES: Final = 200_000
MOST_DEPTH: Final = 8
MOST_BYTES: Final = 256 * 2**20
"""An index of a large model is some tens of MB."""


def newest_complete(root: Path, folder: str = "", *, now_s: float, grace_s: float = GRACE_S) -> CheckpointSearch:
    """Return the newest complete checkpoint in `folder`, its path below the folder.

    root: what this machine keeps checkpoints in, trusted. folder: what a job says, below the root or absolute, not
    trusted. Nothing that a job says or stores raises: where it leads out of the root, or cannot be read, there is
    no checkpoint, and `checkpoint-unreadable` says why.
    """
    try:
        top = _inside(root, folder)
        if not top.is_dir():
            raise UsageError("there is no such folder")
        files = dict(_walk(top))
        return newest_of(
            files,
            read=lambda path: _read(top / path),
            is_torn=lambda path: _is_torn(top / path),
            now_s=now_s,
            grace_s=grace_s,
        )
    except OSError as error:
        why = error.strerror or str(error)
    except StrataError as error:
        why = str(error)
    return CheckpointSearch(None, (Reason("checkpoint-unreadable", ascii(folder[:80])[1:-1], {"why": why}),))


def _inside(root: Path, folder: str) -> Path:
    plain = PurePosixPath(folder)
    if ".." in plain.parts or not _is_plain(folder) or len(folder) >= 4096:
        raise UsageError("is not a plain path of a folder")
    try:
        top = (root / plain).resolve()
    except RuntimeError:  # what Python before 3.13 raises there
        raise UsageError("is a link to itself") from None
    if not top.is_relative_to(root.resolve()):
        raise UsageError("leads out of where checkpoints are")
    return top


def path_of(folder: str, search: CheckpointSearch) -> str:
    """Return the path a job goes on from, empty where no checkpoint was found."""
    return str(PurePosixPath(folder) / search.newest.path) if search.newest is not None else ""


def _is_plain(name: str) -> bool:
    # A path ends up in a variable of a container, where `$(...)` would be replaced.
    return name.isprintable() and "$" not in name


def _walk(top: Path) -> Iterator[tuple[str, FileSeen]]:
    count = 0
    waiting = [(top, "", 0)]
    while waiting:
        folder, prefix, depth = waiting.pop()
        below: list[str] = []
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:  # rotated away meanwhile
            continue
        for entry in entries:
            count += 1
            if count > MOST_FILES:
                raise UsageError(f"has more than {MOST_FILES} files")
            if not _is_plain(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            elif entry.is_file(follow_symlinks=False):
                try:
                    seen = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield prefix + entry.name, FileSeen(seen.st_size, seen.st_mtime)
        if depth < MOST_DEPTH:
            steps = sorted((name for name in below if STEP_DIR.fullmatch(name)), key=step_of)[-MOST_STEPS:]
            plain = [name for name in below if not STEP_DIR.fullmatch(name)]
            waiting += [(folder / name, f"{prefix}{name}/", depth + 1) for name in (*plain, *steps)]


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)


def _read(path: Path) -> bytes:
    with os.fdopen(_open(path), "rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path.name} is larger than {MOST_BYTES // 2**20} MiB")
    return content


def _is_torn(path: Path) -> bool:
    """Return whether a file ends too early: by a safetensors header, or as a zip without its directory.

    safetensors: 8 bytes of length (little endian), that much JSON, then data up to the largest end of
    `data_offsets`. torch.save writes a zip, whose directory is at its end. Other forms do not say.
    """
    with os.fdopen(_open(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if not head.strip(b"\0"):
            return True  # space the file system gave, which was never written
        if path.suffix == ".safetensors":
            return _is_torn_safetensors(head, file.read(min(int.from_bytes(head, "little"), MOST_BYTES)), size)
        try:
            return head.startswith(b"PK\x03\x04") and not zipfile.is_zipfile(file)
        except zipfile.BadZipFile:
            return True


def _is_torn_safetensors(head: bytes, header: bytes, size: int) -> bool:
    length = int.from_bytes(head, "little")
    try:
        entries = json.loads(header)
        ends = [int(entry["data_offsets"][1]) for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError):
        return True
    return size < 8 + length + max(ends, default=0)
