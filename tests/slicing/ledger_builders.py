"""Ledgers as the quota library writes them (slicing/native/quota.h), without the library."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from strata.fleet.ledger import MAGIC, ROWS, SIZE, SLOTS, VERSION

MIB = 2**20
_living: dict[Path, list[int]] = {}


def started(pid: int) -> int:
    """When a process started, in clock ticks since boot."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def lock(path: Path, slot: int) -> int:
    """Live in a slot, as far as the file tells, until what this returns is closed."""
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 8192 + 8 * slot, 8, 0))
    return file


def die() -> None:
    """Let go of every slot of every ledger that was written."""
    while _living:
        for file in _living.popitem()[1]:
            os.close(file)


class Ledger:
    """Bytes of a ledger, filled row by row."""

    def __init__(self, *, version: int = VERSION, content: bytes = bytes(SIZE)) -> None:
        self.data = bytearray(content)
        self.slots = self.rows = 0
        self.living: list[int] = []
        struct.pack_into("<8s3I", self.data, 0, MAGIC, version, SLOTS, ROWS)

    def row(self, limit: int, *, ordinal: int = 0, vendor: int = 0, cores: int = 0) -> int:
        place = 4096 + 64 * self.rows
        struct.pack_into("<QQIII", self.data, place, 0xBEEF + self.rows, limit, ordinal, vendor, cores)
        self.rows += 1
        return self.rows - 1

    def process(self, pid: int | None = None, *, lives: bool = True, namespace: int = 0) -> int:
        """Take a slot; by default for the process that runs the test."""
        pid = os.getpid() if pid is None else pid
        owner = 1 | pid << 2 | started(os.getpid()) << 24
        struct.pack_into("<Q", self.data, 8192 + 8 * self.slots, owner)
        struct.pack_into("<I", self.data, 540_672 + 4 * self.slots, namespace)
        if lives:
            self.living.append(self.slots)
        self.slots += 1
        struct.pack_into("<I", self.data, 20, self.slots)
        return self.slots - 1

    def held(self, row: int, slot: int, count: int, *, undecided: int = 0) -> None:
        struct.pack_into("<Q", self.data, 16384 + 8 * (SLOTS * row + slot), count | undecided << 52)

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        for file in _living.pop(path, ()):
            os.close(file)
        path.write_bytes(self.data)
        _living[path] = [lock(path, slot) for slot in self.living]
        return path
