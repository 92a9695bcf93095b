"""The kernel's tracing folder: where it is, and which of the events we want it has.

References
----------
Linux Documentation/trace/events.rst and ftrace.rst.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from strata.errors import MissingPart

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
                hint=f"outside a container; or {QUICK}",
            ) from None
    if hidden is not None:
        raise MissingPart(f"{hidden}: only root may trace the scheduler", hint=f"sudo; or {QUICK}")
    raise MissingPart(
        "/sys/kernel/tracing is not here: not mounted, or kept out of this container",
        hint=f"on the host itself: mount -t tracefs nodev /sys/kernel/tracing; or {QUICK}",
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
