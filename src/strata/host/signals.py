"""SIGTERM as Ctrl-C, so that what was switched on is switched off whichever of them comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def stoppable() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt meanwhile."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
