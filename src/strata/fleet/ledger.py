"""The ledger of a slice, read: which processes hold how much of which device. The quota library writes it.

Nothing is locked and nothing is written: processes come and go meanwhile, and each figure is of its own moment.
Who lives has its word in the file locked, which says so across containers, where pids do not.
The layout is that of slicing/native/quota.h; a note of what was asked for lies where the library looks at nothing.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.errors import UsageError
from strata.fleet.slices import QuotaLimits

MAGIC: Final = b"STRATAQL"
VERSION: Final = 2
SLOTS: Final = 1024
ROWS: Final = 64
SIZE: Final = 565_248
_SIZES: Final = (544_768, SIZE)  # the former: of programs that all have an earlier library
NOTE_AT: Final = 1024

_HEADER: Final = struct.Struct("<8s4I")
_NOTE: Final = struct.Struct("<8sQII")
_NOTE_MAGIC: Final = b"STRATANT"
_ROW: Final = struct.Struct("<QQ4I3Q")
_ROWS_AT, _ROW_SIZE, _OWNERS_AT, _HELD_AT, _NAMESPACES_AT = 4096, 64, 8192, 16384, 540_672
_LOCK: Final = struct.Struct("hhqqi4x")
"""struct flock where addresses have 64 bits: type, whence, start, length, pid."""
_BYTES: Final = (1 << 52) - 1
_VENDORS: Final = ("nvidia", "ascend")
_TRUSTS: Final = ("", "assumed", "given", "measured")


@dataclass(frozen=True, slots=True)
class LedgerHolder:
    """A living process, and what it holds of a device. is_here: its pid is one in our pid namespace."""

    pid: int
    used_bytes: int
    is_here: bool = True


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a slice holds of one device.

    device: its number in the process that came first; None where no process has asked for one yet. limit_bytes,
    cores_share: None is no limit. used_bytes: of living processes. gone_bytes: of processes that have ended, which
    the library takes back when it next needs them. context_bytes: what each process is charged for its context,
    with the trust in that; "" where none was made yet. refused: requests that did not fit.
    """

    name: str
    device: int | None
    vendor: str
    limit_bytes: int | None
    cores_share: float | None
    used_bytes: int
    processes: tuple[LedgerHolder, ...]
    gone_bytes: int = 0
    context_bytes: int = 0
    context_trust: str = ""
    refused: int = 0


def read_ledger(path: Path, *, name: str) -> list[DeviceUse]:
    """Return what a slice holds, one entry a device; one without a device where no process has asked for any.

    Raises UsageError for what is not a ledger.
    """
    data, limits, slots, lives = _read(path)
    owners = struct.unpack_from(f"<{slots}Q", data, _OWNERS_AT)
    spaces = struct.unpack_from(f"<{slots}I", data, _NAMESPACES_AT)
    here = _namespace()
    uses = []
    for number in range(ROWS if slots else 0):
        row = _ROW.unpack_from(data, _ROWS_AT + number * _ROW_SIZE)
        key, limit, ordinal, vendor, cores, trust, _, context, refused = row
        if key == 0:
            continue
        words = struct.unpack_from(f"<{slots}Q", data, _HELD_AT + 8 * SLOTS * number)
        held = [word & _BYTES for word in words]
        holders = [
            LedgerHolder(owners[slot] >> 2 & 0x3FFFFF, held[slot], spaces[slot] in (0, here))
            for slot in sorted(lives)
        ]
        uses.append(
            DeviceUse(
                name,
                ordinal,
                _VENDORS[vendor] if vendor < len(_VENDORS) else f"vendor {vendor}",
                limit or None,
                cores / 100 if cores else None,
                sum(holder.used_bytes for holder in holders),
                tuple(sorted(holders, key=lambda holder: holder.pid)),
                sum(used for slot, used in enumerate(held) if owners[slot] and slot not in lives),
                context if trust else 0,
                _TRUSTS[trust] if trust < len(_TRUSTS) else "assumed",
                refused,
            )
        )
    if not uses and limits is not None:
        uses.append(DeviceUse(name, limits.device, "", limits.memory_bytes, limits.cores_share, 0, ()))
    return uses


def count_processes(path: Path) -> int:
    """Return how many living processes count in a ledger. Raises UsageError as `read_ledger`."""
    *_, lives = _read(path)
    return len(lives)


def new_ledger(limits: QuotaLimits) -> bytes:
    """Return the content of a ledger that nobody counts in yet, with a note of what was asked for."""
    data = bytearray(SIZE)
    share = 0 if limits.cores_share is None else round(100 * limits.cores_share)
    device = 0 if limits.device is None else limits.device + 1
    _NOTE.pack_into(data, NOTE_AT, _NOTE_MAGIC, limits.memory_bytes or 0, share, device)
    return bytes(data)


def read_limits(path: Path) -> QuotaLimits | None:
    """Return what a slice was begun with; None without a note. Raises UsageError as `read_ledger`."""
    _, limits, _, _ = _read(path)
    return limits


def _read(path: Path) -> tuple[bytes, QuotaLimits | None, int, frozenset[int]]:
    """Return the content, what was asked for, how many slots have been taken, and those whose owners live."""
    try:
        # Others' folders may hold a link in its place, or a pipe that nobody writes to.
        opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(opened, "rb") as file:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise UsageError(f"{path}: not a slice ledger: it is not a file")
            data = file.read(SIZE + 1)
            if not any(data[: _HEADER.size]):  # one that is just being made, or whose maker was killed meanwhile
                data = data.ljust(SIZE, b"\0")
            slots = _slots(data, path)
            taken = [slot for slot in range(slots) if data[_OWNERS_AT + 8 * slot] & 3]
            return data, _note(data), slots, frozenset(slot for slot in taken if _is_locked(file.fileno(), slot))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None


def _is_locked(file: int, slot: int) -> bool:
    wanted = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _OWNERS_AT + 8 * slot, 8, 0)
    kind, *_ = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, wanted))
    return bool(kind != fcntl.F_UNLCK)


def _namespace() -> int:
    """Return the number of our pid namespace; -1 where /proc does not tell."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return -1


def _slots(data: bytes, path: Path) -> int:
    """Return how many slots have ever been taken; 0 before the library has written its header."""
    hint = f"rm {path}, once its processes have ended"
    if len(data) < _HEADER.size:
        raise UsageError(f"{path}: not a slice ledger: {len(data)} bytes", hint=hint)
    magic, version, slots, rows, used = _HEADER.unpack_from(data)
    if magic not in (MAGIC, bytes(len(MAGIC))):
        raise UsageError(f"{path}: not a slice ledger", hint=hint)
    if magic == MAGIC and ((version, slots, rows) != (VERSION, SLOTS, ROWS) or used > SLOTS):
        message = f"{path}: a slice ledger of version {version}; this strata reads version {VERSION}"
        raise UsageError(message, hint=hint)
    if len(data) not in _SIZES:
        raise UsageError(f"{path}: a truncated slice ledger: {len(data)} bytes instead of {SIZE}", hint=hint)
    return int(used) if magic == MAGIC else 0


def _note(data: bytes) -> QuotaLimits | None:
    magic, memory, cores, device = _NOTE.unpack_from(data, NOTE_AT)
    if magic != _NOTE_MAGIC:
        return None
    return QuotaLimits(memory or None, cores / 100 if cores else None, device - 1 if device else None)
