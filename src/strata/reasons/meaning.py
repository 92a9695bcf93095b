"""What a reason token stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason token stands for: the sentence shown, what it means, and what one can do about it."""

    sentence: str
    means: str
    remedy: str = "No action is needed."


Meanings = Mapping[str, Meaning]
"""By token."""
