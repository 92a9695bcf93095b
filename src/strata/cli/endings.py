"""A command that starts processes ends them, whichever signal ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_as_by_ctrl_c() -> Iterator[None]:
    """Take SIGTERM and SIGHUP for Ctrl-C, so that cleaning up is done; a second one does not cut it short."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in (*ENDINGS, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (*ENDINGS, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
