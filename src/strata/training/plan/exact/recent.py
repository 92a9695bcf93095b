"""What was worked out last, so that a search of minutes takes no more memory than one of seconds."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

BYTES: Final = 1 << 28
"""For tables of all runs of layers, of each kind."""


class Recent(OrderedDict[Key, Value]):
    """A dictionary that forgets the entry that was not asked for the longest where it has more than `most`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    @classmethod
    def of_tables(cls, layers: int) -> Recent[Key, Value]:
        """Return one for tables [layers + 1, layers + 1] of floats, as many as BYTES hold."""
        return cls(max(1, BYTES // (8 * (layers + 1) ** 2)))

    def __getitem__(self, key: Key) -> Value:
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self.most:
            self.popitem(last=False)
