"""Whose turn it is on the one thread that runs layers: first come, first served, and what is alike goes along."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import Generic, TypeVar

W = TypeVar("W")
R = TypeVar("R")


class Turns(Generic[W, R]):
    """`work` takes a list, in the executor, and returns as many results.

    kind: what goes together with the first that waits; None goes alone. What waits while others run is what the
    next turn is made of, so batches grow with the load and nobody waits for one to fill (continuous batching,
    Orca, OSDI 2022).
    """

    def __init__(
        self, work: Callable[[list[W]], list[R]], *, kind: Callable[[W], Hashable], executor: Executor
    ) -> None:
        self._work, self._kind, self._executor = work, kind, executor
        self._waiting = deque[tuple[W, asyncio.Future[R]]]()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self, item: W) -> R:
        """Return the result of one item; whatever `work` raises is raised to all that went along."""
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await future

    async def close(self) -> None:
        """Break off what waits."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        while self._waiting:
            self._waiting.pop()[1].cancel()

    async def _run(self) -> None:
        run = asyncio.get_running_loop().run_in_executor
        try:
            while batch := self._next():
                try:
                    results = await run(self._executor, self._work, [item for item, _ in batch])
                except Exception as error:
                    for _, future in batch:
                        if not future.done():
                            future.set_exception(error)
                    continue
                for (_, future), result in zip(batch, results, strict=True):
                    if not future.done():
                        future.set_result(result)
        finally:
            self._task = None

    def _next(self) -> list[tuple[W, asyncio.Future[R]]]:
        """Take out the first that is still wanted, and all of its kind."""
        wanted = [item for item in self._waiting if not item[1].done()]
        self._waiting.clear()
        if not wanted:
            return []
        first = wanted[0]
        kind = self._kind(first[0])
        if kind is None:
            self._waiting.extend(wanted[1:])
            return [first]
        batch = list[tuple[W, asyncio.Future[R]]]()
        for item in wanted:
            (batch if self._kind(item[0]) == kind else self._waiting).append(item)
        return batch
