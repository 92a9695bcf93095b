"""A journal kept short: undo by it is undo by the long one, whenever it is cut, and killed meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.host.apply import journal as journals
from strata.host.apply.act import apply
from strata.host.apply.compact import compact
from strata.host.apply.enforce import Enforcement, HostLook
from strata.host.apply.journal import opened
from strata.host.apply.machine import Born, KernelFiles, ThreadGone
from strata.host.apply.undo import undo
from strata.host.policy.step import Step
from strata.host.threads.classify import Classified
from tests.host.builders import thread
from tests.host.pretend_kernel import Killed
from tests.support.laws import examples

VALUES = {"nice": ("-10", "5", "10"), "affinity": ("0", "1", "0-1")}
OTHERS = {"nice": ("3", "7", "0"), "affinity": ("2", "3", "2-3")}
"""What others set is none of a policy's values: of what others set undo could not tell it apart."""


@dataclass(frozen=True)
class Living:
    pid: int
    start: int
    nice: str = "0"
    affinity: str = "0-3"


class Threads(KernelFiles):
    """Threads that start others, which inherit; each thing that happens takes a tick."""

    def __init__(self):
        object.__setattr__(self, "root", Path("/nonexistent"))
        self.__dict__.update(now=1, next=101, threads={100: Living(100, 1)}, parents={100: 1})

    def clone(self, tid, *, is_process=False):
        parent = self.threads[tid]
        new, self.__dict__["next"] = self.next, self.next + 1
        nice = "0" if "reset" in parent.nice else parent.nice
        pid = new if is_process else parent.pid
        if is_process:
            self.parents[new] = parent.pid
        self.threads[new] = Living(pid, self.now, nice, parent.affinity)
        return new

    def end(self, tid):
        pid = self.threads.pop(tid).pid
        if not any(each.pid == pid for each in self.threads.values()):
            del self.parents[pid]
            self.__dict__["parents"] = {
                child: 1 if above == pid else above for child, above in self.parents.items()
            }

    def put(self, tid, act, value):
        self.threads[tid] = replace(self.threads[tid], **{act: value})

    def step(self, tid, act, value):
        living = self.threads[tid]
        return Step(act, f"/proc/{living.pid}/task/{tid}", value, "as told", "critical", living.start)

    def _tid(self, path):
        tid = int(path.rpartition("/")[2])
        if tid not in self.threads:
            raise ThreadGone("it has ended")
        return tid

    def boot(self):
        return "boot-1"

    def now_ticks(self):
        return self.now

    def check(self, step):
        if self.threads[self._tid(step.path)].start != step.start_ticks:
            raise ThreadGone("another thread")
        return step

    def read(self, act, path, value):
        return getattr(self.threads[self._tid(path)], act)

    def before(self, act, path, value):
        return self.read(act, path, value)

    def set(self, act, path, value):
        self.put(self._tid(path), act, value)

    def born(self, *, since_ticks):
        def line(pid):
            return frozenset() if pid not in self.parents else frozenset({str(pid)}) | line(self.parents[pid])

        return tuple(
            Born(f"/proc/{living.pid}/task/{tid}", living.start, line(living.pid))
            for tid, living in self.threads.items()
            if living.start >= since_ticks
        )


def happens(kernel, folder, event):
    """Let one thing happen; those that need a thread take one there is."""
    what, which, act, value = event
    kernel.__dict__["now"] += 1
    tid = sorted(kernel.threads)[which % len(kernel.threads)]
    if what in ("clone", "fork"):
        kernel.clone(tid, is_process=what == "fork")
    elif what == "end" and len(kernel.threads) > 1:
        kernel.end(tid)
    elif what == "other":
        kernel.put(tid, act, OTHERS[act][which % 3])
    elif what == "step":
        with opened(folder) as journal:
            apply([kernel.step(tid, act, VALUES[act][value])], kernel, journal)


EVENTS = st.tuples(
    st.sampled_from(["clone", "fork", "end", "other", "step", "step", "step"]),
    st.integers(0, 9),
    st.sampled_from(sorted(VALUES)),
    st.integers(0, 2),
)
CHILD_OF_ANOTHER = [
    *[(("clone", 0, "affinity", 0), False)] * 2, (("end", 0, "affinity", 0), False),
    (("step", 1, "affinity", 0), False), (("step", 0, "affinity", 1), False),
    (("clone", 1, "affinity", 0), False), (("step", 2, "affinity", 1), False),
    (("end", 1, "affinity", 0), True), (("clone", 0, "affinity", 0), False),
]  # fmt: skip
"""The last thread has its parent's value, which another thread of its process was given over one of its own."""
STEP, FORTH, BACK = (("step", 0, "nice", value) for value in (0, 1, 0))


