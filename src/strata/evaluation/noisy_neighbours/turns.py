"""In which order things are tried, and what becomes of it at Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType


def turns(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield the names `rounds` times, forwards and backwards in turn (ABBA).

    So a machine that gets busier meanwhile is not counted against the last one.
    """
    for turn in range(rounds):
        yield from names if turn % 2 == 0 else reversed(names)


class Patience:
    """`with` it, Ctrl-C ends what is within, and nothing is raised; `is_over` tells what comes next."""

    def __init__(self) -> None:
        self.is_over = False

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Take a Ctrl-C for the end of it."""
        self.is_over = self.is_over or kind is KeyboardInterrupt
        return kind is KeyboardInterrupt
