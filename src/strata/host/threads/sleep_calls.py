"""What a sleeping thread sleeps in: the system call, its descriptor, or a page fault.

References
----------
proc(5): /proc/PID/syscall, /proc/PID/fd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

from strata.bundled import bundled_table

SleepCall = Literal[
    "interpreter_lock",
    "futex",
    "timer",
    "events",
    "pipe",
    "socket",
    "file",
    "driver",
    "child",
    "memory_map",
    "fault",
    "other",
]
SLEEP_CALLS: Final = frozenset(get_args(SleepCall))
_DATA: Final = bundled_table("strata.host.threads", "sleep_calls.toml")
WORDS: Final[dict[SleepCall, str]] = _DATA["words"]
_FAULT: Final = -1
_CALLS: Final[dict[str, dict[int, str]]] = {
    machine: {number: kind for kind, numbers in _DATA[table].items() for number in numbers}
    for machine, table in (("x86_64", "x86"), ("aarch64", "generic"), ("riscv64", "generic"))
}


def sleep_call_of(
    text: str,
    *,
    machine: str,
    interpreters: Callable[[], tuple[tuple[int, int], ...]] = tuple,
    target: Callable[[int], str] = lambda descriptor: "",
) -> SleepCall | None:
    """Return what a thread sleeps in, from its file `syscall`; None where it runs, or the file says nothing.

    machine: as `os.uname().machine`. interpreters: where the state of its Python interpreters lies: from, behind.
    target: what one of its descriptors is open on, as /proc/PID/fd/N says; "" where that is not known.
    """
    words = text.split()
    if not words or words[0] == "running":
        return None
    try:
        number = int(words[0])
        first = int(words[1], 16) if number != _FAULT else 0
    except (ValueError, IndexError):
        return None
    if number == _FAULT:
        return "fault"
    match _CALLS.get(machine, {}).get(number):
        case None:
            return "other"
        case "futex":
            return "interpreter_lock" if any(low <= first < high for low, high in interpreters()) else "futex"
        case "descriptor":
            return _open_on(target(first))
        case "timer" | "events" | "file" | "child" | "memory_map" as kind:
            return kind
        case kind:
            raise AssertionError(kind)


def _open_on(target: str) -> SleepCall:
    if target.startswith("pipe:"):
        return "pipe"
    if target.startswith("socket:"):
        return "socket"
    if target.startswith("anon_inode:"):
        return "events"
    if target.startswith("/dev/") and not target.startswith("/dev/shm/"):
        return "driver"
    return "file" if target.startswith("/") else "other"
