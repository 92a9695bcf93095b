"""Puts back what was there before, newest change first; what others have changed since is left alone and reported.

References
----------
Linux Documentation: admin-guide/cgroup-v2.rst, filesystems/resctrl.rst (schemata).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from strata.errors import StrataError
from strata.fleet.local import cpu_list
from strata.host.apply.journal import Journal, Record
from strata.host.apply.machine import RESET, Born, KernelFiles, ThreadGone
from strata.host.policy.step import Step

INHERITED: Final = ("nice", "affinity", "scheduler")
"""Acts on a thread that what it starts inherits."""
MOST_NAMED: Final = 8
"""Threads that a line names."""
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


def undo(
    machine: KernelFiles, journal: Journal, *, since: int = 0, is_dry: bool = False
) -> tuple[UndoOutcome, ...]:
    """Undo the changes from number `since` on; each is struck off the journal, which goes aside when it is empty.

    A change that cannot be put back stays in the journal, for the next time. After a reboot nothing is left to do.
    Raises StrataError where the journal cannot be written, as on a full disk, when all is put back that can be.
    """
    done = []
    unwritten: StrataError | None = None
    is_over = journal.boot not in ("", machine.boot())
    records = journal.open_records(since=since)
    inherited = [record for record in records if record.step.act in INHERITED and record.at_ticks]
    born = (
        machine.born(since_ticks=min(record.at_ticks for record in inherited)) if inherited and not is_over else ()
    )
    claimed = {(record.step.act, record.step.path) for record in inherited}
    for record in records:
        if is_over:
            outcome = UndoOutcome(record, "gone", "the machine was started anew since")
        else:
            outcome = _undo(record, machine, is_dry=is_dry)
            heirs = [heir for heir in heirs_of(record, born) if (record.step.act, heir.path) not in claimed]
            restored = [] if is_dry else [heir for heir in heirs if _restore_heir(record, heir, machine)]
            if restored:
                outcome = replace(outcome, why="; ".join(filter(None, (outcome.why, _naming(restored)))))
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


def _undo(record: Record, machine: KernelFiles, *, is_dry: bool) -> UndoOutcome:
    step = record.step
    if step.act == "migrate":
        return UndoOutcome(record, "kept", "pages stay where they are; the kernel moves them as it needs to")
    try:
        machine.check(step)
        current = machine.read(step.act, step.path, step.value)
        if is_same(record, current, record.before):
            # A crash may have come between putting back the file and those beside it.
            return UndoOutcome(
                record, "restored" if not is_dry and _restore_beside(record, machine) else "unchanged"
            )
        if not is_ours(record, current):
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


def heirs_of(record: Record, born: Sequence[Born]) -> Iterator[Born]:
    """Yield who may have inherited a change: threads that its process, and what that started, began since.

    What a thread that was put forward started began with 0: where it says the same, others have made it so.
    """
    is_inherited = record.step.act in INHERITED and RESET not in (record.after or "").split()
    if is_inherited and record.at_ticks:
        pid = record.step.path.split("/")[2]
        yield from (heir for heir in born if heir.start_ticks >= record.at_ticks and pid in heir.line)


def _naming(heirs: Sequence[Born]) -> str:
    """Return that it was for heirs, too, and who they are: others may have given one of them the same value."""
    tids = [heir.path.rpartition("/")[2] for heir in heirs]
    more = f" and {len(tids) - MOST_NAMED:,} more" if len(tids) > MOST_NAMED else ""
    threads = f"{len(tids):,} {'thread' if len(tids) == 1 else 'threads'}"
    return f"so it is for {threads} it started since ({', '.join(tids[:MOST_NAMED])}{more})"


def _restore_heir(record: Record, heir: Born, machine: KernelFiles) -> bool:
    """Give a thread what it would have inherited; returns whether it had inherited the change."""
    act, value = record.step.act, record.step.value
    meant = Step(act, heir.path, value, "", record.step.layer, heir.start_ticks)
    try:
        machine.check(meant)
        if not is_done(meant, machine.read(act, heir.path, value)):
            return False
        back = undoing(act, value, record.before)
        if back is not None:
            machine.set(act, heir.path, back)
    except (ThreadGone, OSError):  # it has ended meanwhile, or its cpuset is another now
        return False
    return True


def _restore(record: Record, machine: KernelFiles) -> None:
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


def _restore_beside(record: Record, machine: KernelFiles) -> bool:
    """Put back what writing the file made the kernel forget; returns whether there was any."""
    lost = [
        (path, before)
        for path, before in record.beside
        if machine.read("write", path, "").strip() == FORGOTTEN != before.strip()
    ]
    for path, before in lost:
        machine.set("write", path, before.strip())
    return bool(lost)


def is_same(record: Record, current: str, other: str) -> bool:
    """Return whether what a change is of says the same by two readings, as far as the change goes."""
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


def is_ours(record: Record, current: str) -> bool:
    """Return whether what is there is what the step put there."""
    if record.step.act not in ("mkdir", "attach", "nice") and record.after is not None:
        return is_same(record, current, record.after)
    # A nice value's flag does not count. Otherwise a crash came between the change and its confirmation.
    return is_done(record.step, current)


_LISTS: Final = ("affinity", "cpuset.cpus", "cpuset.mems", "smp_affinity_list")


def subject(step: Step) -> str:
    """Return what a step changes: the name of a file it writes, else its act."""
    return step.path.rpartition("/")[2] if step.act == "write" else step.act


def holds(name: str, wanted: str, current: str) -> bool:
    """Return whether the subject `name`, which says `current`, says what writing `wanted` to it would."""
    if name == "cgroup.subtree_control":
        return _added(wanted) <= set(current.split())
    if name == "schemata":
        caps = _caps(current)
        return all(caps.get(domain) == percent for domain, percent in _caps(wanted).items())
    if name in _LISTS:
        return set(cpu_list(wanted)) == set(cpu_list(current)) and bool(wanted.strip()) == bool(current.strip())
    return current.strip() == wanted.strip()


def is_done(step: Step, current: str) -> bool:
    """Return whether what a step changes, which says `current`, is as the step wants it."""
    if step.act == "mkdir":
        return current == "there"
    if step.act == "attach":
        return current == step.path
    if step.act == "nice":
        return current.split()[:1] == [step.value]  # whether children inherit it is not asked
    # Where pages are is not asked: moving those that are there already costs nothing.
    return step.act != "migrate" and holds(subject(step), step.value, current)


def undoing(name: str, wanted: str, before: str) -> str | None:
    """Return what to write to have `before` back after `wanted` was written; None where nothing need be."""
    if name == "cgroup.subtree_control":
        return " ".join(f"-{controller}" for controller in sorted(_added(wanted) - set(before.split()))) or None
    if name == "cgroup.type":
        return None  # it goes with its folder
    if name == "schemata":
        caps = {domain: percent for domain, percent in _caps(before).items() if domain in _caps(wanted)}
        return "MB:" + ";".join(f"{domain}={percent}" for domain, percent in caps.items()) if caps else None
    return before.strip() or "\n"  # an empty list is written as an empty line


FORGOTTEN: Final = "100"
"""The weight that the kernel gives a cgroup which is idle no more."""


def _added(words: str) -> set[str]:
    return {word[1:] for word in words.split() if word.startswith("+")}


def _caps(schemata: str) -> Mapping[str, str]:
    """Return the bandwidth cap of each domain: of `MB:0= 50;1=100`."""
    line = next((line for line in schemata.splitlines() if line.strip().startswith("MB:")), "")
    return dict(re.findall(r"(\d+)=\s*(\d+)", line))
