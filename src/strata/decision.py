"""What every scheduler answers with: a choice, what else was considered, and why.

A `Reason` is a stable token (`reasons`) with data and one sentence.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from string import Formatter
from typing import Any, Final, Generic, TypeVar

from strata.reasons import REASONS
from strata.tables import printable
from strata.units import show_count, show_time

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


class _Sentences(Formatter):
    """Has figures also as tables write them: `{rate:count}` and `{took_s:time}`; `.3g` made 2e+03 of 2000."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        show = {"count": show_count, "time": show_time}.get(format_spec)
        return show(value) if show else super().format_field(value, format_spec)


_SENTENCES: Final = _Sentences()


_VERBS: Final = {"are": "is", "have": "has", "were": "was"} | {
    verb: f"{verb}s" for verb in ("fit", "hold", "remain", "stay")
}
_COUNT: Final = re.compile(
    r"(?<!of )\{(\w+)(?::,)?\} (attempt|binding|byte|device|domain|event|group|job|layer|line|node|option|pair"
    rf"|pipeline|plan|pod|request|sample|sequence|step|thread|time|token)s\b(?: ({'|'.join(_VERBS)})\b)?"
)
"""What sentences count, and the verb behind it; of a part (`{free} of {total} devices`) many are counted."""


def _counted(sentence: str, data: Mapping[str, Any]) -> str:
    """Return a sentence of `REASONS` with what there is one of in the singular."""

    def alone(match: re.Match[str]) -> str:
        field_, noun, verb = match.groups()
        if str(data[field_]) != "1":
            return match[0]
        return f"1 {noun} {_VERBS[verb]}" if verb else f"1 {noun}"

    return _COUNT.sub(alone, sentence)


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
        counted = _counted(REASONS[self.token].sentence, self.data)
        sentence = printable(_SENTENCES.vformat(counted, (), self.data))
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
