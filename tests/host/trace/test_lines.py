"""One line of a trace: every form there is, names of any bytes, and the fast reader beside the grammar."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.host.trace.block import KnownNames, read_block
from strata.host.trace.events import EventKind, Events, Names, TaskState
from strata.host.trace.lines import MAX_LINE, EventRow, read_line
from tests import SHARED

SWITCH = (
    b"sched_switch: prev_comm=%b prev_pid=4035 prev_prio=120 prev_state=R+ "
    b"==> next_comm=%b next_pid=18 next_prio=0"
)
PERF = b"    trainer_main  4035/4035  [001]  1371.207000012:             sched:"
DEFAULT = b"    trainer_main  4035 [001] 1371.207000: sched:"
TRACEFS = b"    trainer_main-4035    [001] d..2.  1371.207000: "
SAMPLES = SHARED / "data" / "host_samples"


@pytest.mark.parametrize("header", [PERF, DEFAULT, TRACEFS, TRACEFS.replace(b"[", b"(   4035) [")])
def test_perf_and_tracefs_lines_say_the_same(header):
    names = Names()
    row = read_line(header + SWITCH % (b"trainer_main", b"migration/1"), names)
    assert row is not None
    assert (row.time_ns - 12 * (header == PERF), row.cpu, row.kind) == (1371_207_000_000, 1, EventKind.SWITCH)
    assert (row.tid, row.other, row.arg) == (4035, 18, TaskState.PREEMPTED)
    assert (names[row.comm], names[row.other_comm]) == ("trainer_main", "migration/1")


@pytest.mark.parametrize("head", [b"[001] ", b"4035 [001] ", b"  4035 [001] ", b"4035/4035 [001] "])
def test_lines_that_begin_without_a_name_or_an_id_are_read_as_well(head):
    for time in (b" 1371.207000: ", b" 1371.207000000:      "):
        row = read_line(head + time + b"sched:" + SWITCH % (b"a", b"b"), Names())
        assert row is not None
        assert (row.time_ns, row.cpu, row.kind) == (1371_207_000_000, 1, EventKind.SWITCH)
        assert (row.tid, row.other, row.arg) == (4035, 18, TaskState.PREEMPTED)


@pytest.mark.parametrize(
    "name", [b"Web Content", b"a ==> b", b"caf\xe9", b"memfd:sealed-91", b"[x] 1.5: a=b", b" prev_pid=7", b""]
)
def test_a_name_may_hold_anything(name):
    names = Names()
    row = read_line(PERF + SWITCH % (name, name), names)
    assert row is not None
    assert (names.raw[row.comm], names.raw[row.other_comm]) == (name, name)


def test_a_name_that_is_no_text_is_shown_escaped():
    names = Names()
    assert names[names.index(b"caf\xe9\x1b[2J")] == "caf\\\\xe9\\x1b[2J"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (b"sched_wakeup: comm=a pid=7 prio=120 target_cpu=003", (EventKind.WAKEUP, 7, -1, 3)),
        (b"sched_wakeup: comm=a pid=7 prio=120 success=1 target_cpu=003", (EventKind.WAKEUP, 7, -1, 3)),
        (b"sched_wakeup: a:7 [120] CPU:003", (EventKind.WAKEUP, 7, -1, 3)),
        (b"sched_waking: comm=a pid=7 prio=120 target_cpu=1023", (EventKind.WAKING, 7, -1, 1023)),
        (b"sched_wakeup_new: comm=a pid=7 prio=120 target_cpu=000", (EventKind.WAKEUP_NEW, 7, -1, 0)),
        (b"sched_migrate_task: comm=a pid=7 prio=-1 orig_cpu=1 dest_cpu=2", (EventKind.MIGRATE, 7, 1, 2)),
        (b"sched_process_fork: comm=a pid=7 child_comm=b child_pid=8", (EventKind.FORK, 8, 7, 0)),
        (b"sched_process_exec: filename=/opt/my job/python3 pid=7 old_pid=7", (EventKind.EXEC, 7, -1, 0)),
        (b"sched_process_exit: comm=a pid=7 prio=120 group_dead=true", (EventKind.EXIT, 7, -1, 0)),
        (b"sched_process_exit: comm=a pid=7 prio=120", (EventKind.EXIT, 7, -1, 0)),
        (b"irq_handler_entry: irq=36 name=virtio1-req.0", (EventKind.IRQ_ENTRY, 4035, 36, 0)),
        (b"irq_handler_entry: irq=36 name=mlx5_comp3@pci:0000:1b:00.0", (EventKind.IRQ_ENTRY, 4035, 36, 0)),
        (b"irq_handler_exit: irq=36 ret=unhandled", (EventKind.IRQ_EXIT, 4035, 36, 0)),
        (b"softirq_entry: vec=9 [action=RCU]", (EventKind.SOFTIRQ_ENTRY, 4035, 9, 0)),
        (b"softirq_exit: vec=9 [action=RCU]", (EventKind.SOFTIRQ_EXIT, 4035, 9, 0)),
        (b"sys_enter_sched_yield: ", (EventKind.YIELD, 4035, -1, 0)),
        (b"sys_sched_yield()", (EventKind.YIELD, 4035, -1, 0)),
        (b"sys_sched_yield -> 0x0", (EventKind.OTHER, -1, -1, 0)),
        (b"cpu_frequency: state=1200000 cpu_id=5", (EventKind.FREQUENCY, -1, 1200000, 0)),
        (b"sched_switch: a b:7 [120] R ==> c:8 [120]", (EventKind.SWITCH, 7, 8, TaskState.RUNNABLE)),
        (b"sched_stat_runtime: comm=a pid=7 runtime=12 [ns]", (EventKind.OTHER, -1, -1, 0)),
    ],
)
def test_every_event_is_read(event, expected):
    row = read_line(TRACEFS + event, Names())
    assert row is not None
    if row.kind is EventKind.OTHER:
        row = row._replace(tid=-1)
    assert (row.kind, row.tid, row.other, row.arg) == expected


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"trainer_main",
        PERF + b"sched_switch: prev_comm=a prev_pid=1 prev_prio=120 prev_state=R ==> next_comm=b next_pi",
        PERF + b"sched_switch: prev_comm=a prev_pid=99999999999 prev_prio=1 prev_state=R ==> next_comm=b"
        b" next_pid=1 next_prio=1",
        PERF.replace(b"1371", b"9" * 12) + SWITCH % (b"a", b"b"),
        PERF.replace(b"[001]", b"[99999999999]") + SWITCH % (b"a", b"b"),
        b"x" * (MAX_LINE + 1) + PERF + SWITCH % (b"a", b"b"),
        b" " * 4000,
    ],
)
def test_what_is_no_event_is_none(line):
    assert read_line(line, Names()) is None


def _both(line: bytes) -> tuple[EventRow | None, EventRow | None, bool]:
    """Return what the grammar and the fast reader make of a line, and whether the latter read it at all."""
    names = Names()
    block = read_block(line + b"\n", KnownNames(names))
    slow = read_line(line, names)
    fast = EventRow(*(int(getattr(block.events, one.name)[0]) for one in fields(Events)))  # type: ignore[arg-type]
    return slow, fast, 0 not in block.rest


HEADERS = st.sampled_from(
    [PERF, DEFAULT, TRACEFS, PERF.replace(b"  4035/4035", b"-1/-1"), b"x.123456: " + TRACEFS]
)
NAMES = st.binary(min_size=0, max_size=15).map(lambda raw: raw.replace(b"\n", b"").replace(b"\0", b""))
IDS = st.integers(0, 10**9).map(b"%d".__mod__)


@given(HEADERS, NAMES, NAMES, IDS, IDS, st.sampled_from([b"S", b"R", b"R+", b"D", b"D|K", b"Z"]))
def test_the_fast_reader_and_the_grammar_agree_on_switches(header, prev, next_, tid, other, state):
    line = (
        b"%bsched_switch: prev_comm=%b prev_pid=%b prev_prio=120 prev_state=%b "
        b"==> next_comm=%b next_pid=%b next_prio=0"
    )
    slow, fast, is_fast = _both(line % (header, prev, tid, state, next_, other))
    assert not is_fast or fast == slow


@given(HEADERS, st.sampled_from(["wakeup", "waking", "wakeup_new"]), NAMES, IDS, IDS, st.sampled_from([b"", b" "]))
def test_the_fast_reader_and_the_grammar_agree_on_wakeups(header, kind, name, tid, cpu, end):
    line = b"%bsched_%b: comm=%b pid=%b prio=120 target_cpu=%b%b" % (header, kind.encode(), name, tid, cpu, end)
    slow, fast, is_fast = _both(line)
    assert not is_fast or fast == slow


@given(st.sampled_from([PERF, TRACEFS]), st.integers(0, 180), st.binary(min_size=1, max_size=3))
def test_a_damaged_line_is_read_alike_or_not_at_all(header, place, damage):
    line = header + SWITCH % (b"trainer_main", b"python3")
    line = line[:place] + damage.replace(b"\n", b"") + line[place + len(damage) :]
    slow, fast, is_fast = _both(line)
    assert (
        not is_fast or slow is None or fast._replace(tid=0) == slow._replace(tid=0) or slow.kind is EventKind.OTHER
    )


@pytest.mark.parametrize("name", ["perf_script_sched.txt", "tracefs_trace.txt", "vm_scx_tracefs.txt"])
def test_the_fast_reader_and_the_grammar_agree_on_real_traces(name):
    if not (SAMPLES / name).exists():
        pytest.skip(f"needs ../shared/data/host_samples/{name}")
    raw = (SAMPLES / name).read_bytes()[:400_000].rpartition(b"\n")[0] + b"\n"
    names = Names()
    block = read_block(raw, KnownNames(names))
    assert len(block.rest) < 0.05 * len(block.events)
    for index, line in enumerate(raw.split(b"\n")[:-1]):
        slow = None if index in block.rest else read_line(line.rstrip(b"\r"), names)
        if slow is not None:
            fast = [int(getattr(block.events, one.name)[index]) for one in fields(Events)]
            assert fast == [*map(int, slow)], line
