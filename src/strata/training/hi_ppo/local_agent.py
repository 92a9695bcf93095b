"""The intra-domain agent: binds a domain's part of the plan to devices, again whenever a device changes.

A rule or a policy picks among the candidates; here they become Options, and what it picked a decision with its
reasons. A straggler or a lost device is answered without the global agent, unless `needs_global` says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Alternative, Reason
from strata.training.hi_ppo.assignment import AssignmentCosts
from strata.training.hi_ppo.binding import NOBODY, Binding, pace, paces, planned_binding
from strata.training.hi_ppo.candidates import RESTART_S, Candidate, candidates
from strata.training.hi_ppo.domain_state import DomainState, nominal_state
from strata.training.hi_ppo.guard import guard
from strata.training.hi_ppo.outlook import chances, expected
from strata.training.replan.options import HORIZONS, LINK_FEATURES, Options
from strata.training.replan.rules import Rule

_STEPS: Final = max(HORIZONS)


@dataclass(frozen=True, slots=True, eq=False)
class LocalCase:
    """One domain that asks: its part of the plan, its devices now, and the binding in use (None: none yet).

    restart_s: what any change of devices takes, the loading of weights aside. has_shares: whether copies may get
    unequal numbers of microbatches, which a plan cannot say.
    """

    part: AssignmentCosts
    domain_state: DomainState
    current: Binding | None = None
    restart_s: float = RESTART_S
    has_shares: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class LocalDecision:
    """What a local agent answers.

    binding: None where the domain cannot hold its part. throughput: step rate over that of the planned binding
    on good devices. downtime_s: standing still to get there. keeping_loses: what
    keeping would earn less than the choice over 8 intervals, its cost taken off, in intervals of planned
    throughput; inf where keeping is impossible, nan where there was nothing to keep.
    """

    binding: Binding | None
    name: str
    throughput: float
    downtime_s: float
    keeping_loses: float
    considered: tuple[Alternative[Binding], ...]
    reasons: tuple[Reason, ...]


def decide(cases: Sequence[LocalCase], choose: Rule) -> list[LocalDecision]:
    """Return a decision for each case. What `choose` picks passes the guard; it never sees a hopeless case."""
    menus = [_menu(case) for case in cases]
    open_cases = [i for i, menu in enumerate(menus) if any(candidate.is_legal for candidate in menu)]
    decisions = [_cannot_hold(case) for case in cases]
    if open_cases:
        options = local_options([cases[i] for i in open_cases], [menus[i] for i in open_cases])
        picks, refused = guard(options, choose(options))
        for row, i in enumerate(open_cases):
            decisions[i] = _decision(cases[i], menus[i], options, row, int(picks[row]), refused[row])
    return decisions


def _menu(case: LocalCase) -> tuple[Candidate, ...]:
    return candidates(
        case.part, case.domain_state, case.current, restart_s=case.restart_s, has_shares=case.has_shares
    )


def local_options(cases: Sequence[LocalCase], menus: Sequence[Sequence[Candidate]]) -> Options:
    """Return the options of B cases, padded to the longest menu.

    value: throughput over the planned one. cost: the intervals a switch stands still, times what the candidate
    earns now. links: of the devices used, least speed now and expected in 8 intervals, mean and least chance to
    be in the same state an interval later.
    """
    rows, count = len(cases), max(len(menu) for menu in menus)
    value, cost = np.zeros((rows, count, len(HORIZONS))), np.zeros((rows, count))
    links, legal = np.ones((rows, count, len(LINK_FEATURES))), np.zeros((rows, count), dtype=bool)
    for row, (case, menu) in enumerate(zip(cases, menus, strict=True)):
        planned_s = planned_step_s(case.part)
        features = _device_features(case.domain_state)
        now = paces(case.part, case.domain_state, [candidate.binding for candidate in menu])
        for column, candidate in enumerate(menu):
            value[row, column] = expected(case.domain_state, candidate.binding, now[column], planned_s=planned_s)
            cost[row, column] = candidate.downtime_s / case.domain_state.interval_s * value[row, column, 0]
            used = features[:, candidate.binding.used]
            links[row, column] = used[0].min(), used[1].min(), used[2].mean(), used[2].min()
            legal[row, column] = candidate.is_legal
    return Options(
        value=value,
        cost=cost,
        links=links,
        current=np.array([0 if case.current is not None else -1 for case in cases]),
        legal=legal,
        preference=np.tile((1.0, 0.0, 0.0), (rows, 1)),
        inside=True,
    )


def planned_step_s(part: AssignmentCosts) -> float:
    """Return the step time of the planned binding on good, free devices."""
    return pace(part, nominal_state(part.domain), planned_binding(part.assignment)).step_s


def needs_global(decision: LocalDecision, *, since: float, most_fall: float) -> Reason | None:
    """Return why the global agent must act: the part is not held, or runs slower by more than a share.

    since: the domain's throughput when the global agent last decided. most_fall: the share it may lose.
    """
    if decision.binding is None:
        return decision.reasons[0]
    if decision.throughput < since * (1 - most_fall):
        data = {"kept": decision.throughput, "before": since, "share": most_fall}
        return Reason("throughput-fell", data=data)
    return None


def _device_features(domain_state: DomainState) -> Floats:
    """Return [3, D]: speed now, expected in 8 intervals, chance of the same state an interval later."""
    ahead = chances(domain_state.chain, domain_state.interval_s)
    later = (ahead[-1] @ np.asarray(domain_state.chain.factors))[domain_state.health] * (1 - domain_state.load)
    stay = np.diagonal(ahead[HORIZONS.index(1)])[domain_state.health]
    return np.stack([domain_state.speed, later, stay])


def _decision(
    case: LocalCase, menu: Sequence[Candidate], options: Options, row: int, pick: int, refused: Reason | None
) -> LocalDecision:
    chosen, values = menu[pick], options.value[row, : len(menu), 0]
    gain = options.summed_gain()[row, :, -2] - options.cost[row]  # over 8 intervals
    worth = gain[: len(menu)]
    considered = tuple(
        Alternative(
            candidate.name,
            {"throughput": float(values[i]), "downtime_s": candidate.downtime_s, "gain_over_8": float(worth[i])},
            () if candidate.is_legal else (_device_gone(case),),
            candidate.binding,
        )
        for i, candidate in enumerate(menu)
    )
    can_keep, had_one = menu[0].is_legal, case.current is not None
    reason = Reason(
        "kept-binding" if pick == int(options.current[row]) else "rebound",
        case.domain_state.domain.name,
        {"name": chosen.name, "throughput": float(values[pick]), "downtime_s": chosen.downtime_s,
         "considered": len(menu)},
    )  # fmt: skip
    reasons = (reason,) if refused is None else (reason, refused)
    return LocalDecision(
        binding=chosen.binding,
        name=chosen.name,
        throughput=float(values[pick]),
        downtime_s=chosen.downtime_s,
        keeping_loses=np.nan if not had_one else float(worth[pick]) if can_keep else np.inf,
        considered=considered,
        reasons=reasons,
    )


def _device_gone(case: LocalCase) -> Reason:
    """Return which devices of the binding in use are lost, taken, or short of memory."""
    assert case.current is not None
    used, stage = case.current.used, np.nonzero(case.current.devices != NOBODY)[1]
    most = int(case.current.microbatches.max())
    need = case.part.need_bytes(case.current.degrees, len(case.current.devices), most)[stage]
    short = case.domain_state.free_memory_bytes[used] * case.part.memory_share < need
    gone = used[short | (case.domain_state.speed[used] == 0)]
    return Reason("device-gone", case.domain_state.domain.name, {"devices": ", ".join(map(str, gone.tolist()))})


def _cannot_hold(case: LocalCase) -> LocalDecision:
    assignment, domain_state = case.part.assignment, case.domain_state
    have = int((domain_state.speed > 0).sum())
    reason = Reason(
        "cannot-hold",
        domain_state.domain.name,
        {"have": have, "need": assignment.num_devices, "ranks": max(assignment.degrees)},
    )
    return LocalDecision(
        binding=None,
        name="none",
        throughput=0.0,
        downtime_s=0.0,
        keeping_loses=np.nan,
        considered=(),
        reasons=(reason,),
    )
