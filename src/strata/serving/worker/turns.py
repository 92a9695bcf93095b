"""Whose turn it is on the one thread that runs layers: first come, first served, and what is alike goes along."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from time import perf_counter
from typing import Generic, TypeVar

W = TypeVar("W")
R = TypeVar("R")


class Turns(Generic[W, R]):
    """`work` takes a list, in the executor, and returns as many results, of which `done` is told in the loop.

    kind: what goes together with the first that waits, `most` at a time; None goes alone. What waits while others
    run is what the next turn is made of, so batches grow with the load and nobody waits for one to fill
    (continuous batching, Orca, OSDI 2022); the next stage begins with one batch while the rest runs here.
    whose: items of one owner keep their order, whatever their kinds.
    is_wanted: whether an item whose turn has come is still to be done.
    done: takes the batch, its results or what `work` raised, and the seconds since the thread was asked.
    """

    def __init__(
        self,
        work: Callable[[list[W]], list[R]],
        *,
        kind: Callable[[W], Hashable],
        whose: Callable[[W], Hashable],
        is_wanted: Callable[[W], bool],
        most: int,
        executor: Executor,
        done: Callable[[list[W], list[R] | Exception, float], None],
    ) -> None:
        self._work, self._kind, self._whose, self._is_wanted, self._most = work, kind, whose, is_wanted, most
        self._executor, self._done = executor, done
        self._waiting = deque[W]()
        self._is_running = self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: W) -> None:
        """Have an item done in its turn."""
        self._waiting.append(item)
        if not self._is_running:
            self._is_running = True
            asyncio.get_running_loop().call_soon(self._next)  # what comes at the same time goes along

    def close(self) -> None:
        """Forget what waits."""
        self._is_closed = True
        self._waiting.clear()

    def _next(self) -> None:
        if not (batch := self._batch()):
            self._is_running = False
            return
        loop, start = asyncio.get_running_loop(), perf_counter()

        def ended(future: Future[list[R]]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._ended, batch, future, start)

        self._executor.submit(self._work, batch).add_done_callback(ended)

    def _ended(self, batch: list[W], future: Future[list[R]], start: float) -> None:
        try:
            if not self._is_closed:
                error = future.exception()
                if isinstance(error, Exception):
                    self._done(batch, error, perf_counter() - start)
                else:
                    self._done(batch, future.result(), perf_counter() - start)
        finally:
            self._next()

    def _batch(self) -> list[W]:
        """Take out the first that is still wanted, and the next of its kind; none where there is none."""
        while self._waiting and not self._is_wanted(self._waiting[0]):
            self._waiting.popleft()
        if not self._waiting:
            return []
        batch = [self._waiting.popleft()]
        kind = self._kind(batch[0])
        others, overtaken = list[W](), set[Hashable]()
        while kind is not None and self._waiting and len(batch) < self._most:
            item = self._waiting.popleft()
            if not self._is_wanted(item):
                continue
            if self._kind(item) == kind and self._whose(item) not in overtaken:
                batch.append(item)
            else:
                others.append(item)
                overtaken.add(self._whose(item))
        self._waiting.extendleft(reversed(others))
        return batch
