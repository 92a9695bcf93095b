"""The reasons there are: stable tokens, what each means and what one can do about it, one file a room.

The token is the same in tables, JSON, Kubernetes events, metric labels and docs/reasons.md, made from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from strata.bundled import bundled_table


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason token stands for: the sentence shown, what it means, and what one can do about it."""

    sentence: str
    means: str
    remedy: str = "No action is needed."


def _read(room: str) -> Mapping[str, Meaning]:
    return {token: Meaning(**entry) for token, entry in bundled_table("strata.reasons", f"{room}.toml").items()}


LAYERS_REFUSED: Final = _read("layers_refused")
LAYERS_ACCEPTED_WRONG: Final = _read("layers_accepted_wrong")
LAYERS_DOUBTFUL: Final = _read("layers_doubtful")
LAYERS_REMARKS: Final = _read("layers_remarks")

_ROOMS: Final = (
    *map(_read, ("plans", "serving", "training", "cluster")),
    LAYERS_REFUSED,
    LAYERS_ACCEPTED_WRONG,
    LAYERS_DOUBTFUL,
    LAYERS_REMARKS,
    *map(_read, ("host", "control")),
)

REASONS: Final[Mapping[str, Meaning]] = {token: meaning for room in _ROOMS for token, meaning in room.items()}
assert len(REASONS) == sum(map(len, _ROOMS)), "a token means one thing"
