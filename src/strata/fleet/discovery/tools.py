"""Running a vendor's tool: with a time limit, a cap on what it writes, and no way to take the agent down with it.

The one file here that starts processes and threads.
"""

from __future__ import annotations

import contextlib
import os
import queue
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from strata.errors import StrataError

T = TypeVar("T")

TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 1 << 20
PLACES: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/opt/hyhal/bin")
"""Where tools are besides PATH: a pod's PATH seldom has the host's folders."""

_POLL_S: Final = 0.02
_REAP_S: Final = 1.0


class ToolFailed(StrataError):
    """A tool is here but gave no answer: it hung, wrote too much, or ended in an error."""

    exit_code = 5


def run(
    command: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    max_bytes: int = MAX_BYTES,
    clock: Callable[[], float] = time.monotonic,
) -> str | None:
    """Return what a command writes to stdout, None where it is not here.

    It runs in a process group of its own, in the C locale, without input. The group is killed when the time is up
    or it wrote more than `max_bytes`; a process that a hanging driver holds cannot be killed, and is left behind.
    Raises ToolFailed.
    """
    # An empty PATH would mean the current folder.
    path = shutil.which(command[0], path=os.pathsep.join(filter(None, (os.environ.get("PATH", ""), *PLACES))))
    if path is None:
        return None
    name = " ".join(command)
    try:
        process = subprocess.Popen(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,
        )
    except OSError as error:  # not a program, or one for another machine
        raise ToolFailed(f"{name}: cannot be started: {error.strerror or error}") from error
    assert process.stdout is not None, "stdout is a pipe"
    with process.stdout:
        try:
            written, trouble = _read(process, timeout_s=timeout_s, max_bytes=max_bytes, clock=clock)
        finally:
            _kill(process)
    if trouble:
        raise ToolFailed(f"{name}: {trouble}; it was killed", hint=f"run `{name}` on the node by hand")
    text = written.decode("utf-8", errors="replace")
    if process.returncode != 0:
        first_line = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        raise ToolFailed(f"{name}: ended with {process.returncode}, saying {first_line[:200]!r}")
    return text


def limited(call: Callable[[], T], name: str, *, timeout_s: float = TIMEOUT_S) -> T:
    """Return what a library's call returns, or give up waiting for it.

    A thread cannot be killed: one that hangs in the driver stays, and until it ends no other is started.
    Raises ToolFailed, and what the call raises.
    """
    thread_name = f"strata-{name}"
    if any(thread.name == thread_name for thread in threading.enumerate()):
        raise ToolFailed(f"{name}: has still not answered an earlier question")
    done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put((call(), None))
        except BaseException as error:
            done.put((None, error))

    thread = threading.Thread(target=work, name=thread_name, daemon=True)
    thread.start()
    try:
        answer, error = done.get(timeout=timeout_s)
    except queue.Empty:
        raise ToolFailed(f"{name}: no answer within {timeout_s:g} s") from None
    thread.join()  # it has nothing left to do, but must be gone before the next question
    if error is not None:
        raise error
    return cast("T", answer)


def _read(
    process: subprocess.Popen[bytes], *, timeout_s: float, max_bytes: int, clock: Callable[[], float]
) -> tuple[bytes, str]:
    """Read until the tool ends; what it wrote, and what went wrong ("" for nothing)."""
    assert process.stdout is not None, "stdout is a pipe"
    out = process.stdout.fileno()
    os.set_blocking(out, False)
    written, ends_at = bytearray(), clock() + timeout_s
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        while True:
            # Asked before reading, so that nothing written before the end is missed. A child of the tool may
            # hold the pipe open for ever: the tool's own end counts.
            has_ended = _has_ended(process.pid)
            if selector.select(0 if has_ended else _POLL_S):
                piece = os.read(out, 1 << 16)
                if not piece:
                    selector.unregister(out)
                written += piece
            elif has_ended:
                return bytes(written), ""
            if len(written) > max_bytes:
                return bytes(written), f"wrote more than {max_bytes} bytes"
            if clock() >= ends_at:
                return bytes(written), f"no answer within {timeout_s:g} s"


def _has_ended(pid: int) -> bool:
    # Not `poll`, which would free the id: the group is killed by it afterwards, and must not be another's by then.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):  # all of the group have ended
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # in the kernel, where signals do not reach
        process.wait(_REAP_S)
