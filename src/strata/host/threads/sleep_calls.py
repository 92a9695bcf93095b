"""What a sleeping thread sleeps in: the system call, its descriptor, or a page fault.

References
----------
proc(5): /proc/PID/syscall, /proc/PID/fd. Numbers of calls: Linux arch/x86/entry/syscalls/syscall_64.tbl (x86-64),
include/uapi/asm-generic/unistd.h (ARM64, RISC-V). futex(2): its first argument is the word that is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, get_args

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
WORDS: Final[dict[SleepCall, str]] = {
    "interpreter_lock": "for Python's interpreter lock (GIL)",
    "futex": "for a lock, a condition or a queue (futex)",
    "timer": "for a timer (sleep)",
    "events": "for events (poll, epoll, select)",
    "pipe": "at a pipe",
    "socket": "at a socket",
    "file": "for a file",
    "driver": "in a device's driver",
    "child": "for a child process",
    "memory_map": "in its memory map (mmap, munmap, madvise)",
    "fault": "in page faults",
    "other": "in other system calls",
}
_DESCRIPTOR: Final = "descriptor"
"""Stands for calls that sleep in whatever their first argument, a descriptor, is open on."""
_FUTEX, _FAULT = "futex", -1
_X86: Final[dict[str, tuple[int, ...]]] = {
    _FUTEX: (202, 449, 455),
    "timer": (35, 230),
    # poll, select, pselect6, ppoll, epoll_*, io_uring_enter, pause, rt_sigtimedwait
    "events": (7, 23, 270, 271, 232, 281, 441, 426, 34, 128),
    # read, write, ioctl, pread64, pwrite64, readv, writev, connect, accept, send*, recv*, flock, preadv, pwritev
    _DESCRIPTOR: (0, 1, 16, 17, 18, 19, 20, 42, 43, 44, 45, 46, 47, 73, 288, 295, 296, 299, 307),
    # fsync, fdatasync, getdents64, io_getevents, openat, newfstatat, statx, open, stat
    "file": (74, 75, 217, 208, 257, 262, 332, 2, 4),
    "child": (61, 247),
    # mmap, mprotect, munmap, brk, mremap, madvise
    "memory_map": (9, 10, 11, 12, 25, 28),
}
_GENERIC: Final[dict[str, tuple[int, ...]]] = {
    _FUTEX: (98, 449, 455),
    "timer": (101, 115),
    "events": (72, 73, 22, 441, 426, 137),
    _DESCRIPTOR: (63, 64, 29, 67, 68, 65, 66, 203, 202, 206, 207, 211, 212, 32, 242, 69, 70, 243, 269),
    "file": (82, 83, 61, 4, 56, 79, 291),
    "child": (260, 95),
    "memory_map": (222, 226, 215, 214, 216, 233),
}
_CALLS: Final[dict[str, dict[int, str]]] = {
    machine: {number: kind for kind, numbers in table.items() for number in numbers}
    for machine, table in (("x86_64", _X86), ("aarch64", _GENERIC), ("riscv64", _GENERIC))
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
