"""Whole traces: real ones, truncated, with losses, garbage, a clock that goes back, and more than is kept."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
import threading

import numpy as np
import pytest

from strata.errors import UsageError
from strata.host.analysis.findings import gaps
from strata.host.analysis.view import TraceView
from strata.host.trace import read as reading
from strata.host.trace.events import EventKind
from strata.host.trace.read import read_trace
from tests import SHARED
from tests.host.traces import IDLE, Text, lines, read

SAMPLES = SHARED / "data" / "host_samples"
A, B = ("a", 11), ("b", 12)


def short() -> Text:
    text = Text()
    for i in range(20):
        text.switch(10 * i, 0, IDLE, A).wake(10 * i + 1, 0, B, by=A).switch(10 * i + 2, 0, A, B).switch(
            10 * i + 3, 0, B, IDLE
        )
    return text


@pytest.mark.parametrize("name", ["perf_script_sched.txt", "tracefs_trace.txt"])
def test_every_line_of_a_real_trace_is_an_event_or_a_comment(name):
    if not (SAMPLES / name).exists():
        pytest.skip(f"needs ../shared/data/host_samples/{name}")
    trace = read_trace(SAMPLES / name)
    expected = sum(not line.startswith(b"#") for line in (SAMPLES / name).read_bytes().splitlines())
    assert (trace.num_events, trace.unparsed, trace.lost) == (expected, 0, 0)
    assert len(trace.events) == expected


def test_blocks_may_end_anywhere(tmp_path, monkeypatch):
    raw = short().raw()
    whole = read(raw, tmp_path)
    for size in (1, 7, 130, 131, 1000):
        monkeypatch.setattr(reading, "BLOCK_BYTES", size)
        trace = read(raw, tmp_path)
        assert trace.num_events == whole.num_events == 80
        assert np.array_equal(trace.events.time_ns, whole.events.time_ns)


def test_gzip_is_read_too(tmp_path):
    file = tmp_path / "trace.txt.gz"
    file.write_bytes(gzip.compress(short().raw()))
    assert read_trace(file).num_events == 80
    file.write_bytes(gzip.compress(short().raw()[:2000]) + gzip.compress(short().raw()[2000:]))
    assert (read_trace(file).num_events, read_trace(file).is_broken) == (80, False)


def cut(packed: bytes) -> bytes:
    return packed[: len(packed) * 3 // 4]


def damaged(packed: bytes) -> bytes:
    return packed[:-900] + b"\xff" * 30 + packed[-870:]


@pytest.mark.parametrize("spoil", [cut, damaged, lambda packed: packed + b"more", lambda packed: packed[:-6]])
def test_of_gzip_that_breaks_off_what_is_before_is_read_and_the_break_told(spoil, tmp_path):
    text = Text()
    for i in range(2000):
        text.switch(i + random.Random(i).random(), 0, *((IDLE, A) if i % 2 else (A, IDLE)))
    file = tmp_path / "trace.txt.gz"
    file.write_bytes(spoil(gzip.compress(text.raw())))
    trace = read_trace(file)
    assert trace.is_broken
    assert trace.num_events > 1200
    assert "trace-truncated" in {one.token for one in gaps.find(TraceView(trace))}


def test_a_pipe_is_read_like_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(gzip.compress(short().raw()),))
    writer.start()
    assert read_trace(tmp_path / "pipe").num_events == 80
    writer.join()


def test_a_last_line_that_was_cut_is_counted_not_guessed(tmp_path):
    trace = read(short().raw()[:-30], tmp_path)
    assert (trace.num_events, trace.unparsed) == (79, 1)
    assert read(short().raw()[:-1], tmp_path).unparsed == 0


def test_losses_are_reported(tmp_path):
    raw = short().raw()
    assert read(raw + b"CPU:1 [LOST 1234 EVENTS]\n", tmp_path).lost == 1234
    assert read(raw + b"  perf  7/7 [000] 1.000001: PERF_RECORD_LOST lost 12\n", tmp_path).lost == 12
    head = b"# entries-in-buffer/entries-written: 80/1080   #P:2\n"
    trace = read(b"# tracer: nop\n#\n" + head + raw, tmp_path)
    assert (trace.lost, trace.unparsed, trace.num_events) == (1000, 0, 80)


def test_losses_that_are_not_counted_by_the_kernel_are_losses(tmp_path):
    raw = short().raw()
    assert read(raw + b"CPU:1 [LOST EVENTS]\n", tmp_path).lost == 1
    assert read(raw + b"CPU:1 [77 EVENTS DROPPED]\n", tmp_path).lost == 77


def test_a_thread_that_is_called_like_a_loss_is_none(tmp_path):
    text = short()
    for name in ("[LOST 9 EVENTS]", "x PERF_RECORD_"):
        text.event(300, 0, "sched:sched_process_exec", "filename=/bin/a pid=11 old_pid=11", by=(name, 11))
    trace = text.trace(tmp_path)
    assert (trace.num_events, trace.lost) == (82, 0)


def test_lines_beside_the_events_are_no_faults(tmp_path):
    aside = lines(
        "cpus=2", "", "# comment", "\tffffffff8112 schedule+0x1 ([kernel])", "##### CPU 1 buffer started ####"
    )
    assert read(aside + short().raw(), tmp_path).unparsed == 0


def test_garbage_between_events_is_counted(tmp_path):
    noise = random.Random(1).randbytes(20_000).replace(b"\n", b"").replace(b"#", b"x")
    raw = short().raw()
    trace = read(raw + noise + b"\n" + raw, tmp_path)
    assert trace.num_events == 160
    assert trace.unparsed == 1


@pytest.mark.parametrize("raw", [b"", b"\0" * 5000, random.Random(2).randbytes(3_000_000), b"a,b\n1,2\n"])
def test_what_is_no_trace_is_refused(raw, tmp_path):
    with pytest.raises(UsageError, match="no trace of a scheduler"):
        read(raw, tmp_path)


def test_a_binary_trace_names_the_command_that_prints_it(tmp_path):
    with pytest.raises(UsageError, match="binary") as raised:
        read(b"PERFILE2" + b"\0" * 100, tmp_path)
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("perf script -F comm,pid,tid,cpu,time,event,trace --ns -i ")


@pytest.mark.parametrize(
    ("raw", "says", "hint"),
    [
        (lzma.compress(b"x"), "compressed", "xz -dc "),
        (bz2.compress(b"x"), "compressed", "bzip2 -dc "),
        (b'{"traceEvents": []}', "JSON", "--kineto "),
        (b"\n\x93\x01\n\0", "sched_switch", "strata host record"),
    ],
)
def test_what_is_no_text_is_told_from_its_first_bytes_with_what_to_do(raw, says, hint, tmp_path):
    with pytest.raises(UsageError, match=says) as raised:
        read(raw, tmp_path)
    assert raised.value.hint is not None
    assert hint in raised.value.hint


def test_a_trace_that_begins_with_the_number_of_a_cpu_is_no_json(tmp_path):
    raw = b"".join(line[line.index(b"[") :] + b"\n" for line in short().raw().splitlines())
    assert raw.startswith(b"[000]")
    assert read(raw, tmp_path).num_events == 80


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        read_trace(tmp_path / "none")
    with pytest.raises(UsageError, match="directory"):
        read_trace(tmp_path)


def test_a_clock_that_goes_back_is_counted_and_sorted(tmp_path):
    text = Text().switch(10, 0, IDLE, A).switch(20, 0, A, B).switch(15, 0, B, IDLE).switch(12, 1, IDLE, A)
    trace = text.trace(tmp_path)
    assert trace.backwards == 1
    assert list(trace.events.time_ns) == [10_000_000, 12_000_000, 15_000_000, 20_000_000]


def test_a_damaged_time_is_no_silent_overflow(tmp_path):
    text = Text().switch(0, 0, IDLE, A).switch(1, 1, IDLE, B)
    text.event(4e12, 0, "sched:sched_wakeup", "comm=a pid=11 prio=120 target_cpu=000")
    with pytest.raises(UsageError, match="damaged time"):
        assert TraceView(text.trace(tmp_path)).on_cpu


def test_no_more_events_are_kept_than_allowed(tmp_path):
    trace = read(short().raw(), tmp_path, max_events=50)
    assert trace.is_cut
    assert len(trace.events) == 50


def test_events_that_are_not_used_are_counted_not_kept(tmp_path):
    text = short().event(300, 0, "sched:sched_stat_runtime", "comm=a pid=11 runtime=12 [ns]")
    trace = text.trace(tmp_path)
    assert (trace.num_events, len(trace.events)) == (81, 80)
    assert not len(trace.events.of(EventKind.OTHER))


def test_a_thousand_cpus_are_no_trouble(tmp_path):
    text = Text()
    for cpu in range(1000):
        text.switch(cpu / 100, cpu, IDLE, ("w", 1000 + cpu))
    assert len(np.unique(text.trace(tmp_path).events.cpu)) == 1000
