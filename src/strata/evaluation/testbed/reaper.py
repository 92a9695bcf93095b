"""The process that ends a testbed: when its parent is gone, however it went, the namespaces go too.

Runs as `python -m strata.evaluation.testbed.reaper NAMESPACE...` with a pipe for its input. A line `done` is an
orderly end; the end of the pipe without one means that the parent was killed, perhaps while it was creating a
namespace.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

_PASS_S: Final = 0.2
_CLEAN_PASSES: Final = 5  # an `ip netns add` that outlived the parent has ended after a second


def main(names: Sequence[str]) -> None:
    """Wait for the end of the input, then remove the namespaces named and all that runs in them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    is_orderly = sys.stdin.readline().strip() == "done"
    clean = 0
    while clean < (1 if is_orderly else _CLEAN_PASSES):
        clean = 0 if reap(names) else clean + 1
        if clean == 0 or not is_orderly:
            time.sleep(_PASS_S)


def reap(names: Sequence[str]) -> bool:
    """Kill what runs in these namespaces and remove them; return whether there were any."""
    here = {line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()}
    left = [name for name in names if name in here]
    for name in left:
        for pid in _ip("netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        _ip("netns", "delete", name)
    return bool(left)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
