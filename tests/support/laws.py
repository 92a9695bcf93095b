"""With how many examples a law is tried: all it asks for by `make test-laws`, a third of them by `make test`."""

from __future__ import annotations

import os

from hypothesis import settings

IS_LONG = bool(os.environ.get("STRATA_LAWS"))
"""Whether `make test-laws` runs."""
NUM_EXAMPLES = 100
"""Of a law that asks for no number."""
FEWEST = 5


def num_examples(asked: int) -> int:
    """Return how many of the examples that a law asks for are tried in this run."""
    return asked if IS_LONG else max(min(asked, FEWEST), asked // 3)


def examples(asked: int) -> settings:
    """Return the decorator of a law that needs another number than `NUM_EXAMPLES`."""
    return settings(max_examples=num_examples(asked))
