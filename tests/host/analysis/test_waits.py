"""Waits for a CPU, and who had it: known traces, and laws over random ones."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.host.analysis.report import report_of, verdict
from strata.host.analysis.run_queue_delays import Cause, switch_outs
from strata.host.analysis.view import TraceView
from strata.host.trace.events import EventKind, TaskState, Trace
from strata.host.trace.read import read_trace
from tests import ROOT, SHARED
from tests.host.traces import IDLE, Text
from tests.support.laws import examples

SAMPLE = SHARED / "data" / "host_samples" / "perf_script_sched.txt"
T, HOG, PEER = ("trainer_main", 11), ("hog", 12), ("peer", 13)


def view(text: Text, folder: Path) -> TraceView:
    return TraceView(text.trace(folder))


def task(of: TraceView, name: str) -> int:
    (found,) = [i for i in range(len(of.tasks)) if of.name(i) == name]
    return found


def waits(of: TraceView, name: str) -> list[tuple[str, float, float]]:
    mine = of.waits_by(task(of, name))
    return [
        (Cause(of.delays.cause[i]).name.lower(), of.delays.start_ns[i] / 1e6, of.delays.length_ns[i] / 1e6)
        for i in mine
    ]


def test_a_report_of_fewer_threads_says_the_same_of_those_it_has():
    of = TraceView(read_trace(ROOT / "examples/host/trace.txt.gz"))
    whole = report_of(of)
    for top in range(1, len(whole.threads)):
        some = report_of(of, top=top)
        assert some.threads == whole.threads[:top]
        assert verdict(some) == verdict(whole)


def test_a_wait_lasts_from_the_wakeup_to_the_switch(tmp_path):
    text = Text().switch(0, 0, IDLE, HOG).wake(10, 0, T, by=HOG).switch(14, 0, HOG, T, "R").switch(15, 0, T, HOG)
    of = view(text, tmp_path)
    assert waits(of, "trainer_main") == [("woken", 10, 4)]
    assert waits(of, "hog") == [("preempted", 14, 1)]
    assert of.culprits(of.waits_by(task(of, "trainer_main"))) == {"hog": 4}
    assert of.name(int(of.delays.waker[of.waits_by(task(of, "trainer_main"))[0]])) == "hog"


def test_a_preemption_is_a_wait_until_the_thread_is_back(tmp_path):
    text = Text().switch(0, 0, IDLE, T).switch(5, 0, T, HOG, "R+").switch(8, 0, HOG, T, "S")
    of = view(text, tmp_path)
    assert waits(of, "trainer_main") == [("preempted", 5, 3)]


def test_who_came_next_is_not_to_blame_but_who_stayed(tmp_path):
    text = (
        Text().switch(0, 0, IDLE, T).switch(5, 0, T, PEER, "R").switch(5.1, 0, PEER, HOG).switch(9, 0, HOG, T, "R")
    )
    of = view(text, tmp_path)
    assert of.culprits(of.waits_by(task(of, "trainer_main"))) == pytest.approx({"hog": 3.9, "peer": 0.1})


def test_a_yield_is_told_from_a_preemption(tmp_path):
    text = Text().switch(0, 0, IDLE, T).yields(4.9, 0, T).switch(5, 0, T, HOG, "R").switch(7, 0, HOG, T, "R")
    text.switch(9, 0, T, HOG, "R").switch(10, 0, HOG, T, "R+").switch(11, 0, T, IDLE)
    of = view(text, tmp_path)
    assert waits(of, "trainer_main") == [("yielded", 5, 2), ("preempted", 9, 1)]
    assert switch_outs(of.trace, of.tasks, of.on_cpu) == {"R": 3, "R+": 1, "yields": 1}


def test_a_wait_that_began_before_the_trace_is_not_counted(tmp_path):
    of = view(Text().switch(0, 0, HOG, T, "R").switch(5, 0, T, HOG).switch(9, 0, HOG, IDLE), tmp_path)
    assert waits(of, "trainer_main") == []
    assert waits(of, "hog") == [("preempted", 0, 5)]


def test_a_wait_that_the_trace_ends_in_is_known_as_such(tmp_path):
    text = (
        Text().switch(0, 0, IDLE, HOG).wake(2, 0, T, by=HOG).wake(8, 0, PEER, by=HOG).switch(10, 0, HOG, PEER, "R")
    )
    of = view(text, tmp_path)
    assert waits(of, "trainer_main") == [("woken", 2, 8)]
    assert not of.delays.is_over[of.waits_by(task(of, "trainer_main"))].any()


def test_a_second_wakeup_changes_nothing(tmp_path):
    text = Text().switch(0, 0, IDLE, HOG).wake(2, 0, T, by=HOG).wake(3, 0, T, by=HOG).switch(6, 0, HOG, T)
    text.wake(7, 0, T, by=PEER).switch(8, 0, T, HOG)
    assert waits(view(text, tmp_path), "trainer_main") == [("woken", 2, 4)]


def test_a_thread_moved_while_it_waits_is_blamed_on_both_cpus(tmp_path):
    text = Text().switch(0, 0, IDLE, HOG).switch(0, 1, IDLE, PEER).wake(10, 0, T, by=HOG)
    text.migrate(13, T, 0, 1).switch(15, 1, PEER, T).switch(16, 1, T, IDLE)
    of = view(text, tmp_path)
    assert of.culprits(of.waits_by(task(of, "trainer_main"))) == {"hog": 3, "peer": 2}


def test_without_a_recorded_move_the_wait_was_where_it_then_ran(tmp_path):
    text = Text().switch(0, 0, IDLE, HOG).switch(0, 1, IDLE, PEER).wake(10, 0, T, by=HOG).switch(15, 1, PEER, T)
    text.switch(16, 1, T, IDLE)
    of = view(text, tmp_path)
    assert of.culprits(of.waits_by(task(of, "trainer_main"))) == {"peer": 5}


def test_interrupts_are_blamed_before_the_thread_they_interrupt(tmp_path):
    text = Text().switch(0, 0, IDLE, HOG).wake(10, 0, T, by=HOG).irq(11, 12, 0).softirq(12.5, 14, 0)
    text.switch(15, 0, HOG, T).switch(16, 0, T, IDLE)
    of = view(text, tmp_path)
    assert of.culprits(of.waits_by(task(of, "trainer_main"))) == {
        "hog": 2.5,
        "softirq NET_RX": 1.5,
        "irq 36 eth0": 1,
    }


def test_a_hard_interrupt_inside_a_soft_one_counts_once(tmp_path):
    text = Text().switch(0, 0, IDLE, T).event(1, 0, "irq:softirq_entry", "vec=3 [action=NET_RX]").irq(2, 3, 0)
    text.event(5, 0, "irq:softirq_exit", "vec=3 [action=NET_RX]").switch(6, 0, T, IDLE)
    of = view(text, tmp_path)
    lengths = dict.fromkeys(of.interrupts.causes, 0.0)
    for cause, ns in zip(of.interrupts.cause, of.interrupts.end_ns - of.interrupts.start_ns, strict=True):
        lengths[of.interrupts.causes[cause]] += ns / 1e6
    assert lengths == {"irq 36 eth0": 1, "softirq NET_RX": 3}


def test_an_interrupt_whose_end_was_lost_counts_nothing(tmp_path):
    text = Text().switch(0, 0, IDLE, T).event(1, 0, "irq:irq_handler_entry", "irq=36 name=eth0").irq(4, 5, 0)
    of = view(text.switch(6, 0, T, IDLE), tmp_path)
    assert int((of.interrupts.end_ns - of.interrupts.start_ns).sum()) == 1_000_000


def test_a_name_that_changes_is_one_thread_under_its_last_name(tmp_path):
    young = ("python3", 11)
    text = (
        Text().switch(0, 0, IDLE, HOG).wake(1, 0, young, by=HOG).switch(3, 0, HOG, young, "R").switch(4, 0, T, HOG)
    )
    text.wake(6, 0, T, by=HOG).switch(9, 0, HOG, T)
    assert waits(view(text, tmp_path), "trainer_main") == [("woken", 1, 2), ("woken", 6, 3)]


@pytest.mark.parametrize("has_fork", [True, False])
def test_an_id_that_is_used_again_is_another_thread(tmp_path, has_fork):
    old, new = ("old", 50), ("new", 50)
    text = Text().switch(0, 0, IDLE, HOG).wake(1, 0, old, by=HOG).switch(3, 0, HOG, old, "R").exit(4, 0, old)
    text.switch(5, 0, old, HOG, "Z")
    if has_fork:
        text.fork(6, 0, HOG, new)
    text.wake(6.5, 0, new, by=HOG, kind="wakeup_new").switch(8, 0, HOG, new, "R").switch(9, 0, new, IDLE)
    of = view(text, tmp_path)
    assert waits(of, "old") == [("woken", 1, 2)]
    assert waits(of, "new") == [("woken", 6.5, 1.5)]


def test_who_sent_a_wakeup_to_another_cpu_is_known_from_its_waking(tmp_path):
    text = Text().switch(0, 0, IDLE, HOG).switch(0, 1, IDLE, PEER).wake(10, 0, T, kind="waking", on=1)
    text.wake(10.1, 0, T, by=HOG).switch(12, 0, HOG, T).switch(13, 0, T, IDLE)
    of = view(text, tmp_path)
    assert of.name(int(of.delays.waker[of.waits_by(task(of, "trainer_main"))[0]])) == "peer"


def test_a_thread_lives_from_birth_to_death_or_as_long_as_the_trace(tmp_path):
    child = ("child", 50)
    text = Text().switch(0, 0, IDLE, HOG).fork(10, 0, HOG, child).wake(11, 0, child, by=HOG, kind="wakeup_new")
    text.switch(20, 0, HOG, child, "R").exit(29, 0, child).switch(30, 0, child, HOG, "Z").switch(100, 0, HOG, IDLE)
    of = view(text, tmp_path)
    assert of.lived_ns[task(of, "hog")] == 100_000_000
    assert of.lived_ns[task(of, "child")] == 20_000_000


def _naive(trace: Trace) -> dict[int, list[int]]:
    """The lengths of finished waits by thread id, one event at a time."""
    since: dict[int, int] = {}
    asleep: dict[int, bool] = {}
    found: dict[int, list[int]] = {}
    events = trace.events
    for i in range(len(events)):
        kind, tid, now = int(events.kind[i]), int(events.tid[i]), int(events.time_ns[i])
        if kind == EventKind.SWITCH:
            come = int(events.other[i])
            if tid > 0:
                asleep[tid] = events.arg[i] not in (TaskState.RUNNABLE, TaskState.PREEMPTED)
                since.pop(tid, None)
                if not asleep[tid]:
                    since[tid] = now
            if come > 0:
                if come in since:
                    found.setdefault(come, []).append(now - since.pop(come))
                asleep[come] = False
        elif (
            kind in (EventKind.WAKEUP, EventKind.WAKEUP_NEW)
            and tid > 0
            and asleep.get(tid, True)
            and tid not in since
        ):
            since[tid], asleep[tid] = now, False
    return found


@st.composite
def schedules(draw: st.DrawFn) -> Text:
    """A random but possible schedule of five threads on two CPUs; some wakeups are odd."""
    threads = [(f"t{i}", 100 + i) for i in range(5)]
    text, now = Text(), 0.0
    on: dict[int, tuple[str, int]] = {0: IDLE, 1: IDLE}
    for _ in range(draw(st.integers(1, 40))):
        now += draw(st.integers(1, 1000)) / 1000
        cpu = draw(st.integers(0, 1))
        if draw(st.booleans()):
            free = [one for one in threads if one not in on.values()]
            to = draw(st.sampled_from([IDLE, *free]))
            if to != on[cpu]:
                text.switch(now, cpu, on[cpu], to, draw(st.sampled_from(["S", "R", "R+", "D"])))
                on[cpu] = to
        elif draw(st.booleans()):
            text.migrate(now, draw(st.sampled_from(threads)), cpu, 1 - cpu)
        else:
            text.wake(now, cpu, draw(st.sampled_from(threads)), by=on[cpu])
    return text.switch(now + 1, 0, on[0], ("last", 999)).switch(now + 2, 0, ("last", 999), IDLE)


@examples(60)
@given(schedules())
def test_waits_are_those_of_a_reader_of_one_event_at_a_time_and_blame_sums_to_them(text):
    with TemporaryDirectory() as folder:
        of = TraceView(text.trace(Path(folder)))
    found: dict[int, list[int]] = {}
    for i in np.flatnonzero(of.delays.is_over):
        found.setdefault(int(of.tasks.tid[of.delays.task[i]]), []).append(int(of.delays.length_ns[i]))
    assert found == _naive(of.trace)
    every = np.arange(len(of.delays))
    wait, _, ns = of.attribution.shares(every, every)
    assert np.array_equal(np.bincount(wait, ns, len(every)), of.delays.length_ns)
    # A CPU runs one thread at a time, and someone (perhaps the idle thread) all of the time.
    for cpu in range(len(of.on_cpu.cpus)):
        here = of.on_cpu.cpu == cpu
        assert int((of.on_cpu.end_ns - of.on_cpu.start_ns)[here].sum()) == of.trace.end_ns - of.trace.start_ns
    assert np.all(of.ran_ns + of.waited_ns <= of.wall_ns)


def sample() -> TraceView:
    if not SAMPLE.exists():
        pytest.skip("needs ../shared/data/host_samples/perf_script_sched.txt")
    return TraceView(read_trace(SAMPLE))


def test_in_the_sample_trace_blame_sums_to_every_thread_s_waits():
    of = sample()
    for one in range(len(of.tasks)):
        mine = of.waits_by(one)
        assert sum(of.culprits(mine).values()) == pytest.approx(of.delays.length_ns[mine].sum() / 1e6)


def test_the_sample_trace_has_the_waits_that_perf_counts():
    of = sample()
    if of.trace.num_events != 36_199:
        pytest.skip(f"the sample is cut: {of.trace.num_events:,} of 36,199 events")
    mine = of.waits_by(task(of, "trainer_main"))
    mine = mine[of.delays.is_over[mine]]
    assert len(mine) == 734
    assert of.delays.length_ns[mine].mean() / 1e6 == pytest.approx(5.620, abs=5e-4)
    assert switch_outs(of.trace, of.tasks, of.on_cpu) == {"R": 4392, "R+": 391, "yields": 237}
