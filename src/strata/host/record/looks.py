"""What is seen of processes while a trace is recorded: which there are, where they sleep, who has interpreters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from strata.host.agent.jobs import job_name
from strata.host.record import snapshot
from strata.host.record.census import CensusTaker
from strata.host.record.interpreter_holders import InterpreterHolders, interpreter_holders
from strata.host.record.sleep_sampler import SleepSampler
from strata.host.record.trace_numbers import TraceNumbers, trace_numbers
from strata.host.record.work import RecordedCommand, Witness

MOST_AGAIN: Final = 32
"""Threads of the job whose numbers are asked for again at each sample: 20 us each."""


class ProcessLooks(Witness):
    """Looks while the work lasts; `to_dict` is then what the file beside the trace says of it.

    numbers: what finds out which numbers traces have; None where those are the same, or not to be known.
    """

    samples = True

    def __init__(
        self, work: RecordedCommand, holders: InterpreterHolders, *, numbers: TraceNumbers | None, is_known: bool
    ) -> None:
        self._work, self._holders, self._numbers, self._is_known = work, holders, numbers, is_known
        self._seen: dict[str, Any] = {}
        self._job = ""
        self._threads: list[tuple[int, int]] = []
        self._taker, self._sampler = CensusTaker(), SleepSampler()
        self.tell = numbers.tell if numbers is not None else None

    def begun(self) -> None:
        """Look who is there as it begins."""
        self._look_around()
        self._sampler.follow(self._taker.threads_of(self._work.root_pid))

    def look(self) -> None:
        """Look who is there by now, at the first time at all of the machine."""
        pid = self._work.root_pid
        if not self._seen:
            self._seen = snapshot.take(pid=pid)
            self._job = job_name(pid) if pid is not None else ""
        self._look_around()
        threads = self._taker.threads_of(pid, critical=self._seen["critical"])
        self._sampler.follow(threads)
        self._holders.follow(dict.fromkeys(process for process, _ in threads))

    def sample(self) -> None:
        """Look where threads sleep."""
        self._sampler.sample()
        if self._numbers is not None:
            self._numbers.look(self._threads)

    def ended(self) -> None:
        """Look no more."""
        self._holders.stop()

    def read(self, lines: bytes) -> None:
        """Take from perf's text which numbers threads have in it."""
        if self._numbers is not None:
            self._numbers.read(lines)

    @property
    def failures(self) -> list[str]:
        """Return what could not be seen, in words."""
        return self._holders.failures

    def to_dict(self) -> dict[str, Any]:
        """Return what was seen, as JSON."""
        known = self._numbers.known if self._numbers is not None else {}
        return {
            **(self._seen or snapshot.take(pid=self._work.root_pid)),
            "pid": self._work.root_pid if self._is_known else None,
            "job": self._job,
            "census": self._taker.looks if self._is_known else [],
            "sleeping": self._sampler.to_list() if self._is_known else [],
            "holding": self._holders.to_list() if self._is_known else [],
            "numbers": {number: here for here, number in known.items()},
        }

    def _look_around(self) -> None:
        self._taker.look()
        if self._numbers is not None:
            self._numbers.look(self._taker.threads_in(None))
            job = self._taker.threads_in(self._work.root_pid)
            # Those that ran just now, and those that ended meanwhile, of which there may be many.
            self._threads = [thread for thread in job if thread[1] not in self._numbers.known][-MOST_AGAIN:]


@contextmanager
def looking(work: RecordedCommand, tracing: Path, *, has_numbers: bool) -> Iterator[ProcessLooks]:
    """Yield what looks at processes for some work; `has_numbers`: they are not those that traces have."""
    with ExitStack() as stack:
        numbers = stack.enter_context(trace_numbers(tracing)) if has_numbers else None
        holders = stack.enter_context(interpreter_holders())
        looks = ProcessLooks(work, holders, numbers=numbers, is_known=not has_numbers or numbers is not None)
        work.witness = looks
        yield looks
