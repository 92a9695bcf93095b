"""The user's own plan as people read it: its figures, all that is wrong with it, how far it is from the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strata.tables import Line, Shown


def show_given(given: dict[str, Any]) -> Shown:
    """Print what is wrong with a given plan, and its distance from the best."""
    faults, notes = given["faults"], given["notes"]
    count = "nothing is wrong with it" if not faults else f"{len(faults)} faults" if len(faults) > 1 else "a fault"
    yield f"given: {given['source']} ({given['name']}): {count}"
    yield from _listed(faults)
    yield from _listed(notes)
    if given["ratio"] is not None:
        yield f"  {_distance(given)}"
        yield from _listed([reason for reason in given["plan"]["reasons"] if reason["token"] != "slower"])


def _listed(reasons: Sequence[dict[str, Any]]) -> Shown:
    """Print reasons, those of one kind together: the first of them, and how many are like it."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for reason in reasons:
        kinds.setdefault(reason["token"], []).append(reason)
    for token, alike in kinds.items():
        more = f" (and {len(alike) - 1} more like it)" if len(alike) > 1 else ""
        yield Line(f"{token}: {alike[0]['text']}{more}", indent="  ", hang="    ")


def _distance(given: dict[str, Any]) -> str:
    ratio, of_bound = given["ratio"], given["bound_ratio"]
    distance = f"{ratio:.2f}x the step time of plan 1"
    if ratio < 1:
        outside = " than the bound, which is for the plans that are searched" if (of_bound or 1) < 1 else ""
        return f"{distance}: it is faster{outside}"
    is_known = of_bound is None or of_bound < 1.01 * ratio
    return distance if is_known else f"{distance}, and at most {of_bound:.2f}x that of any plan"
