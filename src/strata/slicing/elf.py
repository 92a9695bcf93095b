"""What an ELF file says of itself: who loads it, and which versions of the C library it needs.

References
----------
System V ABI, chapter 5 (program headers, dynamic section); the GNU extension for symbol versions as the Linux
Standard Base 5.0 has it (Core, 10.7).
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 5, 0x6FFFFFFE, 0x6FFFFFFF
_MOST_NAME, _MOST_LIBRARIES = 4096, 1024


@dataclass(frozen=True, slots=True)
class Elf:
    """bits: 32 or 64. interpreter: what loads it; "" where it is static. needs: symbol versions by library."""

    bits: int
    interpreter: str
    needs: dict[str, frozenset[str]]

    def glibc(self) -> tuple[int, int]:
        """Return the oldest version of glibc that has all the symbols it needs; (0, 0) where it needs none."""
        names = (name for versions in self.needs.values() for name in versions)
        matches = (re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", name) for name in names)
        return max(((int(version[1]), int(version[2])) for version in matches if version), default=(0, 0))


def read_elf(path: Path) -> Elf | None:
    """Read a file; None where it is no ELF file, or a broken one. Raises OSError where it cannot be read.

    Of a 32-bit or big-endian file only the bits are told.
    """
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return None
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
            try:
                if data[4:6] != b"\x02\x01":
                    return Elf(32 if data[4] == 1 else 64, "", {})
                return _read64(data)
            except (struct.error, IndexError, KeyError, OverflowError, ValueError):  # cut off, or nonsense
                return None


def _read64(data: mmap.mmap) -> Elf:
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQ", data, table + size * number) for number in range(count)]
    interpreter, dynamic = "", b""
    for kind, _, offset, _, _, length in headers:
        if kind == _PT_INTERP:
            interpreter = data[offset : offset + length].rstrip(b"\0").decode()
        elif kind == _PT_DYNAMIC:
            dynamic = data[offset : offset + length]
    loads = [(address, length, offset) for kind, _, offset, address, _, length in headers if kind == _PT_LOAD]
    return Elf(64, interpreter, _needs(data, dict(struct.iter_unpack("<QQ", dynamic)), loads))


def _needs(data: mmap.mmap, tags: dict[int, int], loads: list[tuple[int, int, int]]) -> dict[str, frozenset[str]]:
    if _DT_VERNEED not in tags:
        return {}
    strings = _offset(tags[_DT_STRTAB], loads)
    needed: dict[str, frozenset[str]] = {}
    place = _offset(tags[_DT_VERNEED], loads)
    for _ in range(min(tags[_DT_VERNEEDNUM], _MOST_LIBRARIES)):
        _, count, file, first, following = struct.unpack_from("<HHIII", data, place)
        needed[_string(data, strings + file)] = frozenset(_versions(data, place + first, count, strings))
        place += following
    return needed


def _versions(data: mmap.mmap, place: int, count: int, strings: int) -> Iterator[str]:
    for _ in range(count):
        _, _, _, name, following = struct.unpack_from("<IHHII", data, place)
        yield _string(data, strings + name)
        place += following


def _offset(address: int, loads: list[tuple[int, int, int]]) -> int:
    for start, length, offset in loads:
        if start <= address < start + length:
            return address - start + offset
    raise ValueError("an address in no segment")


def _string(data: mmap.mmap, place: int) -> str:
    end = data.find(b"\0", place, place + _MOST_NAME)
    if end < 0:
        raise ValueError("a name without an end")
    return data[place:end].decode()
