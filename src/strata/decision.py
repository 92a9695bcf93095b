"""What every scheduler answers with: a choice, what else was considered, and why.

A `Reason` is a stable token (`reasons`) with data and one sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from strata.reasons import REASONS
from strata.sentences import filled
from strata.tables import printable

Choice = TypeVar("Choice")


class Trust(StrEnum):
    """How far a figure can be believed, best first; a sum is as good as its worst part."""

    MEASURED = "measured"
    CALIBRATED = "calibrated"
    ANALYTIC = "analytic"
    ASSUMED = "assumed"


_TRUST_ORDER: Final = list(Trust)


def worst(*trusts: Trust) -> Trust:
    """Return the least trustworthy of some grades (`measured` for none)."""
    return max(trusts, key=_TRUST_ORDER.index, default=Trust.MEASURED)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something was or was not chosen: a token of `REASONS`, what it is about, and its numbers."""

    token: str
    subject: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.token in REASONS, f"reason token {self.token!r} has no entry in REASONS"

    def __str__(self) -> str:
        # What agents, labels and annotations say stands in it, and it is read in terminals.
        sentence = printable(filled(REASONS[self.token].sentence, self.data))
        return f"{printable(self.subject)}: {sentence}" if self.subject else sentence

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {"token": self.token, "subject": self.subject, "data": dict(self.data), "text": str(self)}


@dataclass(frozen=True, slots=True)
class Alternative(Generic[Choice]):
    """Something that was considered: its cost (unit-suffixed keys) and why it was not chosen."""

    name: str
    cost: Mapping[str, float]
    reasons: tuple[Reason, ...] = ()
    choice: Choice | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        reasons = [reason.to_dict() for reason in self.reasons]
        return {"name": self.name, "cost": dict(self.cost), "reasons": reasons}


@dataclass(frozen=True, slots=True)
class Decision(Generic[Choice]):
    """A scheduler's answer. `choice` is None when nothing fits; `reasons` then name the smallest relaxation.

    omitted: how many more alternatives there are, where not all were asked for.
    """

    choice: Choice | None
    alternatives: tuple[Alternative[Choice], ...]
    reasons: tuple[Reason, ...]
    trust: Trust
    inputs_digest: str
    seed: int
    elapsed_s: float
    omitted: int = 0


UNHASHED: Final = "unhashed"
"""Metadata of a dataclass field that decides nothing, so that it is left out of `digest`."""


def digest(*inputs: Any) -> str:
    """Return a short hash of inputs, so that an answer can be matched to its question in another process.

    Reads what JSON can say, sets, dataclasses and numpy values. Raises TypeError for anything else: its text
    may hold an address or an order of this process.
    """
    text = json.dumps(inputs, sort_keys=True, default=_plain, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: getattr(value, item.name) for item in fields(value) if not item.metadata.get(UNHASHED)}
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no stable text to hash")
