"""A thread says itself what it is, so that no one has to guess: its name, its nice value, scx_layered's CmdJoin.

References
----------
sched-ext/scx, scheds/rust/scx_layered/examples/cmdjoin.c (the 16 bytes of a command).
"""

from __future__ import annotations

import os
import re
import struct
import threading
from dataclasses import dataclass
from typing import Final

from strata.errors import MissingPart, UsageError

NAME_PREFIX: Final = "st-"
"""What names of labelled threads begin with; `CommPrefix: st-train` finds them."""
MAX_LABEL: Final = 12
"""Room in scx_layered's command; with the prefix it is all that a thread's name holds."""
_PR_SET_NAME: Final = 15
_JOIN: Final = struct.pack("<HB", 0x5C10, 1)


@dataclass(frozen=True, slots=True)
class Labelled:
    """What was done: the thread, its new name, and its nice value (None: as it was, or refused)."""

    tid: int
    name: str
    nice: int | None


def label(what: str, *, nice: int | None = None) -> Labelled:
    """Label the calling thread, as `train`, `comms`, `load`; `strata host threads` and scx_layered see it.

    Its name becomes `st-<what>`; where scx_layered runs, layers with `CmdJoin: <what>` take it at once. A lower
    nice value needs CAP_SYS_NICE: where that is refused the label stands, and `nice` of the answer is None.
    Raises UsageError for a label that a thread's name cannot hold, MissingPart where the system is not Linux.
    """
    if not re.fullmatch(rf"[a-z0-9][a-z0-9_.-]{{0,{MAX_LABEL - 1}}}", what):
        raise UsageError(
            f"label {what!r}: should be 1 to {MAX_LABEL} of a-z, 0-9, '_', '.' and '-'", hint='label("train")'
        )
    if nice is not None and not -20 <= nice <= 19:
        raise UsageError(f"nice {nice}: should be from -20 to 19")
    name = f"{NAME_PREFIX}{what}"
    # The command first: it is sent as a name, which must not stay.
    _set_name(_JOIN + what.encode().ljust(13, b"\0"))
    _set_name(name.encode())
    tid = threading.get_native_id()
    if nice is not None:
        try:
            os.setpriority(os.PRIO_PROCESS, tid, nice)
        except PermissionError:
            nice = None
    return Labelled(tid, name, nice)


def _set_name(raw: bytes) -> None:
    import ctypes

    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except AttributeError:
        raise MissingPart("threads can be labelled on Linux only") from None
    if prctl(_PR_SET_NAME, ctypes.c_char_p(raw), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
