"""Recording: by perf and by the kernel where they are here, its messages where they are not, and /proc alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.errors import BadFile, MissingPart, StrataError, UsageError
from strata.host.record import perf, snapshot, tracefs
from strata.host.record.quick import compare
from strata.host.record.sink import sink
from strata.host.record.work import RecordedCommand, behind_sudo
from strata.host.threads.classify import classify
from strata.host.trace.read import read_trace
from tests.host.builders import TRAINER, training_host, write_proc
from tests.host.traces import IDLE, Text

BURST = [sys.executable, "-c", "import os\nfor _ in range(200): os.sched_yield()"]


def no_perf() -> str:
    """Return why perf cannot record here; empty where it can."""
    if perf.find() is None:
        return "perf is not installed"
    try:
        tracefs.find()
    except MissingPart as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def tracefs_folder(tmp_path_factory):
    """The kernel's tracing, mounted in a place of our own."""
    folder = tmp_path_factory.mktemp("root") / "sys/kernel/tracing"
    folder.mkdir(parents=True)
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tracefs", "nodev", str(folder)], check=False, capture_output=True
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("needs root and a kernel with tracefs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def host(*arguments):
    return CliRunner().invoke(cli, ["host", *map(str, arguments)])


# --- real recordings ----------------------------------------------------------------------------------------


def test_the_kernels_own_tracing_records_a_command_and_leaves_nothing_behind(tmp_path, tracefs_folder):
    found = tracefs.find(tracefs_folder.parents[2])
    out = tmp_path / "trace.txt.gz"
    with sink(out) as text:
        tracefs.record(
            found, RecordedCommand(seconds=20, command=BURST), text, events=tracefs.available(found), num_cpus=2
        )
    trace = read_trace(out)
    assert (trace.unparsed, trace.lost) == (0, text.lost)
    assert trace.num_events > 200
    assert not list((tracefs_folder / "instances").glob(f"strata-*-{os.getpid()}"))


def test_ctrl_c_ends_a_recording_and_keeps_it(tmp_path, tracefs_folder):
    def interrupt():
        raise KeyboardInterrupt

    work, out = RecordedCommand(seconds=60), tmp_path / "trace.txt"
    work.witness.look = interrupt
    with sink(out) as text:
        tracefs.record(tracefs_folder, work, text, events=tracefs.NEEDED, num_cpus=2)
    assert read_trace(out).num_events > 10
    assert not list((tracefs_folder / "instances").glob(f"strata-*-{os.getpid()}"))


def test_what_a_small_buffer_loses_is_told(tmp_path, tracefs_folder, monkeypatch):
    monkeypatch.setattr(tracefs, "MAX_BUFFER_KB", 0)  # the least the kernel is asked for is 64 KiB a CPU
    many = [sys.executable, "-c", "import os\nfor _ in range(20000): os.sched_yield()"]
    out = tmp_path / "trace.txt"
    with sink(out) as text:
        events = tracefs.available(tracefs_folder)
        tracefs.record(tracefs_folder, RecordedCommand(seconds=20, command=many), text, events=events, num_cpus=2)
    assert text.lost > 1000
    assert read_trace(out).lost >= text.lost > 0


def test_instances_of_killed_recorders_are_removed(tracefs_folder):
    child = subprocess.Popen(["true"])
    child.wait()
    left = tracefs_folder / f"instances/strata-{os.stat('/proc/self/ns/pid').st_ino}-{child.pid}"
    left.mkdir()
    with tracefs.instance(tracefs_folder):
        assert not left.exists()


def test_an_instance_goes_also_where_the_recording_fails(tracefs_folder, tmp_path):
    work = RecordedCommand(seconds=1, command=("no-such-command",))
    with pytest.raises(UsageError, match="no-such-command"), sink(tmp_path / "t.txt") as text:
        tracefs.record(tracefs_folder, work, text, events=tracefs.NEEDED, num_cpus=2)
    assert not list((tracefs_folder / "instances").glob(f"strata-*-{os.getpid()}"))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(bool(no_perf()), reason=no_perf() or "perf is here")
def test_perf_records_a_command_and_the_report_knows_the_machine(tmp_path):
    out = tmp_path / "trace.txt.gz"
    done = host("record", "-o", out, "--", *BURST)
    assert done.exit_code == 0, done.output
    assert done.stdout == ""  # which is the command's alone
    assert done.stderr.endswith(f"strata host report {out}\n")
    assert {one.name for one in tmp_path.iterdir()} >= {"trace.txt.gz", "trace.txt.gz.host.json"}
    beside = json.loads((tmp_path / "trace.txt.gz.host.json").read_text())
    assert (beside["recorded_by"], beside["lost"]) == ("perf", 0)
    report = json.loads(host("report", out, "-o", "json").stdout)
    assert report["unparsed"] == 0
    assert report["events"] > 200


@pytest.mark.skipif(bool(no_perf()), reason=no_perf() or "perf is here")
def test_the_commands_exit_code_is_handed_on(tmp_path):
    assert host("record", "-o", tmp_path / "t.txt", "--", "sh", "-c", "exit 7").exit_code == 7


@pytest.mark.skipif(bool(no_perf()), reason=no_perf() or "perf is here")
def test_perf_says_why_it_cannot_record(tmp_path):
    with pytest.raises(MissingPart, match=r"perf cannot record: .*nothing_like_it"), sink(tmp_path / "t") as text:
        perf.record(
            "perf",
            RecordedCommand(seconds=1),
            text,
            events=("sched:nothing_like_it",),
            num_cpus=2,
            folder=tmp_path,
        )
    assert not list(tmp_path.iterdir())


# --- a perf that is not one ---------------------------------------------------------------------------------

FAKE = """#!{python}
import os, sys
said = sys.argv[1:]
if said[0] == "record":
    told, heard = map(int, said[said.index("--control") + 1][3:].split(","))
    os.read(told, 64); os.write(heard, b"ack\\n\\0"); os.read(told, 64)
    open(said[said.index("-o") + 1], "w").write(" ".join(said))
else:
    sys.stdout.write({text!r})
    sys.exit({code})
"""
LINE = "  a  1/1 [000] 1.000000001: sched:sched_switch: x\n"


def fake_perf(folder: Path, *, text: str = LINE, code: int = 0) -> str:
    path = folder / "perf"
    path.write_text(FAKE.format(python=sys.executable, text=text, code=code))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_events_that_perf_lost_are_counted(tmp_path):
    text = f"{LINE}  a 0 [000] 2.0: PERF_RECORD_LOST lost 17\n{LINE}  a 0 [001] 2.1: PERF_RECORD_LOST lost 3\n"
    with sink(tmp_path / "trace.txt") as out:
        program = fake_perf(tmp_path, text=text)
        perf.record(
            program, RecordedCommand(seconds=0.01), out, events=tracefs.NEEDED, num_cpus=2, folder=tmp_path
        )
    assert out.lost == 20
    assert (tmp_path / "trace.txt").read_text() == text


def test_where_perf_may_not_the_kernel_itself_records(tmp_path, tracefs_folder, monkeypatch):
    (tmp_path / "perf").write_text("#!/bin/sh\necho no permission >&2\nexit 255\n")
    (tmp_path / "perf").chmod(0o755)
    monkeypatch.setattr(perf, "find", lambda: str(tmp_path / "perf"))
    monkeypatch.setattr(tracefs, "PLACES", (str(tracefs_folder),))
    out = tmp_path / "trace.txt"
    done = host("record", "--seconds", "0.2", "-o", out)
    assert done.exit_code == 0, done.output
    assert "perf cannot record: no permission" in done.stderr
    assert json.loads((tmp_path / "trace.txt.host.json").read_text())["recorded_by"] == "tracefs"
    assert host("record", "--how", "perf", "--seconds", "0.2", "-o", out).exception.exit_code == 5


def test_perf_s_own_file_has_no_name_that_a_killed_recorder_could_leave_behind(tmp_path):
    work, seen = RecordedCommand(seconds=0.02), []
    work.witness.look = lambda: seen.extend(one.name for one in tmp_path.iterdir())
    program = fake_perf(tmp_path)
    with sink(tmp_path / "trace.txt") as out:
        perf.record(program, work, out, events=tracefs.NEEDED, num_cpus=2, folder=tmp_path)
    assert sorted(seen)[1:] == ["perf"]  # and the text's, which is not whole yet


def test_a_perf_that_fails_at_the_end_says_where_to_look(tmp_path):
    program = tmp_path / "perf"
    text = FAKE.format(python=sys.executable, text="", code=0).replace("os.read(told, 64)\n", "sys.exit(3)\n")
    program.write_text(text)
    program.chmod(0o755)
    with pytest.raises(MissingPart, match="perf record failed") as raised, sink(tmp_path / "t.txt") as out:
        perf.record(
            str(program), RecordedCommand(seconds=0.01), out, events=tracefs.NEEDED, num_cpus=2, folder=tmp_path
        )
    assert raised.value.hint is not None
    assert f"df {tmp_path}" in raised.value.hint


def test_half_a_trace_is_no_trace(tmp_path):
    program = fake_perf(tmp_path, code=1)
    with pytest.raises(StrataError, match="perf script failed"), sink(tmp_path / "trace.txt") as out:
        perf.record(
            program, RecordedCommand(seconds=0.01), out, events=tracefs.NEEDED, num_cpus=2, folder=tmp_path
        )
    assert [one.name for one in tmp_path.iterdir()] == ["perf"]


@pytest.mark.parametrize("num_cpus", [1, 2, 64, 200, 1000])
def test_buffers_are_bounded_however_many_cpus(num_cpus):
    pages = perf.pages(num_cpus)
    assert pages & (pages - 1) == 0
    assert 1 <= pages <= perf.MAX_PAGES
    assert pages * perf.PAGE_BYTES * num_cpus <= perf.MAX_BUFFER_BYTES


def test_losses_are_read_whatever_the_pieces(tmp_path):
    text = (LINE + "CPU:0 [LOST 5 EVENTS]\n") * 3
    with sink(tmp_path / "t") as out:
        for start in range(0, len(text), 7):
            out.write(text[start : start + 7].encode())
    assert out.lost == 15


def test_losses_of_a_ring_buffer_are_read(tmp_path):
    for cpu, overrun, dropped in ((0, 0, 0), (3, 40, 2)):
        folder = tmp_path / f"per_cpu/cpu{cpu}"
        folder.mkdir(parents=True)
        (folder / "stats").write_text(
            f"entries: 9\noverrun: {overrun}\ncommit overrun: 7\ndropped events: {dropped}\nread events: 0\n"
        )
    assert list(tracefs.losses(tmp_path)) == [(3, 42)]


# --- what is missing, and what is said ----------------------------------------------------------------------


def fake_tracing(root: Path, *events: str) -> Path:
    folder = root / "sys/kernel/tracing"
    for event in events:
        (folder / "events" / event.replace(":", "/")).mkdir(parents=True)
        (folder / "events" / event.replace(":", "/") / "enable").write_text("0")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_only_events_that_are_there_are_recorded(tmp_path):
    folder = fake_tracing(tmp_path, *tracefs.NEEDED, "power:cpu_frequency")
    assert tracefs.find(tmp_path) == folder
    assert tracefs.available(folder) == (*tracefs.NEEDED, "power:cpu_frequency")


def test_tracing_is_also_found_where_it_was_mounted_before(tmp_path):
    old = tmp_path / "sys/kernel/debug/tracing"
    fake_tracing(tmp_path)  # an empty folder: not mounted
    shutil.copytree(fake_tracing(tmp_path / "other", *tracefs.NEEDED), old)
    assert tracefs.find(tmp_path) == old


def test_a_container_without_tracing_is_told_so(tmp_path):
    with pytest.raises(MissingPart, match="not mounted, or kept out of this container") as caught:
        tracefs.find(tmp_path)
    assert caught.value.exit_code == 5
    assert "mount -t tracefs" in caught.value.hint
    assert "--quick" in caught.value.hint


def test_a_kernel_without_a_scheduler_trace_is_told_so(tmp_path):
    fake_tracing(tmp_path, "sched:sched_switch")
    with pytest.raises(MissingPart, match="no event sched:sched_wakeup"):
        tracefs.find(tmp_path)


def test_missing_rights_are_told_so(tmp_path, monkeypatch):
    fake_tracing(tmp_path, *tracefs.NEEDED)

    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(MissingPart, match="only root may trace"):
        tracefs.find(tmp_path)


def test_a_recording_without_tracing_exits_5(tmp_path, monkeypatch):
    monkeypatch.setattr(tracefs, "PLACES", ("nowhere",))
    failed = host("record", "--seconds", "1", "-o", tmp_path / "t.txt")
    assert failed.exception.exit_code == 5
    assert not list(tmp_path.glob("t.txt*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pid", "999999999"], "there is no process"),
        (["--pid", str(os.getpid()), "--", "true"], "one of them says how long"),
        (["--quick", "--", "no-such-command"], "cannot be started"),
        (["-o", "json"], "is a format"),
        (["--quick", "--seconds", "0.1", "-o", "table"], "is a format"),
    ],
)
def test_what_cannot_be_recorded_is_told(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the checkout may be read-only, and that would be told first
    failed = host("record", *arguments)
    assert failed.exception.exit_code == 2
    assert message in str(failed.exception)


def test_a_recording_ends_with_the_process_it_was_made_for():
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    work = RecordedCommand(seconds=60, pid=process.pid)
    looked = threading.Event()
    work.witness.look = looked.set
    ending = threading.Thread(target=process.communicate)
    ending.start()
    work.wait()
    ending.join()
    assert looked.is_set()


# --- snapshots alone ----------------------------------------------------------------------------------------


def later(**changes):
    """The training host one second on: each named thread changed."""
    before = training_host()
    return before, replace(
        before,
        threads=tuple(
            replace(one, **{key: getattr(one, key) + more for key, more in changes.get(one.name, {}).items()})
            for one in before.threads
        ),
    )


def quick(before, after, **more):
    return compare(classify(before), classify(after), seconds=1.0, num_cpus=4, **more)


def test_two_looks_at_proc_tell_who_waited():
    before, after = later(pt_autograd_0={"wait_s": 0.4, "run_s": 0.1, "num_preempted": 9}, envoy={"run_s": 0.2})
    found = quick(before, after)
    first = found.to_dict()["threads"][0]
    assert (first["comm"], first["wait_ms"], first["run_ms"], first["preempted"]) == ("pt_autograd_0", 400, 100, 9)
    assert "pt_autograd_0 (4001) was runnable but not running 40% of the time" in found.notes[0]
    assert {one.thread.thread.name for one in found.changes} == {"pt_autograd_0", "envoy"}


def test_a_quiet_machine_gets_no_note():
    assert quick(*later(envoy={"run_s": 0.2})).notes == ()


def test_a_thread_pinned_to_a_busy_cpu_gets_a_note():
    before, after = later(envoy={"wait_s": 0.5})
    pinned = replace(after, threads=tuple(replace(one, cpus=(3,)) for one in after.threads))
    assert any("may run on CPU 3 only" in note for note in quick(before, pinned).notes)


def test_a_pool_that_wants_more_cpus_than_there_are_gets_a_note():
    before, after = later(python={"run_s": 0.5, "wait_s": 0.4})
    assert any("of python wanted 8.1 CPUs of 4" in note for note in quick(before, after).notes)


def test_numbers_used_again_are_other_threads():
    before = training_host()
    again = replace(before, threads=tuple(replace(one, start_ticks=99) for one in before.threads))
    found = quick(before, again)
    assert (found.changes, found.num_born, found.num_gone) == ((), len(before.threads), len(before.threads))


def test_interrupts_are_told_by_cpu():
    def at(count):
        return [{"irq": 33, "name": "virtio-net", "counts": {"2": count}}]

    before, after = later()
    assert quick(before, after, interrupts=(at(10), at(510))).interrupts == (("33 virtio-net", 2, 500.0),)


def test_the_quick_report_needs_nothing(tmp_path):
    out = tmp_path / "quick.json"
    assert host("record", "--quick", "--seconds", "0.05", "-o", out).exit_code == 0
    data = json.loads(out.read_text())
    assert {"seconds", "threads", "interrupts", "pools", "notes"} <= set(data)
    shown = host("record", "--quick", "--seconds", "0.05")
    assert re.search(r"layer +thread +tid", shown.stdout)


# --- the machine beside a trace -----------------------------------------------------------------------------


def test_a_snapshot_has_the_machine_and_comes_back(tmp_path):
    write_proc(tmp_path, training_host())
    cpus = tmp_path / "sys/devices/system/cpu"
    for number in range(2):
        (cpus / f"cpu{number}/cache/index3").mkdir(parents=True)
        (cpus / f"cpu{number}/cache/index3/shared_cpu_list").write_text("0-1")
    (cpus / "online").write_text("0-1")
    group = tmp_path / "sys/fs/cgroup/job.slice/run-1"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "proc/interrupts").write_text(
        "           CPU0       CPU1\n 24:  1  20  PCI-MSIX 0-edge  eth0\nLOC:  5  6  timers\nERR:  0\n"
    )
    (tmp_path / "proc/irq/24").mkdir(parents=True)
    (tmp_path / "proc/irq/24/smp_affinity_list").write_text("1\n")
    data = snapshot.take(tmp_path)
    assert data["irqs"] == [{"irq": 24, "name": "eth0", "cpus": "1", "counts": {"0": 1, "1": 20}}]
    assert data["cgroups"] == {"/job.slice/run-1": {"cpu.max": "50000 100000"}}
    assert {one["tid"]: one["layer"] for one in data["threads"]}[TRAINER] == "critical"
    trace = tmp_path / "trace.txt"
    snapshot.beside(trace).write_text(json.dumps(data))
    machine = snapshot.machine_of(trace, is_here=False)
    assert machine.cpus is not None
    assert machine.cpus.numbers == (0, 1)
    assert machine.cpus.llcs == {0: (0, 1)}
    assert TRAINER in machine.critical
    assert snapshot.take(tmp_path, pid=5000)["critical"] == []


