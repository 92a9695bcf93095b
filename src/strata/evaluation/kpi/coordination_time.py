"""Row `coordination_time_s`: wall time from an event to new decisions of both levels.

Events: a link that falls to a third, devices that are lost, a domain that vanishes, and the interval that is over.
Each wakes the inter-domain agent, which plans anew on what the domains deliver; then every domain binds again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, Final

import numpy as np

from strata.decision import Reason, Trust
from strata.evaluation.kpi.instances import COORDINATION, PlanningCase
from strata.evaluation.kpi.kpi import Kpi, ends
from strata.evaluation.kpi.study import Study
from strata.fleet.fleet import Fleet
from strata.stats import quantile_interval
from strata.training.hi_ppo import global_agent
from strata.training.hi_ppo.coordinator import Coordinator, SchedulingState
from strata.training.hi_ppo.domain_state import DomainState, nominal_state
from strata.training.plan.exact.problem import Problem
from strata.workload.plan import TrainingPlan

TARGET_S: Final = 2.0


def measure(study: Study) -> Kpi:
    """Return the row; its value is the 99th percentile over all events that wake both levels."""
    taken: dict[str, list[float]] = defaultdict(list)
    cpu_s: dict[str, list[float]] = defaultdict(list)
    woken: dict[str, list[bool]] = defaultdict(list)
    instances = COORDINATION.draw(quick=study.quick)
    for done, instance in enumerate(instances, 1):
        coordinator = Coordinator(_replan(study, instance), study.policy.choose)
        domain_states = {domain.name: nominal_state(domain) for domain in instance.fleet.domains}
        first = coordinator.respond(
            SchedulingState(), instance.job, fleet=instance.fleet, domain_states=domain_states, iteration=0
        )
        if first.state.plan is not None:
            for name, (fleet, after, iteration) in events(instance, domain_states, first.state).items():
                started, cpu_started = study.clock(), study.cpu_clock()
                response = coordinator.respond(
                    first.state, instance.job, fleet=fleet, domain_states=after, iteration=iteration
                )
                taken[name].append(study.clock() - started)
                cpu_s[name].append(study.cpu_clock() - cpu_started)
                woken[name].append(bool(response.woken))
        study.advance(done / len(instances))
    both = [s for name in taken for s, is_woken in zip(taken[name], woken[name], strict=True) if is_woken]
    return Kpi(
        name="coordination_time_s",
        definition="99th percentile of the wall time from an event (link to a third, devices lost, domain gone, "
        "interval over) to a new plan and new bindings in all its domains, fleets of 4 to 10 domains",
        baseline="none: a bound; straggling devices, answered inside the domain alone, stand beside",
        value=float(np.quantile(both, 0.99)) if both else None,
        target=TARGET_S,
        sense="at most",
        ci95=ends(quantile_interval(both, 0.99)) if both else (None, None),
        instances=len(both),
        guards={
            "by_event": {
                name: {
                    "p50_s": float(np.quantile(values, 0.5)),
                    "p99_s": float(np.quantile(values, 0.99)),
                    "cpu_p99_s": float(np.quantile(cpu_s[name], 0.99)),
                    "woke_the_inter_domain_agent": float(np.mean(woken[name])),
                    "events": len(values),
                }
                for name, values in taken.items()
            }
        },
        trust=Trust.MEASURED,
    )


def events(
    instance: PlanningCase, domain_states: dict[str, DomainState], state: SchedulingState
) -> dict[str, tuple[Fleet, dict[str, DomainState], int]]:
    """Return by name what is seen after each event: the fleet, the sites and the iteration."""
    fleet, plan = instance.fleet, state.plan
    assert plan is not None
    first = plan.domains[0]
    causes = {"interval_over": (fleet, domain_states, 1000)}
    if state.links:
        slow = [replace(fleet.links[p], bandwidth_bytes_per_s=fleet.links[p].bandwidth_bytes_per_s / 3)
                for p in state.links]  # fmt: skip
        causes["links_fall"] = (fleet.with_links(slow), domain_states, 10)
    half = domain_states[first].domain.num_devices // 2
    causes["devices_lost"] = (
        fleet,
        {**domain_states, first: _with_health(domain_states[first], half, worst=True)},
        10,
    )
    causes["one_straggler"] = (
        fleet,
        {**domain_states, first: _with_health(domain_states[first], 1, worst=False)},
        10,
    )
    rest = {name: domain_state for name, domain_state in domain_states.items() if name != first}
    causes["domain_gone"] = (fleet.only(rest), rest, 10)
    return causes


def _with_health(domain_state: DomainState, count: int, *, worst: bool) -> DomainState:
    health = domain_state.health.copy()
    health[:count] = len(domain_state.chain.factors) - 1 if worst else 1
    return replace(domain_state, health=health)


def _replan(study: Study, instance: PlanningCase) -> Any:
    """Return the inter-domain level as the coordinator calls it."""

    def replan(fleet: Fleet, current: TrainingPlan | None, _why: tuple[Reason, ...]) -> TrainingPlan | None:
        in_use = None if current is None else global_agent.InUse(current)
        best = global_agent.decide(
            Problem.of(fleet, instance.job), policy=study.policy, clock=study.clock, in_use=in_use
        ).best
        return None if best is None else best.plan

    return replan
