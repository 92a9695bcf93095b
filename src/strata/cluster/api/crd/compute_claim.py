"""ComputeClaim: what a job asks for and what was decided, as an object of the API server.

Its spec says the same as the annotations of `annotations.py`, whose reader is the one place with the rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from strata.cluster.api import placement_annotation as placed
from strata.cluster.api.actions import pascal
from strata.cluster.api.annotations import OTHERS, PREFIX, read_claim
from strata.cluster.api.crd.claim_schema import ComputeClaim
from strata.cluster.api.crd.document import ObjectDocument
from strata.cluster.api.crd.fields import LONGEST_MESSAGE, MOST_NODES, camel
from strata.cluster.api.kinds import Object, name_of, namespace_of
from strata.cluster.scheduling.claim import Claim
from strata.cluster.scheduling.snapshot import Placement
from strata.decision import Decision
from strata.errors import BadFile, Fault

ROUTED: Final = "Routed"
"""The condition: True once the whole gang has its places; else its reason says what it waits for."""

_NUMBERS: Final = ("acu", "tflops-fp16", "cores")
_COUNTS: Final = ("devices", "gang-size", "priority")
_OURS: Final = re.compile(re.escape(PREFIX) + "([a-z0-9-]+)")
_MOST_REASONS: Final = 64


def claim_of(obj: Object) -> Claim:
    """Return what an object's spec asks for. Raises BadFile with every fault, by `spec.field`."""
    document = ObjectDocument(obj)
    spec = document.check(ComputeClaim).spec
    annotations = {
        PREFIX + name.replace("_", "-"): _word(value) for name, value in spec.model_dump(exclude_none=True).items()
    }
    try:
        return read_claim(annotations, name=name_of(obj), namespace=namespace_of(obj) or "default")
    except BadFile as error:
        faults = [
            Fault(document.path, _renamed(fault.message), where=_renamed(fault.where)) for fault in error.faults
        ]
        raise BadFile(faults, hint=None if error.hint is None else _renamed(error.hint)) from None


def spec_of(annotations: Mapping[str, str]) -> dict[str, Any]:
    """Return annotations that `read_claim` could read as a spec, of which `claim_of` then reads the same claim."""
    words = {
        key.removeprefix(PREFIX): value.strip() for key, value in annotations.items() if key.startswith(PREFIX)
    }
    if "tflops-fp16" in words:
        words.pop("acu", None)  # both may be given where they agree; a spec has one
    return {camel(key): _value(key, word) for key, word in sorted(words.items()) if key not in OTHERS}


def claim_status(
    decision: Decision[Any],
    previous: Mapping[str, Any] | None,
    *,
    now: str,
    generation: int,
    condition: str = ROUTED,
) -> dict[str, Any]:
    """Return a claim's status after a decision: the condition, the places, and why every other node was not taken.

    condition: which one the decision is about; ROUTED has a Placement.

    previous: the status so far; conditions of others stay, and the time of ours where it says the same as before.
    now: RFC 3339. generation: of the claim that was decided on. The same decision gives the same status.
    """
    before = (previous or {}).get("conditions") or ()
    others = [dict(other) for other in before if other.get("type") != condition]
    others_reasons = [
        (alternative.name, reason)
        for alternative in decision.alternatives
        if alternative.choice is None
        for reason in alternative.reasons
    ]
    verdicts = [
        {
            "node": name,
            "reason": reason.token,
            "message": str(reason).removeprefix(f"{name}: ")[:LONGEST_MESSAGE],
        }
        for name, reason in others_reasons[:MOST_NODES]
    ]
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": [*others, _condition(condition, decision, before, now=now, generation=generation)],
        "decision": {
            "reasons": [
                {
                    "token": reason.token,
                    "subject": reason.subject,
                    "message": str(reason)[:LONGEST_MESSAGE],
                }
                for reason in decision.reasons[:_MOST_REASONS]
            ],
            "trust": decision.trust.value,
            "inputsDigest": decision.inputs_digest,
        },
        "nodes": verdicts,
    }
    if moves := [move for reason in decision.reasons for move in reason.data.get("moves", ())]:
        status["decision"]["moves"] = moves
    left = {name for name, _ in others_reasons[MOST_NODES:]} - {verdict["node"] for verdict in verdicts}
    if len(others_reasons) > MOST_NODES or decision.omitted:
        status["nodesOmitted"] = len(left) + decision.omitted
    if isinstance(placement := decision.choice, Placement):
        status |= {
            "profile": placement.profile,
            "model": placement.model,
            "devices": placement.devices_per_pod * len(placement.pods),
            "placement": placed.encode(placement),
        }
    return status


def _condition(
    kind: str, decision: Decision[Any], before: Sequence[Mapping[str, Any]], *, now: str, generation: int
) -> dict[str, Any]:
    status = "False" if decision.choice is None else "True"
    same = (each for each in before if each.get("type") == kind and each.get("status") == status)
    since = next(same, {}).get("lastTransitionTime") or now
    return {
        "type": kind,
        "status": status,
        "reason": pascal(decision.reasons[0].token),
        "message": "; ".join(map(str, decision.reasons))[:LONGEST_MESSAGE],
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # Without an exponent, which no annotation has.
    return np.format_float_positional(value, trim="-") if isinstance(value, float) else str(value)


def _value(key: str, word: str) -> str | float | bool:
    if key in _NUMBERS:
        return float(word.removesuffix("%"))
    if key in _COUNTS:
        return int(word)
    return word == "true" if key == "fractional" else word


def _renamed(text: str) -> str:
    return _OURS.sub(lambda match: "spec." + camel(match[1]), text)
