"""Where a process keeps the state of its Python interpreter, the lock that all its threads share (GIL) included.

CPython exports that state as one variable, `_PyRuntime`, since 3.7; the main interpreter's lock lies within it.
(An interpreter with a lock of its own, PEP 684, has that elsewhere.)

References
----------
CPython Include/internal/pycore_runtime.h, Python/ceval_gil.c. System V ABI, chapter 4 (sections, symbol table).
"""

from __future__ import annotations

import mmap
import os
import re
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from strata.host.machine.kernel import read_attribute

SYMBOL: Final = b"_PyRuntime"
_IMAGE: Final = re.compile(r"^([0-9a-f]+)-\S+ \S+ 0+ \S+ \S+ +(/.*/(?:lib)?python\d[^/\n]*)$", re.M)
_ET_EXEC, _SHT_DYNSYM = 2, 11
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_MOST_IMAGES: Final = 4


def interpreters_of(pid: int, root: Path = Path("/")) -> tuple[tuple[int, int], ...]:
    """Return the addresses of a process's interpreters: from, behind; none where it has none or hides them."""
    folder = root / "proc" / str(pid)
    spans: list[tuple[int, int]] = []
    images = dict(_IMAGE.findall(read_attribute(folder / "maps")))
    for start, name in list(images.items())[:_MOST_IMAGES]:
        place = state_in(folder / "root" / name.lstrip("/"))
        if place is not None:
            offset, size, is_fixed = place
            low = offset + (0 if is_fixed else int(start, 16))
            spans.append((low, low + size))
    return tuple(spans)


def state_in(image: Path) -> tuple[int, int, bool] | None:
    """Return offset and size of the state in an ELF file, and whether that is an address already; None without."""
    # A process chooses what lies at this name: nothing that would be waited for is opened.
    try:
        descriptor = os.open(image, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            with suppress(OSError, ValueError, struct.error, IndexError, OverflowError):  # cut off, or nonsense
                return _state_in(descriptor)
    finally:
        os.close(descriptor)
    return None


def _state_in(descriptor: int) -> tuple[int, int, bool] | None:
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as data:
        return _state(data)


def _state(data: mmap.mmap) -> tuple[int, int, bool] | None:
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    (kind,) = struct.unpack_from("<H", data, 16)
    (table,) = struct.unpack_from("<Q", data, 40)
    (count,) = struct.unpack_from("<H", data, 60)
    sections = [_SECTION.unpack_from(data, table + _SECTION.size * number) for number in range(count)]
    for _, section, _, _, offset, size, link, *_ in sections:
        if section != _SHT_DYNSYM:
            continue
        strings, length = sections[link][4], sections[link][5]
        name = data.find(b"\0" + SYMBOL + b"\0", strings, strings + length) + 1 - strings
        for index, _, _, _, value, extent in _SYMBOL.iter_unpack(data[offset : offset + size]):
            if index == name > 0:
                return value, extent, kind == _ET_EXEC
    return None
