"""When each level acts: the global agent rarely, the local ones at every event; what goes down and up.

Down go assignments, a domain's stages, copies and microbatches. Up goes capacity: what each domain delivers,
which the global agent sees as a fleet with fewer and slower devices. Nothing here reads a clock or draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise

from strata.decision import Reason
from strata.fleet.fleet import Fleet, Pair
from strata.simulate.analytic import StepModel
from strata.training.hi_ppo.assignment import AssignmentCosts, assignments
from strata.training.hi_ppo.binding import Binding
from strata.training.hi_ppo.capacity import Capacity, capacity, delivered
from strata.training.hi_ppo.domain_state import DomainState
from strata.training.hi_ppo.local_agent import LocalCase, LocalDecision, decide, needs_global
from strata.training.replan.rules import Rule
from strata.units import show_bandwidth
from strata.workload.job import TrainingJob
from strata.workload.plan import TrainingPlan

Replan = Callable[[Fleet, TrainingPlan | None, tuple[Reason, ...]], TrainingPlan | None]
"""The global level: the fleet as delivered, the plan in use (None: there is none, or it cannot go on) and why it
is asked; answers a plan of that fleet, or None where none fits."""


@dataclass(frozen=True, slots=True)
class SchedulingState:
    """What holds since the last decisions.

    iteration, links, throughput: when the last global decision was made, and what links in use and domains
    were like then.
    """

    plan: TrainingPlan | None = None
    bindings: Mapping[str, Binding] = field(default_factory=dict)
    iteration: int = 0
    links: Mapping[Pair, float] = field(default_factory=dict)
    throughput: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Response:
    """What holds from now on, the local decisions behind it, what went up, and why.

    woken: why the global agent was asked, empty where the local agents answered alone.
    """

    state: SchedulingState
    local: Mapping[str, LocalDecision]
    capacity: tuple[Capacity, ...]
    woken: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Asks the global level every `every` iterations and on drastic change, the local one always.

    link_change: relative change of a link in use since the last global decision that is drastic.
    most_fall: share of its throughput a domain may lose, after its local agent did what it could.
    """

    replan: Replan
    choose: Rule
    every: int = 100
    link_change: float = 0.3
    most_fall: float = 0.2

    def respond(
        self,
        state: SchedulingState,
        job: TrainingJob,
        *,
        fleet: Fleet,
        domain_states: Mapping[str, DomainState],
        iteration: int,
        queues: Mapping[str, int] | None = None,
    ) -> Response:
        """Answer one event. `fleet` holds nominal domains and links as they are now; a domain that is not in it,
        or has no site, has vanished.
        """
        here = fleet.only(domain_states)
        gone = tuple(_vanished(state.plan, here))
        local = {} if state.plan is None or gone else self._bind(state.plan, state, job, here, domain_states)
        woken = (*gone, *self._wakes(state, here, local, iteration, is_gone=bool(gone)))
        plan, waiting = state.plan, queues or {}
        if woken:
            plan, local = self._global(state, job, here, domain_states, local, woken)
        seen = tuple(
            capacity(
                domain_states[domain.name], local.get(domain.name), job=job, queue=waiting.get(domain.name, 0)
            )
            for domain in here.domains
        )
        bindings = {name: answer.binding for name, answer in local.items() if answer.binding is not None}
        if not woken:
            return Response(replace(state, bindings=bindings), local, seen, woken)
        after = SchedulingState(
            plan,
            bindings,
            iteration,
            {pair: _bandwidth(here, pair) for pair in _links_in_use(plan)},
            {name: answer.throughput for name, answer in local.items()},
        )
        return Response(after, local, seen, woken)

    def _bind(
        self,
        plan: TrainingPlan,
        state: SchedulingState,
        job: TrainingJob,
        fleet: Fleet,
        domain_states: Mapping[str, DomainState],
    ) -> dict[str, LocalDecision]:
        """Let every domain of a plan decide; a binding is carried over where the domain's part is the same."""
        model, assigned = StepModel(fleet, job), assignments(plan)
        before = assignments(state.plan) if state.plan is not None else {}
        cases = []
        for name, part in assigned.items():
            is_same = name in before and before[name].work == part.work
            current = state.bindings.get(name) if is_same else None
            cases.append(LocalCase(AssignmentCosts(model, part), domain_states[name], current))
        return dict(zip(assigned, decide(cases, self.choose), strict=True))

    def _wakes(
        self,
        state: SchedulingState,
        fleet: Fleet,
        local: Mapping[str, LocalDecision],
        iteration: int,
        *,
        is_gone: bool,
    ) -> Iterator[Reason]:
        if state.plan is None:
            yield Reason("no-plan-yet")
            return
        if is_gone:
            return
        if iteration - state.iteration >= self.every:
            yield Reason("interval-over", data={"iterations": iteration - state.iteration})
        for pair, then in state.links.items():
            now = _bandwidth(fleet, pair)
            if abs(now - then) > self.link_change * then:
                ends = {"source": pair[0], "dest": pair[1]}
                yield Reason(
                    "links-changed", data={**ends, "now": show_bandwidth(now), "then": show_bandwidth(then)}
                )
        for name, answer in local.items():
            since = state.throughput.get(name, 1.0)
            reason = needs_global(answer, since=since, most_fall=self.most_fall)
            if reason is not None:
                yield replace(reason, subject=name)

    def _global(
        self,
        state: SchedulingState,
        job: TrainingJob,
        fleet: Fleet,
        domain_states: Mapping[str, DomainState],
        local: Mapping[str, LocalDecision],
        woken: tuple[Reason, ...],
    ) -> tuple[TrainingPlan | None, dict[str, LocalDecision]]:
        """Ask for plans until one is found that every domain can hold; each refusal shrinks what is offered."""
        can_go_on = bool(local) and all(answer.binding is not None for answer in local.values())
        current = state.plan if can_go_on else None
        offered = {
            name: capacity(domain_state, local.get(name), job=job) for name, domain_state in domain_states.items()
        }
        while True:
            seen = delivered(fleet, offered)
            plan = self.replan(seen, current, woken)
            if plan is None or plan == current:
                # Where nothing better fits, what still runs goes on.
                return current, dict(local) if current is not None else {}
            assert {domain.name for domain in seen.domains}.issuperset(plan.domains), "a plan of what was offered"
            decisions = self._bind(plan, state, job, fleet, domain_states)
            refused = [name for name, answer in decisions.items() if answer.binding is None]
            if not refused:
                return plan, decisions
            parts = assignments(plan)
            for name in refused:
                less = capacity(domain_states[name], None, job=job, ranks=max(parts[name].degrees))
                # The same offer again would be refused again: the domain is left out.
                same = less.usable_devices >= offered[name].usable_devices
                offered[name] = replace(less, usable_devices=0) if same else less


def _vanished(plan: TrainingPlan | None, fleet: Fleet) -> Iterator[Reason]:
    known = {domain.name for domain in fleet.domains}
    for name in plan.domains if plan is not None else ():
        if name not in known:
            yield Reason("domain-vanished", name, {"domain": name})


def _links_in_use(plan: TrainingPlan | None) -> list[Pair]:
    """Return both directions of every pair of domains that exchange activations or gradients."""
    if plan is None:
        return []
    pairs = [pair for pipeline in plan.pipelines for pair in pairwise(pipeline.domains)]
    for former, other in combinations(plan.pipelines, 2):
        pairs += [(a, b) for a in former.domains for b in other.domains]
    return list(dict.fromkeys(way for a, b in pairs for way in ((a, b), (b, a))))


def _bandwidth(fleet: Fleet, pair: Pair) -> float:
    link = fleet.links.get(pair)
    return link.bandwidth_bytes_per_s if link is not None else 0.0
