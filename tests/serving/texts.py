"""What tokens of the small models say."""

from __future__ import annotations

from collections.abc import Iterable

from strata.serving.tokens import BOS


def decode(tokens: Iterable[int]) -> str:
    """Return the text of tokens; what is not UTF-8 is shown as U+FFFD, begins and ends as nothing."""
    return bytes(token for token in tokens if token < BOS).decode("utf-8", errors="replace")
