"""Runs of a binary: what it said, and that nothing stays behind whatever it does.

The binaries are scripts: fake where no real one can be (strata never builds or ships ASTRA-sim).
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile

import pytest

from strata.errors import MissingPart, StrataError, UsageError
from strata.simulate.astra.chakra import Node, NodeType
from strata.simulate.astra.files import AstraDimension, Scenario
from strata.simulate.astra.run import parse, run
from tests.simulate.astra.fake_astra import fake, script
from tests.support.real_processes import until

COMPUTE = (Node(0, NodeType.COMP, duration_us=5),)
TWO = Scenario((AstraDimension(2, 2.0**30, 1e-6),), (COMPUTE, COMPUTE))

NEW = (
    "[2026-11-20 19:58:46.441] [workload] [info] sys[1] finished, 70 cycles, exposed communication 20 cycles.\n"
    "[2026-11-20 19:58:46.441] [statistics] [info] sys[0], Wall time: 57426\n"
    "[2026-11-20 19:58:46.442] [workload] [info] sys[0] finished, 57426 cycles, exposed communication 0 cycles.\n"
)
OLD = "sys[0] finished, 13271344 cycles\nsys[1] finished, 5 cycles\n"


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Run folders go where the test can look."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def start(binary, *, time_limit_s=120.0, keep=None, scenario=TWO):
    return run(binary, scenario, time_limit_s=time_limit_s, keep=keep)


def test_the_head_builds_lines_are_read_with_exposed_communication():
    assert parse(NEW, 2) == ((57426, 70), (0, 20))


def test_the_lines_of_2_0_are_read_without_exposed_communication():
    assert parse(OLD, 2) == ((13271344, 5), (None, None))


def test_a_rank_that_never_finished_is_an_error_though_the_exit_code_is_0():
    with pytest.raises(StrataError, match=r"2 of 4 ranks never finished \(2, 3\)"):
        parse(OLD, 4)


@pytest.mark.parametrize(("mode", "exposed"), [("right", (0, 0)), ("old", (None, None))])
def test_a_run_is_read_and_its_folder_is_gone(tmp_path, places, mode, exposed):
    answer = start(fake(tmp_path / "bin", mode=mode))
    assert (answer.finish_ns, answer.exposed_ns) == ((5000, 5000), exposed)
    assert list(places.iterdir()) == []


def test_a_kept_folder_holds_the_files_and_what_was_printed(tmp_path, places):
    start(fake(tmp_path / "bin"), keep=tmp_path / "kept" / "run")
    names = {path.name for path in (tmp_path / "kept" / "run").iterdir()}
    assert names == {"network.yml", "system.json", "remote_memory.json", "trace.0.et", "trace.1.et", "stdout.log"}
    assert list(places.iterdir()) == []


def test_a_folder_named_empty_does_not_lose_the_groups(tmp_path):
    both = Scenario(TWO.dims, TWO.traces, ((0, 1),))
    start(fake(tmp_path / "bin"), keep=tmp_path / "empty", scenario=both)
    assert "--comm-group-configuration=groups.json" in both.arguments()


@pytest.fixture
def once(monkeypatch):
    """Return what lets a time limit pass only once something has happened, however slow the machine is."""
    wait = subprocess.Popen.wait

    def begin(has_happened):
        def wait_first(process, timeout=None):
            if timeout is not None:
                until(has_happened, lambda: "what the time limit is to end")
            return wait(process, timeout)

        monkeypatch.setattr(subprocess.Popen, "wait", wait_first)

    return begin


def test_a_hang_ends_with_the_time_limit_and_says_what_was_printed_last(tmp_path, places, once):
    binary = script(tmp_path / "hangs", "#!/bin/sh\necho still here\nexec sleep 600\n")
    once(lambda: [True for file in places.glob("*/stdout.log") if "still here\n" in file.read_text()])
    with pytest.raises(StrataError, match=r"hangs did not end within 1 s and was stopped.*\n  still here"):
        start(binary, time_limit_s=1)
    assert list(places.iterdir()) == []


def test_the_time_limit_kills_the_children_of_a_child_too(tmp_path, once):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        # Whoever sleeps holds the pipe open; it reads as ended once nobody does.
        binary = script(tmp_path / "wraps", f"#!/bin/sh\nsh -c 'echo up; exec sleep 600' >{pipe} &\nwait\n")
        once(lambda: select.select([reader], [], [], 60)[0])
        with pytest.raises(StrataError, match="was stopped"):
            start(binary, time_limit_s=1)
        os.set_blocking(reader, True)
        assert os.read(reader, 10) == b"up\n"
        assert select.select([reader], [], [], 60)[0], "a process is left"
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)


def test_a_crash_names_its_signal(tmp_path, places):
    with pytest.raises(StrataError, match=r"failed: SIGFPE \(exit 136\); its last lines:\n  terminate called"):
        start(fake(tmp_path / "bin", mode="fpe"))
    assert list(places.iterdir()) == []


def test_a_killed_binary_names_its_signal(tmp_path):
    with pytest.raises(StrataError, match=r"SIGSEGV \(exit -11\); it printed nothing"):
        start(script(tmp_path / "dies", "#!/bin/sh\nkill -SEGV $$\n"))


def test_a_missing_rank_is_an_error(tmp_path, places):
    with pytest.raises(StrataError, match=r"1 of 2 ranks never finished \(1\)"):
        start(fake(tmp_path / "bin", mode="missing"))
    assert list(places.iterdir()) == []


def test_what_is_no_program_for_this_machine_is_said(tmp_path, places):
    with pytest.raises(MissingPart, match="does not start: Exec format error"):
        start(script(tmp_path / "other", "no program"))
    assert list(places.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        start(fake(tmp_path / "bin"), keep=tmp_path / "file" / "run")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"nowhere: cannot be written: No such file or directory"):
        start(fake(tmp_path / "bin"))


def test_an_interrupted_run_leaves_no_process_and_no_folder(tmp_path, places, monkeypatch):
    started, wait = [], subprocess.Popen.wait

    def interrupted(process, timeout=None):
        if not started:
            started.append(process)
            raise KeyboardInterrupt
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(script(tmp_path / "hangs", "#!/bin/sh\nexec sleep 600\n"))
    assert started[0].returncode == -9
    assert list(places.iterdir()) == []
