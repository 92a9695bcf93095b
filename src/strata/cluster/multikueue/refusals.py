"""What worker clusters refused, in a condition of the Workload they did not take: who leads next reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from strata.cluster.api.kinds import Object, conditions_of, moment
from strata.cluster.multikueue.nomination import OfferRefusal

REFUSED: Final = "ai.compute/Refused"
"""The condition: a line for each cluster."""
_MOST: Final = 20
_LONGEST_WHY: Final = 200
_LINE: Final = re.compile(
    r"(?P<cluster>[a-z0-9.-]{1,253}): (?P<times>[0-9]{1,3})x, (?P<devices>[0-9]{1,6}) devices, "
    r"until (?P<until>[0-9TZ:-]{20}): (?P<why>.{1,200})"
)


def refusals_of(workload: Object) -> dict[str, OfferRefusal]:
    """Return what a workload says refused it, by cluster; what nobody of ours wrote so is passed over."""
    condition = next((each for each in conditions_of(workload) if each.get("type") == REFUSED), {})
    refusals: dict[str, OfferRefusal] = {}
    for line in str(condition.get("message") or "").splitlines()[:_MOST]:
        if match := _LINE.fullmatch(line):
            with suppress(ValueError):  # no such date
                until_s = datetime.fromisoformat(match["until"]).timestamp()
                refusal = OfferRefusal(int(match["devices"]), match["why"], until_s, int(match["times"]))
                refusals[match["cluster"]] = refusal
    return refusals


def condition_of(refusals: Mapping[str, OfferRefusal], *, stamp: str) -> dict[str, Any]:
    """Return the condition that says them, the newest last."""
    lines = [
        f"{cluster}: {refusal.times}x, {refusal.devices} devices, until {moment(refusal.until_s)}: "
        + (" ".join(refusal.why.split())[:_LONGEST_WHY] or "it does not say why")
        for cluster, refusal in sorted(refusals.items(), key=lambda item: (item[1].until_s, item[0]))
    ]
    return {
        "type": REFUSED,
        "status": "True",
        "reason": "ClusterRefused",
        "message": "\n".join(lines[-_MOST:]),
        "lastTransitionTime": stamp,
    }
