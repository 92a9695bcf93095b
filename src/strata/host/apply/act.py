"""Takes steps one by one: each is announced in the journal, made, confirmed; what fails half-way is taken back."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from strata.errors import MissingPart, StrataError
from strata.host.apply.journal import Journal
from strata.host.apply.machine import KernelFiles, ThreadGone, for_good
from strata.host.apply.trusted import beside
from strata.host.apply.undo import is_done, undo
from strata.host.policy.step import Step

Result = Literal["done", "already", "skipped", "would"]

_NOT_HERE: Final = (errno.EIO, errno.EINVAL, errno.ENOSPC, errno.EPERM)
"""How the kernel says that it places an interrupt itself, or has no room; who may not write gets EACCES."""
_RIGHTS: Final = (errno.EPERM, errno.EACCES, errno.EROFS)


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What became of a step. before: what was there; why: for a step that was skipped."""

    step: Step
    result: Result
    before: str = ""
    why: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the stable JSON form."""
        return {**self.step.to_dict(), "result": self.result, "before": self.before, "skipped_because": self.why}


def apply(steps: Sequence[Step], machine: KernelFiles, journal: Journal) -> tuple[StepOutcome, ...]:
    """Take all steps that are not taken yet. Threads and files that are gone are skipped.

    Raises MissingPart (no rights) or StrataError for a step the kernel refuses, and KeyboardInterrupt; what was
    done by this call is then undone. A journal of an earlier boot is put aside: the kernel has forgotten it too.
    """
    boot = machine.boot()
    if journal.boot not in ("", boot):
        journal.close()
    journal.begin(boot)
    first = journal.next_number
    outcomes = []
    for step in steps:
        try:
            outcomes.append(_take(step, machine, journal))
        except OSError as error:
            undo(machine, journal, since=first)
            raise _refused(step, error) from None
        except (KeyboardInterrupt, StrataError):
            undo(machine, journal, since=first)
            raise
    return tuple(outcomes)


def preview(steps: Sequence[Step], machine: KernelFiles) -> tuple[StepOutcome, ...]:
    """Return what `apply` would do, having done nothing."""
    return tuple(_look(step, machine) for step in steps)


def _look(step: Step, machine: KernelFiles) -> StepOutcome:
    try:
        machine.check(step)
        before = machine.read(step.act, step.path, step.value)
    except ThreadGone as gone:
        # What an earlier step makes is not there yet.
        is_made_earlier = "/strata-" in step.path and step.act in ("write", "attach")
        return StepOutcome(step, "would") if is_made_earlier else StepOutcome(step, "skipped", why=str(gone))
    except OSError as error:
        return StepOutcome(step, "skipped", why=error.strerror or str(error))
    return StepOutcome(step, "already" if is_done(step, before) else "would", before)


def _take(step: Step, machine: KernelFiles, journal: Journal) -> StepOutcome:
    try:
        meant = machine.check(step)  # also where the file does not say when its thread started
        before = machine.read(step.act, step.path, step.value)
        if is_done(step, before):
            return StepOutcome(step, "already", before)
        others = tuple((path, machine.read("write", path, "")) for path in beside(step.path))
        before_it = machine.before(step.act, step.path, step.value)
        record = journal.announce(meant, before_it, others, at_ticks=machine.now_ticks())
        machine.set(step.act, step.path, for_good(step))
        journal.confirm(record, machine.read(step.act, step.path, step.value))
    except ThreadGone as gone:
        return StepOutcome(step, "skipped", why=str(gone))
    except OSError as error:
        if step.path.startswith("/proc/irq/") and error.errno in _NOT_HERE:
            return StepOutcome(step, "skipped", before, "the kernel places this interrupt itself")
        if step.act == "affinity" and error.errno == errno.EINVAL:
            return StepOutcome(step, "skipped", before, "its cpuset holds none of these CPUs")
        raise
    return StepOutcome(step, "done", before)


def _refused(step: Step, error: OSError) -> StrataError:
    what = f"{step.act} {step.path} {step.value}: {error.strerror}; all that was done is undone"
    if error.errno in _RIGHTS:
        return MissingPart(what, hint="run as root, outside a container")
    return StrataError(what, hint="leave that step out of the file, or see dmesg for why the kernel refuses it")
