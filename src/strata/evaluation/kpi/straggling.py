"""How much throughput a domain keeps while its devices slow down and fail: rules against bounds, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strata.training.hi_ppo.assignment import Part
from strata.training.hi_ppo.binding import Binding, holds, pace, paces, planned_binding
from strata.training.hi_ppo.candidates import candidates
from strata.training.hi_ppo.local_agent import Case, decide
from strata.training.hi_ppo.site import Site, advance, nominal_site
from strata.training.replan.rules import Rule, keep

_NOTHING = "nothing"
_ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Kept:
    """One episode of one rule.

    throughput: mean step rate over the planned one, what changes cost taken off. changes: bindings taken that
    stand still. stranded: intervals in which the domain could not hold its part; they earn nothing.
    """

    throughput: float
    changes: int
    stranded: int


def history(site: Site, rng: np.random.Generator, *, steps: int) -> list[Site]:
    """Return `steps` moments of a site, the given one first."""
    found = [site]
    while len(found) < steps:
        found.append(advance(found[-1], rng))
    return found


def compare(part: Part, sites: Sequence[Site], rules: Mapping[str, Rule]) -> dict[str, Kept]:
    """Return what each rule keeps on the same moments, between doing `nothing` and the `oracle`.

    All start from the binding that is best in the first moment. Nothing: that binding for ever, waiting where a
    device of it is lost. The oracle takes the fastest candidate of every moment and pays nothing. What is earned
    is by the exact recurrence, whatever was decided on.
    """
    first = decide([Case(part, sites[0])], keep)[0].binding
    start = planned_binding(part.assignment) if first is None else first
    planned_s = pace(part, nominal_site(part.domain), planned_binding(part.assignment), is_exact=True).step_s
    ways: dict[str, Callable[[Site, Binding], tuple[Binding | None, float]]] = {
        _NOTHING: lambda _, current: (current, 0.0),
        **{name: _by_rule(part, rule) for name, rule in rules.items()},
        _ORACLE: lambda site, current: (_fastest(part, site, current), 0.0),
    }
    return {name: _episode(part, sites, start, way, planned_s) for name, way in ways.items()}


def _by_rule(part: Part, rule: Rule) -> Callable[[Site, Binding], tuple[Binding | None, float]]:
    def way(site: Site, current: Binding) -> tuple[Binding | None, float]:
        answer = decide([Case(part, site, current)], rule)[0]
        return answer.binding, answer.downtime_s

    return way


def _fastest(part: Part, site: Site, current: Binding) -> Binding | None:
    menu = [item.binding for item in candidates(part, site, current) if item.is_legal]
    return menu[int(np.argmin([one.step_s for one in paces(part, site, menu)]))] if menu else None


def _episode(
    part: Part,
    sites: Sequence[Site],
    current: Binding,
    way: Callable[[Site, Binding], tuple[Binding | None, float]],
    planned_s: float,
) -> Kept:
    earned, changes, stranded = 0.0, 0, 0
    last: Site | None = None
    rate = 0.0
    for site in sites:
        # Decisions depend on the snapshot and the binding alone: nothing new is decided where neither changed.
        if last is not None and _is_same(last, site):
            earned, stranded = earned + rate, stranded + (rate == 0)
            continue
        taken, downtime_s = way(site, current)
        if taken is None or not holds(part, site, taken):
            rate, last, stranded = 0.0, site, stranded + 1
            continue
        last = site if taken.same_as(current) else None
        current = taken
        rate = planned_s / pace(part, site, current, is_exact=True).step_s
        changes += downtime_s > 0
        earned += rate * (1 - downtime_s / site.interval_s)
    return Kept(earned / len(sites), changes, stranded)


def _is_same(one: Site, other: Site) -> bool:
    return np.array_equal(one.health, other.health) and np.array_equal(one.load, other.load)
