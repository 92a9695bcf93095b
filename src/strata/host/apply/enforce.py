"""Keeps a plain policy in force: threads that start later get their layer too, and it goes where it does not help.

Each round holds the journal for itself only, so that `undo` works meanwhile; it then ends what is enforced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from strata.errors import MissingPart, StrataError
from strata.host.apply.act import StepOutcome, apply
from strata.host.apply.compact import compact
from strata.host.apply.effect import Counters, Effect, counters_of, is_needed, judge, waited_share
from strata.host.apply.journal import Journal
from strata.host.apply.machine import KernelFiles
from strata.host.apply.undo import undo
from strata.host.policy.step import Step
from strata.host.threads.classify import Classified

End = Literal["stopped", "switched-off", "undone", "taken-back", "not-needed", "job-ended"]

QUIET_ROUNDS: Final = 3
"""Rounds without news after which the journal is read, to see whether somebody has undone it."""
LONG: Final = 1000
"""Lines of a journal, some 200 KB, from which what undo has no use for is left out; then at twice what is left."""
WINDOWS: Final = 5
"""Before and after, of which the effect is judged."""


@dataclass(frozen=True, slots=True)
class HostLook:
    """One look at the machine: the job's threads and the others, and the steps that they would get."""

    threads: tuple[Classified, ...]
    steps: tuple[Step, ...]

    @property
    def has_job(self) -> bool:
        """Return whether there is a thread of the job left."""
        return any(thread.layer != "rest" and not thread.is_other_job for thread in self.threads)


@dataclass
class Enforcement:
    """What is in force. look, pause and opened are the machine, the clock and the journal; say tells what happens.

    windows: of `window_rounds` rounds each, before and after; 0: the effect is not judged. long: lines from which
    a journal is made shorter.
    """

    look: Callable[[], HostLook]
    pause: Callable[[], bool]
    opened: Callable[[], AbstractContextManager[Journal]]
    machine: KernelFiles
    refuse: Callable[[Sequence[Step]], None] = lambda steps: None
    say: Callable[[str], None] = lambda text: None
    windows: int = WINDOWS
    window_rounds: int = 2
    effect: Effect | None = None
    num_done: int = 0
    long: int = LONG
    _first: int | None = None
    _rounds: int = 0
    _twice: int = 0
    _handled: set[tuple[str, str, str, int]] = field(default_factory=set)

    def run(self) -> End:
        """Measure, apply, measure, and keep at it until `pause` says that it is over; returns how it ended."""
        before: list[float] = []
        if self.windows:
            before, end = self._measured(is_applied=False)
            if end is not None:
                return end
            if not is_needed(before):
                self.effect = judge(before, ())
                return "not-needed"
        end = self._round(self.look())
        if end is not None:
            return end
        if self.windows:
            after, end = self._measured(is_applied=True)
            if end is not None:
                return end
            self.effect = judge(before, after)
            if self.effect.verdict != "helped":
                self.take_back()
                return "taken-back"
            self.say(f"helped: critical threads waited {self.effect.before:.0%}, now {self.effect.after:.0%}")
        while self.pause():
            end = self._round(self.look())
            if end is not None:
                return end
        return "stopped"

    def take_back(self) -> None:
        """Undo what was done by this call; what was applied before it stays."""
        if self._first is None:
            return
        with self.opened() as journal:
            undo(self.machine, journal, since=self._first)
        self._first = None

    def _measured(self, *, is_applied: bool) -> tuple[list[float], End | None]:
        """Return what critical threads waited in each window; threads that start meanwhile get their layer."""
        shares: list[float] = []
        seen = self.look()
        if seen.threads and all(thread.thread.wait_s is None for thread in seen.threads):
            raise MissingPart(
                "this kernel counts no run-queue delays (no /proc/PID/schedstat): what helps cannot be measured",
                hint="--windows 0 keeps the layers in force unmeasured",
            )
        for _ in range(self.windows):
            began: Counters = counters_of(seen.threads)
            for _ in range(self.window_rounds):
                if not self.pause():
                    return shares, "stopped"
                seen = self.look()
                if not seen.has_job:
                    return shares, "job-ended"
                if is_applied and (end := self._round(seen)) is not None:
                    return shares, end
            share = waited_share(began, counters_of(seen.threads))
            if share is not None:
                shares.append(share)
        return shares, None

    def _round(self, seen: HostLook) -> End | None:
        """Take the steps that are new; returns why it is over, None while it is not."""
        if not seen.has_job:
            return "job-ended"
        # A thread that has its layer gets no step any more, and one that has ended none at all.
        self._handled &= {_key(step) for step in seen.steps}
        new = [step for step in seen.steps if _key(step) not in self._handled]
        self._rounds += 1
        if not new and self._rounds % QUIET_ROUNDS:
            return None
        with self.opened() as journal:
            if journal.off.exists():
                return "switched-off"
            if self._first is not None and not journal.open_records(since=self._first):
                return "undone"  # from elsewhere, and whoever did it does not want it back
            if not new:
                return None
            self.refuse(new)
            first = journal.next_number
            try:
                outcomes = apply(new, self.machine, journal)
            except StrataError as error:
                if self._first is None:
                    raise
                self.say(f"not this time: {error}")
                return None
            if self._first is None and any(outcome.result == "done" for outcome in outcomes):
                self._first = first
            self._shorten(journal)
        self._note(outcomes)
        return None

    def _shorten(self, journal: Journal) -> None:
        """Leave out of the journal what undo has no use for: threads come and go for days."""
        if journal.num_lines < max(self.long, self._twice) or self._first is None:
            return
        with suppress(StrataError):  # it stays as it was, and as good
            compact(self.machine, journal, since=self._first)
        self._twice = 2 * journal.num_lines

    def _note(self, outcomes: Sequence[StepOutcome]) -> None:
        for outcome in outcomes:
            self._handled.add(_key(outcome.step))
            if outcome.result == "done":
                self.num_done += 1
                self.say(f"{outcome.step.act} {outcome.step.path} {outcome.step.value}: {outcome.step.why}")


def _key(step: Step) -> tuple[str, str, str, int]:
    return step.act, step.path, step.value, step.start_ticks
