"""Whether a program will load the quota library at all: told before it starts, since afterwards nothing tells."""

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
class Unheld:
    """A program that the quota cannot hold. why: as a sentence's end. objects: its loader does, to our library."""

    why: str
    objects: bool


def unheld(path: Path, search: str) -> Unheld | None:
    """Return why the quota cannot hold a program; None where nothing speaks against it.

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


def _judge(elf: Elf, status: os.stat_result, path: Path) -> Unheld | None:
    is_foreign = (status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid()) or (
        status.st_mode & stat.S_ISGID and status.st_gid != os.getegid()
    )
    if elf.bits != 64:
        return Unheld(f"{path} is a {elf.bits}-bit program, and the library has 64", objects=True)
    if not elf.interpreter:
        return Unheld(f"{path} is linked statically, so that nothing can be loaded into it", objects=False)
    if Path(elf.interpreter).name.startswith("ld-musl"):
        return Unheld(f"{path} runs on musl, and the library needs glibc", objects=True)
    if is_foreign or "security.capability" in os.listxattr(path):
        return Unheld(f"{path} has more rights than its user, so that nothing is loaded into it", objects=False)
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
    found = shutil.which(words[0], path=search) if words else None
    return Path(found) if found else None
