"""Links between processes of one machine that are as slow as a file says, where nobody may shape real ones.

The file is JSON, `{"a>b": 4000000.0}`: bytes a second from one domain to another. A change is
read at once.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

_BURST_S: Final = 0.01


class PacedLinks:
    """What one rank sends, held to the rates of a file; `domains` are those of all ranks."""

    def __init__(self, path: Path, *, domains: list[str], rank: int) -> None:
        self._path, self._domains, self._rank = path, domains, rank
        self._changed_ns, self._rates = 0, dict[str, float]()
        self._free_s: dict[int, float] = {}

    def __call__(self, dest: int, num_bytes: int) -> None:
        """Wait as long as so many bytes take."""
        with suppress(OSError, ValueError):  # it is being written: the rates before it hold
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._changed_ns:
                self._rates = json.loads(self._path.read_text(encoding="utf-8"))
                self._changed_ns = changed_ns
        rate = self._rates.get(f"{self._domains[self._rank]}>{self._domains[dest]}")
        if rate:
            now_s = time.monotonic()
            # A sleep that was too long is made up for, as a token bucket does.
            self._free_s[dest] = max(now_s - _BURST_S, self._free_s.get(dest, 0.0)) + num_bytes / rate
            time.sleep(max(0.0, self._free_s[dest] - now_s))
