"""An event loop that signals end at an await: an exception raised anywhere in it leaves sockets and coroutines."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
ENDINGS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def finish(work: Callable[P, Coroutine[Any, Any, T]], *arguments: P.args, **named: P.kwargs) -> T:
    """Return what the work returns in a loop of its own; a signal cancels it and is raised again after it.

    `asyncio.run` does so for SIGINT alone, and only where nobody has taken that signal before.
    """
    caught = list[int]()

    async def cancellable() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel(number: int, _frame: object) -> None:
            caught.append(number)
            loop.call_soon_threadsafe(task.cancel)

        taken = [number for number in ENDINGS if callable(signal.getsignal(number))]
        before = {number: signal.signal(number, cancel) for number in taken}
        try:
            return await work(*arguments, **named)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    try:
        return asyncio.run(cancellable())
    finally:
        if caught:
            signal.raise_signal(caught[0])