def test_threads_that_were_seen_to_feed_an_accelerator_are_critical_whatever_their_name(tmp_path):
    text = Text().wake(1, 0, ("python", 7)).switch(5, 0, IDLE, ("python", 7)).switch(9, 0, ("python", 7), IDLE)
    trace = tmp_path / "trace.txt"
    trace.write_bytes(text.raw())
    assert not json.loads(host("report", trace, "-o", "json").stdout)["threads"][0]["is_critical"]
    snapshot.beside(trace).write_text(json.dumps({**snapshot.take(), "critical": [7]}))
    assert json.loads(host("report", trace, "-o", "json").stdout)["threads"][0]["is_critical"]


def test_no_snapshot_is_no_fault_and_a_wrong_one_is(tmp_path):
    trace = tmp_path / "trace.txt"
    assert snapshot.machine_of(trace, is_here=False) == snapshot.MachineSnapshot()
    here = snapshot.machine_of(trace, is_here=True)
    assert here.cpus is not None
    assert here.clock_offset_ns(None) > 0
    assert here.clock_offset_ns(1.5) == 1_500_000_000
    head = '{"form": "strata-host-snapshot/1", "cpus": [], "critical": [], '
    endless, steal = head + '"epoch_ahead_ns": 1e999}', head + '"epoch_ahead_ns": 0, "steal": "much"}'
    for wrong in ("[]", "{}", "not json", '{"form": "other"}', endless, steal):
        snapshot.beside(trace).write_text(wrong)
        with pytest.raises(BadFile):
            snapshot.machine_of(trace, is_here=False)


# --- as whom the work runs ----------------------------------------------------------------------------------


def test_under_sudo_the_job_is_run_as_who_called_it():
    sudo = {"SUDO_UID": "65534", "SUDO_GID": "65534"}
    user = behind_sudo(sudo, user=0)
    assert user is not None
    assert (user.uid, user.gid, 0 in user.groups) == (65534, 65534, False)
    assert behind_sudo(sudo, user=1000) is None
    assert behind_sudo({}, user=0) is None
    assert behind_sudo({"SUDO_UID": "0", "SUDO_GID": "0"}, user=0) is None
    if os.geteuid() == 0:
        work = RecordedCommand(seconds=None, command=["/bin/sh", "-c", "id -u; id -g; echo $USER"], user=user)
        reader, writer = os.pipe()
        saved = os.dup(1)
        os.dup2(writer, 1)
        try:
            work.start()
            work.wait()
        finally:
            os.dup2(saved, 1)
            os.close(writer)
        assert os.read(reader, 100).split()[:2] == [b"65534", b"65534"]
        os.close(reader)
