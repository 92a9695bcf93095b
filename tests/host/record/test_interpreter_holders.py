"""Who has Python's interpreter: what py-spy writes, what it says where it cannot, and nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from strata.host.record import interpreter_holders as holding
from strata.host.record.interpreter_holders import holders_in, holding_of, interpreter_holders
from strata.host.threads.interpreter import interpreters_of

RAW = """thread (5016): load;er;Thread._bootstrap (threading.py:988);burn (gil.py:2) 86
thread (5016): load;er;wait (threading.py:5) 4
thread (5016): load;er;Thread.run (threading.py:9);burn (gil.py:2) 3
thread (4937): MainThread;<module> (\x1b[2J.py:1) 1
thread (7);spin (<string>:1) 99
something else
"""
SPIN = "def spin():\n    while True: pass\nprint(flush=True)\nspin()"


def test_what_py_spy_writes_is_added_up_by_thread_and_function():
    expected = {5016: {"burn (gil.py:2)": 89, "wait (threading.py:5)": 4}, 4937: {"<module> (?[2J.py:1)": 1}}
    expected[7] = {"spin (<string>:1)": 99}  # where nothing imported `threading`, threads have no names
    assert holders_in(RAW) == expected
    assert holding_of([{"tid": tid, "places": places} for tid, places in expected.items()]) == expected


@pytest.fixture
def python():
    """A process that keeps its interpreter: in one that is starting, py-spy searches all memory for it."""
    with subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert interpreters_of(process.pid)
        yield process.pid
        process.kill()


def spying(monkeypatch, folder: Path, script: str, *, trap: str = "") -> None:
    """Let a script be py-spy; `started` beside it says that it handles Ctrl-C."""
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\ntrap '{trap}' INT\necho >> {folder}/started\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(holding, "find", lambda: str(program))


def has_started(folder: Path) -> None:
    while not (folder / "started").exists():
        time.sleep(0.01)


def test_each_python_process_has_a_look_of_its_own_once(tmp_path, monkeypatch, python):
    write = 'while [ "$1" != -o ]; do shift; done; echo "thread ($4): MainThread;spin (x.py:1) 7" > "$2"; exit 0'
    spying(monkeypatch, tmp_path, "while :; do sleep 0.01; done", trap=write)
    with interpreter_holders() as holders, subprocess.Popen(["sleep", "600"]) as other:
        holders.follow([python, other.pid, python])
        holders.follow([python])
        has_started(tmp_path)
        holders.stop()
        other.kill()
    assert holders.to_list() == [{"tid": python, "places": {"spin (x.py:1)": 7}}]
    assert holders.failures == []
    assert (tmp_path / "started").read_text() == "\n"


def test_one_that_may_not_look_says_why(tmp_path, monkeypatch, python):
    spying(monkeypatch, tmp_path, "echo 'Permission Denied: try this' >&2; exit 1")
    with interpreter_holders() as holders:
        holders.follow([python])
        has_started(tmp_path)
    assert holders.counts == {}
    assert holders.failures == [
        f"py-spy did not see who holds the interpreter of process {python}: Permission Denied: try this"
    ]


def test_one_that_does_not_end_is_killed(tmp_path, monkeypatch, python):
    monkeypatch.setattr(holding, "PATIENCE_S", 0.1)
    spying(monkeypatch, tmp_path, "exec sleep 600")
    with interpreter_holders() as holders:
        holders.follow([python])
        has_started(tmp_path)
    assert len(holders.failures) == 1


def test_one_that_had_no_time_to_look_is_no_failure(tmp_path, monkeypatch, python):
    spying(monkeypatch, tmp_path, "", trap="-")
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexec sleep 600\n")
    with interpreter_holders() as holders:
        holders.follow([python])
    assert (holders.counts, holders.failures) == ({}, [])


def test_without_py_spy_nobody_looks(monkeypatch, python):
    monkeypatch.setattr(holding, "find", lambda: None)
    with interpreter_holders() as holders:
        holders.follow([python])
    assert (holders.counts, holders.failures) == ({}, [])


@pytest.mark.real("py-spy")
def test_the_real_one_names_the_function(python):
    with interpreter_holders() as holders:
        holders.follow([python])
        time.sleep(2.0)
    assert holders.failures == []
    ((tid, places),) = holders.counts.items()
    assert (tid, list(places)) == (python, ["spin (<string>:1)"])
