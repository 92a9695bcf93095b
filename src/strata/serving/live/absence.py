"""Since when nothing serves a model and nothing is about to: nobody has joined, or who has cannot hold it."""

from __future__ import annotations

from typing import Final

ABSENCE_S: Final = 30.0
"""How long that lasts before who waits is refused (assumed): workers that live join a gateway started anew
within six seconds (`worker/agent.py`), and one that is itself started anew needs longer."""


class Absence:
    """Told after every event whether anything serves or is about to."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def is_long(self, is_here: bool, now_s: float) -> bool:
        """Return whether nothing has been here for so long that nothing is to be waited for."""
        if is_here:
            self._since_s = None
            return False
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s >= ABSENCE_S

    def wake_s(self) -> float | None:
        """Return when it will have been long; None where something is here."""
        return None if self._since_s is None else self._since_s + ABSENCE_S
