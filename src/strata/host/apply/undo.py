"""Puts back what was there before, newest change first; what others changed since is left to them, and told."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Literal

from strata.errors import StrataError
from strata.host.apply.journal import Journal, Record
from strata.host.apply.machine import Machine, ThreadGone
from strata.host.apply.values import FORGOTTEN, holds, is_done, subject, undoing

Result = Literal["restored", "unchanged", "gone", "changed", "kept", "failed", "would"]


@dataclass(frozen=True, slots=True)
class UndoOutcome:
    """What became of a change. changed: by others since, so it stays; kept: cannot be undone, and need not be."""

    record: Record
    result: Result
    why: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the stable JSON form."""
        return {
            **self.record.step.to_dict(),
            "before": self.record.before,
            "result": self.result,
            "because": self.why,
        }


def undo(machine: Machine, journal: Journal, *, since: int = 0, is_dry: bool = False) -> tuple[UndoOutcome, ...]:
    """Undo the changes from number `since` on; each is struck off the journal, which goes aside when it is empty.

    A change that cannot be put back stays in the journal, for the next time. After a reboot nothing is left to do.
    Raises StrataError where the journal cannot be written, as on a full disk, when all is put back that can be.
    """
    done = []
    unwritten: StrataError | None = None
    is_over = journal.boot not in ("", machine.boot())
    for record in journal.open_records(since=since):
        if is_over:
            outcome = UndoOutcome(record, "gone", "the machine was started anew since")
        else:
            outcome = _undo(record, machine, is_dry=is_dry)
        done.append(outcome)
        if not is_dry and outcome.result != "failed":
            try:
                journal.strike(record)
            except StrataError as error:
                unwritten = error
    if unwritten is not None:
        raise unwritten
    if not is_dry and not journal.open_records():
        journal.close()
    return tuple(done)


def _undo(record: Record, machine: Machine, *, is_dry: bool) -> UndoOutcome:
    step = record.step
    if step.act == "migrate":
        return UndoOutcome(record, "kept", "pages stay where they are; the kernel moves them as it needs to")
    try:
        machine.check(step)
        current = machine.read(step.act, step.path, step.value)
        if _is_same(record, current, record.before):
            # A crash may have come between putting back the file and those beside it.
            return UndoOutcome(
                record, "restored" if not is_dry and _restore_beside(record, machine) else "unchanged"
            )
        if not _is_ours(record, current):
            return UndoOutcome(record, "changed", f"it says {' '.join(current.split()) or 'nothing'!r} now")
        if is_dry:
            return UndoOutcome(record, "would")
        _restore(record, machine)
    except ThreadGone as gone:
        return UndoOutcome(record, "gone", str(gone))
    except OSError as error:
        if step.path.endswith("/cgroup.subtree_control") and error.errno == errno.EBUSY:
            return UndoOutcome(record, "changed", "cgroups below use these controllers now")
        return UndoOutcome(record, "failed", error.strerror or str(error))
    return UndoOutcome(record, "restored")


def _restore(record: Record, machine: Machine) -> None:
    step = record.step
    if step.act == "mkdir":
        machine.remove(step.path)
        return
    if step.act == "attach":
        machine.set("attach", record.before, step.value)
        return
    value = undoing(subject(step), step.value, record.before)
    if value is not None:
        machine.set(step.act, step.path, value)
    _restore_beside(record, machine)


def _restore_beside(record: Record, machine: Machine) -> bool:
    """Put back what writing the file made the kernel forget; returns whether there was any."""
    lost = [
        (path, before)
        for path, before in record.beside
        if machine.read("write", path, "").strip() == FORGOTTEN != before.strip()
    ]
    for path, before in lost:
        machine.set("write", path, before.strip())
    return bool(lost)


def _is_same(record: Record, current: str, other: str) -> bool:
    step = record.step
    if step.path.endswith("/cgroup.subtree_control"):
        # Only what the step added counts; others may have added more.
        added = {word[1:] for word in step.value.split()}
        return added & set(current.split()) == added & set(other.split())
    if step.act in ("mkdir", "attach"):
        return current == other
    if step.path.endswith("/schemata"):
        return " ".join(current.split()) == " ".join(other.split())
    return holds(subject(step), other, current)


def _is_ours(record: Record, current: str) -> bool:
    """Return whether what is there is what the step put there."""
    if record.step.act not in ("mkdir", "attach") and record.after is not None:
        return _is_same(record, current, record.after)
    # Otherwise a crash came between the change and its confirmation.
    return is_done(record.step, current)
