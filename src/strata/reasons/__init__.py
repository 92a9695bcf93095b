"""The reasons there are: stable tokens, what each means and what one can do about it.

The token is the same in tables, JSON, Kubernetes events, metric labels and docs/reasons.md, made from here.
"""

from __future__ import annotations

from typing import Final

from strata.reasons.cluster import CLUSTER
from strata.reasons.control import CONTROL
from strata.reasons.host import HOST
from strata.reasons.layers import LAYERS
from strata.reasons.meaning import Meaning, Meanings
from strata.reasons.plans import PLANS
from strata.reasons.serving import SERVING
from strata.reasons.training import TRAINING

__all__ = ["REASONS", "Meaning"]

_ROOMS: Final = (PLANS, SERVING, TRAINING, CLUSTER, LAYERS, HOST, CONTROL)

REASONS: Final[Meanings] = {token: meaning for room in _ROOMS for token, meaning in room.items()}
assert len(REASONS) == sum(map(len, _ROOMS)), "a token means one thing"
