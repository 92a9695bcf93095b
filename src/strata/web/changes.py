"""That something has changed at the scheduler, told to every open page by one connection to it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Final

from strata.control.client import Client
from strata.errors import StrataError

_AGAIN_S: Final = 2.0
"""From one try to reach a scheduler to the next."""
_BEAT_S: Final = 15.0
"""Of a stream that has nothing to say, so that a page that has gone is noticed."""


class Changes:
    """Follows a scheduler's events as soon as somebody listens."""

    def __init__(self, scheduler: Client) -> None:
        self.scheduler = scheduler
        self._waiting: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def stream(self) -> AsyncIterator[str]:
        """Yield server-sent events: one now, and one whenever something has changed."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._follow, daemon=True, name="changes").start()
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            yield "event: jobs\ndata: changed\n\n"
            while True:
                try:
                    await asyncio.wait_for(changed.wait(), _BEAT_S)
                    changed.clear()
                    yield "event: jobs\ndata: changed\n\n"
                except TimeoutError:
                    yield ": nothing\n\n"
        finally:
            self._waiting.discard(changed)

    def _follow(self) -> None:
        is_there = True
        while True:
            try:
                for _ in self.scheduler.events():
                    is_there = True
                    self._tell()
            except StrataError:
                if is_there:
                    self._tell()
                is_there = False
            time.sleep(_AGAIN_S)

    def _tell(self) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()
