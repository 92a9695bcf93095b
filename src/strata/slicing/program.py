"""Whether a program can load the quota library at all: checked before it starts, since it would fail silently."""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strata.slicing.elf import Elf, read_elf

_MOST_HOPS: Final = 4


@dataclass(frozen=True, slots=True)
class IncompatibleProgram:
    """A program that cannot load the library. why: ends a sentence. objects: its loader warns of the preload."""

    why: str
    objects: bool


def incompatibility(path: Path, search: str) -> IncompatibleProgram | None:
    """Return why a program cannot load the library; None where nothing speaks against it.

    search: PATH, for scripts that name their interpreter by `env`. Of what it starts later nothing is known.
    """
    for _ in range(_MOST_HOPS):
        try:
            status = path.stat()
            elf = read_elf(path)
            if elf is not None:
                return _judge(elf, status, path)
            path = _interpreter(path, search) or Path("/bin/sh")  # a script with no first line is the shell's
        except OSError:  # one may run what one may not read
            return None
    return None


def _judge(elf: Elf, status: os.stat_result, path: Path) -> IncompatibleProgram | None:
    is_foreign = (status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid()) or (
        status.st_mode & stat.S_ISGID and status.st_gid != os.getegid()
    )
    if elf.bits != 64:
        return IncompatibleProgram(f"{path} is a {elf.bits}-bit program, and the library is 64-bit", objects=True)
    if not elf.interpreter:
        return IncompatibleProgram(f"{path} is statically linked, so nothing can be preloaded", objects=False)
    if Path(elf.interpreter).name.startswith("ld-musl"):
        return IncompatibleProgram(f"{path} uses musl, and the library needs glibc", objects=True)
    if is_foreign or "security.capability" in os.listxattr(path):
        return IncompatibleProgram(f"{path} runs with elevated privileges, so nothing is preloaded", objects=False)
    return None


def _interpreter(path: Path, search: str) -> Path | None:
    """Return what runs a script, by its first line."""
    with path.open("rb") as file:
        first = file.readline(256)
    if not first.startswith(b"#!"):
        return None
    words = [word for word in os.fsdecode(first[2:]).split() if word]
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    program = shutil.which(words[0], path=search) if words else None
    return Path(program) if program else None
