"""Which changes of a journal undo has no use for any more: of threads that ended, or taken back by later ones.

A change of a thread that has ended still matters where something it started has inherited it. So undo is played
for every thread there is: what it acts by stays, and where that alone would not come to the same, more does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from strata.host.apply.journal import Journal, Record
from strata.host.apply.machine import RESET, Born, KernelFiles, ThreadGone
from strata.host.apply.undo import INHERITED, heirs_of, is_done, is_ours, is_same, undoing


def compact(machine: KernelFiles, journal: Journal, *, since: int = 0) -> None:
    """Leave out of a journal what `undo` has no use for; changes before number `since` all stay.

    Raises StrataError where it cannot be written; it is as it was then.
    """
    journal.rewrite(without=unneeded(journal.open_records(), machine, since=since))


def unneeded(records: Sequence[Record], machine: KernelFiles, *, since: int = 0) -> frozenset[int]:
    """Return the numbers of the changes, newest first, without which undo does the same.

    The newest is never one of them: by it one knows that something is in force.
    """
    stays = {record.number for record in records if record.number < since} | {
        record.number for record in records[:1]
    }
    dropped = {record.number for record in records if record.step.act == "attach" and _is_gone(record, machine)}
    for act in INHERITED:
        of_act = tuple(record for record in records if record.step.act == act and record.at_ticks)
        try:
            threads = tuple(_touched(of_act, machine))
        except OSError:  # not now
            continue
        every = {record.number for record in of_act}
        for has_circles in (False, True):
            needed = {number for thread in threads for number in thread.path(has_circles=has_circles)}
            needed |= every & stays
            if all(_is_same_end(thread, every, needed, since) for thread in threads):
                dropped |= every - needed
                break
    return frozenset(dropped - stays)


@dataclass(frozen=True, slots=True)
class _Touched:
    """A thread that undo would look at: what it says, and the changes that it has or inherited, newest first."""

    now: str
    changes: tuple[Record, ...]
    is_heir: bool

    def undone(self, among: Collection[int]) -> Iterator[tuple[int, str]]:
        """Yield the changes of some numbers that undo would act by, with what the thread says then."""
        now = self.now
        for record in self.changes:
            step = record.step
            if record.number not in among:
                continue
            if self.is_heir:
                acts = is_done(step, now)
            else:
                acts = not is_same(record, now, record.before) and is_ours(record, now)
            back = undoing(step.act, step.value, record.before) if acts else None
            if back is not None:
                now = back
                yield record.number, now

    def path(self, *, has_circles: bool) -> list[int]:
        """Return the changes that undo would act by; without those that only lead in a circle, or with them.

        A circle stays where it is all there is: by it one knows that the thread's value is its own.
        """
        path: list[int] = []
        circle: list[int] = []
        states = [self.now]
        for number, now in self.undone({record.number for record in self.changes}):
            path.append(number)
            if not has_circles and now in states:
                place = states.index(now)
                circle = circle or path[place:]
                del path[place:], states[place + 1 :]
            else:
                states.append(now)
        return path or ([] if self.is_heir else circle)


def _is_same_end(thread: _Touched, every: Collection[int], needed: Collection[int], since: int) -> bool:
    """Return whether undo comes to the same by what is needed: all of it, and from a number on."""

    def end(among: Collection[int]) -> str:
        return [thread.now, *(now for _, now in thread.undone(among))][-1]

    return all(
        end([number for number in every if number >= first]) == end([n for n in needed if n >= first])
        for first in (0, since)
    )


def _touched(records: Sequence[Record], machine: KernelFiles) -> Iterator[_Touched]:
    """Yield the threads that have or inherited changes of one act, and what each of them may yet start.

    Raises OSError where one ends meanwhile.
    """
    own: dict[str, list[Record]] = {}
    for record in records:
        own.setdefault(record.step.path, []).append(record)
    says: dict[str, str] = {}
    for path, changes in own.items():
        if there := tuple(record for record in changes if not _is_gone(record, machine)):
            says[path] = _read(there[0], machine)
            yield _Touched(says[path], there, is_heir=False)
    # Only now: what starts from here on inherits from one of these.
    for born in machine.born(since_ticks=0) if records else ():
        inherited = _inherited(records, born)
        if inherited and born.path not in own:
            heir = replace(inherited[0], step=replace(inherited[0].step, path=born.path))
            says[born.path] = _read(heir, machine)
            yield _Touched(says[born.path], inherited, is_heir=True)
        # Undo takes a thread for an heir of all changes of its process: also of those its parent never had.
        if RESET not in (now := says.get(born.path, RESET)).split():
            last_ticks = max(record.at_ticks for record in records)
            yield _Touched(now, _inherited(records, replace(born, start_ticks=last_ticks)), is_heir=True)


def _inherited(records: Sequence[Record], born: Born) -> tuple[Record, ...]:
    return tuple(record for record in records if any(heirs_of(record, (born,))))


def _is_gone(record: Record, machine: KernelFiles) -> bool:
    try:
        machine.check(record.step)
    except ThreadGone:
        return True
    return False


def _read(record: Record, machine: KernelFiles) -> str:
    try:
        return machine.read(record.step.act, record.step.path, record.step.value)
    except ThreadGone:
        raise OSError("a thread has just ended, and what it started may have its value") from None
