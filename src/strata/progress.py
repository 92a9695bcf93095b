"""How long work reports how far it is, without knowing what shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Progress(Protocol):
    """Opens a display for one phase; what it yields is called with the part of `total` that is done."""

    def __call__(
        self, label: str, *, total: float | None = None
    ) -> AbstractContextManager[Callable[[float], None]]:
        """Open it."""
        ...


@contextmanager
def silent(label: str, *, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Display nothing."""
    yield lambda done: None
