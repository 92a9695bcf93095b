"""Recording by `perf record`, and its text by `perf script`: the least overhead, with buffers of bounded size.

References
----------
perf-record(1): --control, --delay, --mmap-pages, --max-size. Measured: 0.15 us of CPU an event.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from strata.errors import MissingPart, StrataError
from strata.host.record.sink import Sink
from strata.host.record.work import RecordedCommand

MAX_BUFFER_BYTES: Final = 512 * 2**20
"""Of locked memory over all CPUs."""
MAX_PAGES: Final = 4096
"""Of 4 KiB a CPU: with these a storm of 290,000 events/s loses none."""
MAX_FILE: Final = "2G"
"""perf ends by itself when its file is so large: 18 million events."""
PAGE_BYTES: Final = 4096


def find() -> str | None:
    """Return where perf is, None for nowhere."""
    return shutil.which("perf")


def pages(num_cpus: int) -> int:
    """Return the pages of a CPU's buffer: a power of two, all of them together at most MAX_BUFFER_BYTES."""
    fair = max(1, MAX_BUFFER_BYTES // (num_cpus * PAGE_BYTES))
    return min(MAX_PAGES, 1 << (fair.bit_length() - 1))


def record(
    perf: str, work: RecordedCommand, sink: Sink, *, events: Sequence[str], num_cpus: int, folder: Path
) -> bool:
    """Record while `work` lasts, and write the text to `sink`. `folder` holds perf's own file meanwhile.

    Returns whether all of it was recorded, which it is not where the file came to MAX_FILE. Raises MissingPart
    with what perf says where it may not or cannot record.
    """
    # Without a name: nothing is left of it, however we end.
    with tempfile.TemporaryFile(dir=folder) as data:
        is_whole = _record(perf, work, data, events, num_cpus, folder)
        _script(perf, data, sink)
    return is_whole


def _record(
    perf: str, work: RecordedCommand, data: IO[bytes], events: Sequence[str], num_cpus: int, folder: Path
) -> bool:
    control_read, control = os.pipe()
    heard, heard_write = os.pipe()
    command = [
        perf, "record", "-q", "-a", "-k", "CLOCK_MONOTONIC", "-m", str(pages(num_cpus)), "--max-size", MAX_FILE,
        # Without them perf ends a second later, and reads all its file again for what our events do not need.
        "--no-bpf-event", "--no-buildid", "--no-buildid-cache",
        "-D", "-1", "--control", f"fd:{control_read},{heard_write}", "-o", f"/dev/fd/{data.fileno()}",
        "-e", ",".join(events),
    ]  # fmt: skip
    # A session of its own: Ctrl-C is ours to hand on, once the recording is whole.
    process = subprocess.Popen(
        command,
        pass_fds=(control_read, heard_write, data.fileno()),
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(control_read)
    os.close(heard_write)
    try:
        # It answers when it records; where it cannot it ends instead, and the pipe is closed.
        if not _say(control, b"enable\n") or not os.read(heard, 64):
            raise MissingPart(
                f"perf cannot record: {_last_words(process)}", hint="strata host record --how tracefs"
            )
        work.start()
        work.wait()
        is_whole = process.poll() is None
        _say(control, b"stop\n")
        _, errors = process.communicate(timeout=60)
        if process.returncode != 0:
            raise MissingPart(
                f"perf record failed: {_short(errors)}",
                hint=f"df {folder} (its file takes 112 bytes an event); or strata host record --how tracefs",
            )
        return is_whole
    finally:
        os.close(control)
        os.close(heard)
        if process.poll() is None:
            process.terminate()
            process.communicate()


def _say(pipe: int, word: bytes) -> bool:
    try:
        os.write(pipe, word)
    except BrokenPipeError:
        return False
    return True


def _last_words(process: subprocess.Popen[bytes]) -> str:
    _, errors = process.communicate(timeout=60)
    return _short(errors)


def _short(errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode(errors="replace").splitlines() if line.strip()]
    return " ".join(lines[:2]) or "it says nothing"


def _script(perf: str, data: IO[bytes], sink: Sink) -> None:
    fields = "comm,pid,tid,cpu,time,event,trace"
    command = [perf, "script", "-F", fields, "--ns", "--show-lost-events", "-i", f"/dev/fd/{data.fileno()}"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, pass_fds=(data.fileno(),))
        with process:
            assert process.stdout is not None
            sink.copy(process.stdout)
        if process.returncode != 0:
            errors.seek(0)
            raise StrataError(f"perf script failed: {_short(errors.read())}")
