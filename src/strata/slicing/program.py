"""Whether a program will load the quota library at all: told before it starts, since afterwards nothing tells."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from strata.slicing.elf import Elf, read_elf

_MOST_HOPS: Final = 4


def why_not_held(path: Path, search: str) -> str:
    """Return why the quota cannot hold a program, as the end of a sentence; "" where nothing speaks against it.

    search: PATH, for scripts that name their interpreter by `env`. Of what it starts later nothing is known.
    """
    for _ in range(_MOST_HOPS):
        try:
            status = path.stat()
            elf = read_elf(path)
            if elf is not None:
                return _why(elf, status, path)
            path = _interpreter(path, search) or Path("/bin/sh")  # a script with no first line is the shell's
        except OSError:  # one may run what one may not read
            return ""
    return ""


def _why(elf: Elf, status: os.stat_result, path: Path) -> str:
    is_foreign = (status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid()) or (
        status.st_mode & stat.S_ISGID and status.st_gid != os.getegid()
    )
    if elf.bits != 64:
        return f"{path} is a {elf.bits}-bit program, and the library has 64"
    if not elf.interpreter:
        return f"{path} is linked statically, so that nothing can be loaded into it"
    if Path(elf.interpreter).name.startswith("ld-musl"):
        return f"{path} runs on musl, and the library needs glibc"
    if is_foreign or "security.capability" in os.listxattr(path):
        return f"{path} has more rights than its user, so that nothing is loaded into it"
    return ""


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
