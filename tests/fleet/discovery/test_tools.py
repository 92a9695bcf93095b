"""Running tools: here, missing, broken, talkative, hanging. The tools are small scripts the tests write."""

from __future__ import annotations

import itertools
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from strata.fleet.discovery import tools
from strata.fleet.discovery.tools import ToolFailed

Script = Callable[[str], str]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    """Write a tool; its name is on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def write(body: str) -> str:
        path = folder / "fake-smi"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path.name

    return write


def test_what_a_tool_writes_comes_back_without_its_complaints(script: Script) -> None:
    assert tools.run([script('echo "$1 $LC_ALL"; echo noise >&2'), "info"]) == "info C\n"


def test_a_missing_tool_is_not_here() -> None:
    assert tools.run(["no-such-smi", "info"]) is None


def test_a_tool_that_fails_says_so(script: Script) -> None:
    with pytest.raises(ToolFailed, match="fake-smi: ended with 3, saying 'DrvMngGetConsoleLogLevel failed'"):
        tools.run([script("echo DrvMngGetConsoleLogLevel failed; exit 3")])


def test_a_tool_for_another_machine_says_so(script: Script, tmp_path: Path) -> None:
    name = script("")
    (tmp_path / "bin" / name).write_bytes(b"\x7fELF not really")
    with pytest.raises(ToolFailed, match="fake-smi: cannot be started"):
        tools.run([name])


def test_a_tool_gets_no_input(script: Script) -> None:
    assert tools.run([script("cat; echo done")]) == "done\n"


def test_bytes_that_are_no_text_do_not_matter(script: Script) -> None:
    assert tools.run([script(r"printf 'a\377b'")]) == "a\N{REPLACEMENT CHARACTER}b"


def test_a_talkative_tool_is_stopped(script: Script) -> None:
    with pytest.raises(ToolFailed, match="wrote more than 5000 bytes; it was killed"):
        tools.run([script("while :; do echo more; done")], max_bytes=5000)


def test_a_tool_that_leaves_a_child_behind_has_ended(script: Script, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # The child holds stdout open and waits for a writer that never comes.
    assert tools.run([script(f"cat {fifo} & echo done")]) == "done\n"


def test_a_hanging_tool_is_killed_with_its_children(script: Script, tmp_path: Path) -> None:
    alive, never = tmp_path / "alive", tmp_path / "never"
    os.mkfifo(alive)
    os.mkfifo(never)
    reader = os.open(alive, os.O_RDONLY | os.O_NONBLOCK)
    # Both hold `alive` open for writing, say so, and wait for ever.
    name = script(f"exec 3>{alive}; (echo child >&3; cat {never}) & echo parent >&3; cat {never}")
    heard = b""

    late = itertools.count(1e9, 1e9)

    def clock() -> float:
        # Time stands still until both run; from then on every look at it is long after the last.
        nonlocal heard
        if select.select([reader], [], [], 0)[0]:
            heard += os.read(reader, 100)
        return next(late) if b"child" in heard and b"parent" in heard else 0.0

    with pytest.raises(ToolFailed, match="fake-smi: no answer within 10 s; it was killed"):
        tools.run([name], clock=clock)
    # End of file: nobody is left who could write.
    assert select.select([reader], [], [], 30)[0]
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_a_call_gives_its_answer_or_its_error() -> None:
    assert tools.limited(lambda: 7, "lib") == 7
    with pytest.raises(ZeroDivisionError):
        tools.limited(lambda: 1 // 0, "lib")


def test_a_library_that_hangs_is_left_alone_until_it_answers() -> None:
    answer = threading.Event()
    with pytest.raises(ToolFailed, match=r"lib: no answer within 0.01 s"):
        tools.limited(answer.wait, "lib", timeout_s=0.01)
    with pytest.raises(ToolFailed, match="lib: has still not answered an earlier question"):
        tools.limited(lambda: 7, "lib")
    (stuck,) = (thread for thread in threading.enumerate() if thread.name == "strata-lib")
    answer.set()
    stuck.join(30)
    assert tools.limited(lambda: 7, "lib") == 7