@examples(150)
@given(st.lists(EVENTS, max_size=6), st.lists(st.tuples(EVENTS, st.booleans()), max_size=40))
@example([], [(STEP, False), (FORTH, False), (("clone", 0, "nice", 0), False), (BACK, True)])
@example([("step", 0, "nice", 1)], [(STEP, False), (FORTH, True), (("clone", 0, "nice", 0), True), (BACK, True)])
@example([], CHILD_OF_ANOTHER)
def test_undo_by_a_short_journal_is_undo_by_the_long_one(tmp_path_factory, earlier, events):
    short, long = tmp_path_factory.mktemp("short"), tmp_path_factory.mktemp("long")
    twins = {short: Threads(), long: Threads()}
    for folder, kernel in twins.items():
        for event in earlier:
            happens(kernel, folder, event)
    with opened(long) as journal:
        since = journal.next_number
    for event, is_compacted in events:
        for folder, kernel in twins.items():
            happens(kernel, folder, event)
        if is_compacted:
            with opened(short) as journal:
                compact(twins[short], journal, since=since)
    assert twins[short].threads == twins[long].threads
    for first in (since, 0):
        for folder, kernel in twins.items():
            with opened(folder) as journal:
                undo(kernel, journal, since=first)
        assert twins[short].threads == twins[long].threads


@pytest.mark.parametrize("dies", ["before", "half", "after"])
def test_killed_while_the_journal_is_cut_nothing_is_lost(tmp_path, monkeypatch, dies):
    kernel = Threads()
    for _ in range(3):
        for value in (0, 1):
            happens(kernel, tmp_path, ("step", 0, "nice", value))
    whole = journals.write_text

    def dying(path, text):
        if dies == "half":
            path.with_name(".strata-0").write_text(text[:70])
        elif dies == "after":
            whole(path, text)
        raise Killed

    monkeypatch.setattr(journals, "write_text", dying)
    with pytest.raises(Killed), opened(tmp_path) as journal:
        compact(kernel, journal)
    with opened(tmp_path) as journal:
        assert journal.next_number == 6  # nobody gets a number again
        undo(kernel, journal)
    assert kernel.threads == Threads().threads


def test_where_there_is_no_room_the_journal_stays_as_it_was(tmp_path, monkeypatch):
    kernel = Threads()
    happens(kernel, tmp_path, ("step", 0, "nice", 0))
    before = (tmp_path / "undo.jsonl").read_bytes()

    def full(path, text):
        raise UsageError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr(journals, "write_text", full)
    with pytest.raises(UsageError), opened(tmp_path) as journal:
        compact(kernel, journal)
    assert (tmp_path / "undo.jsonl").read_bytes() == before


def test_the_journal_of_a_job_whose_threads_come_and_go_stays_short(tmp_path):
    kernel, rounds, longest = Threads(), 0, 0

    def look():
        steps = [kernel.step(tid, "affinity", "0") for tid in sorted(kernel.threads)]
        steps += [kernel.step(tid, "nice", "-10") for tid in sorted(kernel.threads)[:3]]
        layer = Classified(thread(1, "x"), None, "critical", 1.0, ("x",))
        return HostLook((layer,), tuple(steps))

    def pause():
        nonlocal rounds, longest
        rounds, kernel.__dict__["now"] = rounds + 1, kernel.now + 1
        with opened(tmp_path) as journal:
            longest = max(longest, journal.num_lines)
        for tid in sorted(kernel.threads)[1:4]:
            kernel.end(tid)
        for _ in range(3):
            kernel.put(kernel.clone(100), "affinity", "0-3")  # each asks for all CPUs
        return rounds < 300

    kept = Enforcement(look, pause, lambda: opened(tmp_path), kernel, windows=0, long=60)
    assert kept.run() == "stopped"
    assert kept.num_done > 1000
    assert longest < 100
    kept.take_back()
    assert {(each.nice, each.affinity) for each in kernel.threads.values()} == {("0", "0-3")}
