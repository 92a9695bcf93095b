"""The kernel's tracing: where it is, which of the events we want it has, and recording by it alone.

A recording has an instance with a ring buffer of its own, which is removed at the end.

The newest events stay when the buffer is full; how many were overwritten or dropped is written behind the text.

References
----------
Linux Documentation/trace/events.rst; ftrace.rst: instances, buffer_size_kb, trace_clock, per_cpu/cpuN/stats.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from strata.errors import MissingPart
from strata.host.record.sink import Sink
from strata.host.record.work import RecordedCommand

NEEDED: Final = ("sched:sched_switch", "sched:sched_wakeup")
"""Without these nothing can be said."""
EVENTS: Final = (
    *NEEDED,
    "sched:sched_wakeup_new",
    "sched:sched_migrate_task",
    "sched:sched_process_fork",
    "sched:sched_process_exec",
    "sched:sched_process_exit",
    "irq:irq_handler_entry",
    "irq:irq_handler_exit",
    "irq:softirq_entry",
    "irq:softirq_exit",
    "syscalls:sys_enter_sched_yield",
    "power:cpu_frequency",
)
"""What is recorded where the kernel has it: who runs, who may, what is in the way; usually 4,000 events/s."""
PLACES: Final = ("sys/kernel/tracing", "sys/kernel/debug/tracing")
QUICK: Final = "strata host record --quick, which needs neither"


def find(root: Path = Path("/")) -> Path:
    """Return the tracing folder below a root. Raises MissingPart: not mounted, no rights, no such events."""
    hidden = None
    for place in PLACES:
        folder = root / place
        try:
            (folder / "events").stat()  # not is_dir(), which takes what is hidden for what is absent
            if missing := [event for event in NEEDED if not has(folder, event)]:
                raise MissingPart(f"{folder}: this kernel has no event {', '.join(missing)}", hint=QUICK)
            # Events are listed for whoever may look; switching one on is what takes rights.
            with (folder / "events/sched/sched_switch/enable").open("rb+"):
                return folder
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            hidden = folder
        except OSError as error:
            raise MissingPart(
                f"{folder}: events cannot be switched on: {error.strerror}",
                hint=f"mount -o remount,rw {folder}, or outside this container; or {QUICK}",
            ) from None
    if hidden is not None:
        is_root = os.geteuid() == 0
        raise MissingPart(
            f"{hidden}: only root may trace the scheduler" + (", and this container's is not" if is_root else ""),
            hint=f"{'outside this container' if is_root else 'sudo'}; or {QUICK}",
        )
    raise MissingPart(
        "/sys/kernel/tracing is not here: not mounted, or kept out of this container",
        hint="on the host itself: mount -t tracefs nodev /sys/kernel/tracing; for a container: the same in a "
        f"privileged one, or the host's as a volume (-v /sys/kernel/tracing:/sys/kernel/tracing); or {QUICK}",
    )


def has(folder: Path, event: str) -> bool:
    """Return whether the kernel has an event. Raises PermissionError where one may not look."""
    path = folder / "events" / event.replace(":", "/") / "enable"
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


def available(folder: Path) -> tuple[str, ...]:
    """Return those of `EVENTS` that the kernel has."""
    return tuple(event for event in EVENTS if has(folder, event))


MAX_BUFFER_KB: Final = 256 * 1024
"""Over all CPUs: five million events of 49 bytes."""
MAX_CPU_KB: Final = 64 * 1024
PREFIX: Final = "strata-"


def record(tracing: Path, work: RecordedCommand, sink: Sink, *, events: Sequence[str], num_cpus: int) -> None:
    """Record while `work` lasts, and write the text to `sink`. Raises MissingPart where the kernel refuses."""
    with instance(tracing) as folder:
        try:
            write(folder / "trace_clock", "mono")
            write(folder / "buffer_size_kb", str(max(64, min(MAX_CPU_KB, MAX_BUFFER_KB // num_cpus))))
            write(folder / "tracing_on", "0")
            for event in events:
                write(folder / "events" / event.replace(":", "/") / "enable", "1")
            write(folder / "tracing_on", "1")
        except OSError as error:
            raise MissingPart(
                f"{error.filename}: {error.strerror}", hint="run as root, outside a container"
            ) from None
        work.start()
        try:
            work.wait()
        finally:
            write(folder / "tracing_on", "0")
        with (folder / "trace").open("rb") as text:
            sink.copy(text)
        for cpu, lost in losses(folder):
            sink.write(f"CPU:{cpu} [LOST {lost} EVENTS]\n".encode())


def losses(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield each CPU that lost events, and how many: overwritten by newer ones, or dropped for want of room."""
    for stats in sorted(folder.glob("per_cpu/cpu[0-9]*/stats")):
        counts = dict(re.findall(r"^([a-z ]+): (\d+)", stats.read_text(), re.MULTILINE))
        lost = int(counts.get("overrun", 0)) + int(counts.get("dropped events", 0))
        if lost:
            yield int(stats.parent.name[3:]), lost


@contextmanager
def instance(tracing: Path, *, purpose: str = "") -> Iterator[Path]:
    """Yield an instance of our own, which is removed at the end; so are those of processes that were killed."""
    # Numbers of processes mean something in their namespace only; tracing is one for all containers.
    ours = f"{PREFIX}{purpose}{os.stat('/proc/self/ns/pid').st_ino}-"
    for left in (tracing / "instances").glob(f"{ours}*"):
        if not Path(f"/proc/{left.name.removeprefix(ours)}").exists():
            with suppress(OSError):  # someone still reads it
                left.rmdir()
    folder = tracing / "instances" / f"{ours}{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise MissingPart(f"{folder}: {error.strerror}", hint="run as root, outside a container") from None
    try:
        yield folder
    finally:
        folder.rmdir()


def write(path: Path, text: str) -> None:
    """Write to one of the kernel's files; nothing empties it."""
    with path.open("wb", buffering=0) as stream:
        stream.write(text.encode())
