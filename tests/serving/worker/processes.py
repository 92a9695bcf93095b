"""Real `strata serve` processes on the loopback."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.real_processes import Process


class Processes(ExitStack):
    """Started together, gone together."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._count = folder, 0

    def start(self, *arguments: str, within: Sequence[str] = ()) -> Process:
        """Start `strata serve ...`, and do not wait for it; its `address` is a URL."""
        self._count += 1
        made = Process(self._folder / f"{self._count}.log", "serve", *arguments, within=within)
        self.callback(made.close)
        return made
