"""The ledger of a slice, read: which processes hold how much of which device. The quota library writes it.

Nothing is locked and nothing is written: processes come and go meanwhile, and each figure is of its own moment.
The layout is that of slicing/native/quota.h; a note of what was asked for lies where the library looks at nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.errors import UsageError

MAGIC: Final = b"STRATAQL"
VERSION: Final = 1
SLOTS: Final = 1024
ROWS: Final = 64
SIZE: Final = 540_672
NOTE_AT: Final = 1024

_HEADER: Final = struct.Struct("<8s4I")
_NOTE: Final = struct.Struct("<8sQII")
_NOTE_MAGIC: Final = b"STRATANT"
_ROW: Final = struct.Struct("<QQIII")
_ROWS_AT, _ROW_SIZE, _OWNERS_AT, _HELD_AT = 4096, 64, 8192, 16384
_LIVE: Final = 1
_BYTES: Final = (1 << 52) - 1
_START: Final = (1 << 40) - 1
_VENDORS: Final = ("nvidia", "ascend")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a slice was begun with. device: by its number in the process; None is every device. None: no limit."""

    memory_bytes: int | None
    cores_share: float | None
    device: int | None


@dataclass(frozen=True, slots=True)
class Holder:
    """A living process, and what it holds of a device."""

    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a slice holds of one device.

    device: its number in the process that came first; None where no process has asked for one yet. limit_bytes,
    cores_share: None is no limit. used_bytes: of living processes. gone_bytes: of processes that have ended, which
    the library takes back when it next needs them.
    """

    name: str
    device: int | None
    vendor: str
    limit_bytes: int | None
    cores_share: float | None
    used_bytes: int
    processes: tuple[Holder, ...]
    gone_bytes: int = 0


def read_ledger(path: Path, *, name: str, is_alive: Callable[[int, int], bool] | None = None) -> list[DeviceUse]:
    """Return what a slice holds, one entry a device; one without a device where no process has asked for any.

    is_alive: of a pid and its start time, in clock ticks since boot. Raises UsageError for what is no ledger.
    """
    data = _content(path)
    asked = _note(data)
    slots = _slots(data, path)
    owners = struct.unpack_from(f"<{slots}Q", data, _OWNERS_AT) if slots else ()
    alive = [
        owner & 3 == _LIVE and (is_alive or process_lives)(owner >> 2 & 0x3FFFFF, owner >> 24) for owner in owners
    ]
    found = []
    for number in range(ROWS if slots else 0):
        key, limit, ordinal, vendor, cores = _ROW.unpack_from(data, _ROWS_AT + number * _ROW_SIZE)
        if key == 0:
            continue
        held = struct.unpack_from(f"<{slots}Q", data, _HELD_AT + 8 * SLOTS * number)
        rows = [
            (owner >> 2 & 0x3FFFFF, amount & _BYTES, lives)
            for owner, amount, lives in zip(owners, held, alive, strict=True)
            if owner & 3
        ]
        holders = tuple(sorted((Holder(pid, used) for pid, used, lives in rows if lives), key=lambda one: one.pid))
        found.append(
            DeviceUse(
                name,
                ordinal,
                _VENDORS[vendor] if vendor < len(_VENDORS) else f"vendor {vendor}",
                limit or None,
                cores / 100 if cores else None,
                sum(one.used_bytes for one in holders),
                holders,
                sum(used for _, used, lives in rows if not lives),
            )
        )
    if not found and asked is not None:
        found.append(DeviceUse(name, asked.device, "", asked.memory_bytes, asked.cores_share, 0, ()))
    return found


def new_ledger(asked: Asked) -> bytes:
    """Return the content of a ledger that nobody counts in yet, with a note of what was asked for."""
    data = bytearray(SIZE)
    share = 0 if asked.cores_share is None else round(100 * asked.cores_share)
    device = 0 if asked.device is None else asked.device + 1
    _NOTE.pack_into(data, NOTE_AT, _NOTE_MAGIC, asked.memory_bytes or 0, share, device)
    return bytes(data)


def read_asked(path: Path) -> Asked | None:
    """Return what a slice was begun with; None without a note. Raises UsageError as `read_ledger`."""
    data = _content(path)
    _slots(data, path)
    return _note(data)


def process_lives(pid: int, start: int, *, proc: Path = Path("/proc")) -> bool:
    """Say whether a process is there that started then (clock ticks since boot) and has not ended."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return False
    fields = text[text.rfind(b")") + 1 :].split()
    try:
        state, threads, started = fields[0], int(fields[17]), int(fields[19])
    except (IndexError, ValueError):
        return False
    # A zombie with threads has only lost its first one.
    return started & _START == start and (state not in (b"Z", b"X") or threads > 1)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(SIZE + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) not in (0, SIZE):
        raise UsageError(f"{path}: is no ledger: {len(data)} bytes, not {SIZE}")
    return data or bytes(SIZE)  # one that is just being made


def _slots(data: bytes, path: Path) -> int:
    """Return how many slots have ever been taken; 0 before the library has written its header."""
    magic, version, slots, rows, used = _HEADER.unpack_from(data)
    if magic == bytes(len(MAGIC)):
        return 0
    if magic != MAGIC:
        raise UsageError(f"{path}: is no ledger")
    if (version, slots, rows) != (VERSION, SLOTS, ROWS) or used > SLOTS:
        raise UsageError(f"{path}: is a ledger of version {version}; this reads version {VERSION}")
    return int(used)


def _note(data: bytes) -> Asked | None:
    magic, memory, cores, device = _NOTE.unpack_from(data, NOTE_AT)
    if magic != _NOTE_MAGIC:
        return None
    return Asked(memory or None, cores / 100 if cores else None, device - 1 if device else None)
