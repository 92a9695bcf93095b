"""How much throughput a domain keeps while its devices slow down and fail: rules against bounds, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strata.evaluation.kpi.domain_states import advance
from strata.training.hi_ppo.assignment import AssignmentCosts
from strata.training.hi_ppo.binding import Binding, holds, pace, paces, planned_binding
from strata.training.hi_ppo.candidates import candidates
from strata.training.hi_ppo.domain_state import DomainState, nominal_state
from strata.training.hi_ppo.local_agent import LocalCase, decide
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


def history(domain_state: DomainState, rng: np.random.Generator, *, steps: int) -> list[DomainState]:
    """Return `steps` moments of a site, the given one first."""
    states = [domain_state]
    while len(states) < steps:
        states.append(advance(states[-1], rng))
    return states


def compare(
    part: AssignmentCosts, domain_states: Sequence[DomainState], rules: Mapping[str, Rule]
) -> dict[str, Kept]:
    """Return what each rule keeps on the same moments, between doing `nothing` and the `oracle`.

    All start from the binding that is best in the first moment. Nothing: that binding for ever, waiting where a
    device of it is lost. The oracle takes the fastest candidate of every moment and pays nothing. What is earned
    is by the exact recurrence, whatever was decided on.
    """
    first = decide([LocalCase(part, domain_states[0])], keep)[0].binding
    start = planned_binding(part.assignment) if first is None else first
    planned_s = pace(part, nominal_state(part.domain), planned_binding(part.assignment), is_exact=True).step_s
    ways: dict[str, Callable[[DomainState, Binding], tuple[Binding | None, float]]] = {
        _NOTHING: lambda _, current: (current, 0.0),
        **{name: _by_rule(part, rule) for name, rule in rules.items()},
        _ORACLE: lambda domain_state, current: (_fastest(part, domain_state, current), 0.0),
    }
    return {name: _episode(part, domain_states, start, way, planned_s) for name, way in ways.items()}


def _by_rule(part: AssignmentCosts, rule: Rule) -> Callable[[DomainState, Binding], tuple[Binding | None, float]]:
    def way(domain_state: DomainState, current: Binding) -> tuple[Binding | None, float]:
        answer = decide([LocalCase(part, domain_state, current)], rule)[0]
        return answer.binding, answer.downtime_s

    return way


def _fastest(part: AssignmentCosts, domain_state: DomainState, current: Binding) -> Binding | None:
    menu = [item.binding for item in candidates(part, domain_state, current) if item.is_legal]
    return (
        menu[int(np.argmin([candidate.step_s for candidate in paces(part, domain_state, menu)]))] if menu else None
    )


def _episode(
    part: AssignmentCosts,
    domain_states: Sequence[DomainState],
    current: Binding,
    way: Callable[[DomainState, Binding], tuple[Binding | None, float]],
    planned_s: float,
) -> Kept:
    earned, changes, stranded = 0.0, 0, 0
    last: DomainState | None = None
    rate = 0.0
    for domain_state in domain_states:
        # Decisions depend on the snapshot and the binding alone: nothing new is decided where neither changed.
        if last is not None and _is_same(last, domain_state):
            earned, stranded = earned + rate, stranded + (rate == 0)
            continue
        taken, downtime_s = way(domain_state, current)
        if taken is None or not holds(part, domain_state, taken):
            rate, last, stranded = 0.0, domain_state, stranded + 1
            continue
        last = domain_state if taken.same_as(current) else None
        current = taken
        rate = planned_s / pace(part, domain_state, current, is_exact=True).step_s
        changes += downtime_s > 0
        earned += rate * (1 - downtime_s / domain_state.interval_s)
    return Kept(earned / len(domain_states), changes, stranded)


def _is_same(state: DomainState, other: DomainState) -> bool:
    return np.array_equal(state.health, other.health) and np.array_equal(state.load, other.load)
