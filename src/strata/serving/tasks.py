"""Tasks that nobody waits for: kept until they end, and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class TaskSet(set[asyncio.Task[Any]]):
    """Running tasks. `on_error` is called with what one of them raised; asyncio logs it where nobody is."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        super().__init__()
        self._on_error = on_error

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside whatever runs."""
        task = asyncio.create_task(work)
        self.keep(task)
        return task

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it ends: the event loop alone does not."""
        self.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancel all, and return when they have ended."""
        tasks = list(self)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.discard(task)
        if self._on_error and not task.cancelled() and (error := task.exception()):
            self._on_error(error)
