"""Two answers to two like questions, side by side: what moved between the plans, and why, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from strata.decision import Reason
from strata.training.plan import explain
from strata.training.plan.exact.search import Evaluated
from strata.training.plan.report import TrainingPlanReport
from strata.units import show_time, show_usd
from strata.workload.job import Objective
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class DomainWork:
    """What a plan gives one domain: distinct layers, devices, and its share of all layers of all samples."""

    num_layers: int
    num_devices: int
    share: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What moved from the old answer's plan to the new one's; ratios are new / old, None where a side has none.

    domains: (old, new) work of every domain that either plan uses, in fleet order; None where it is not used.
    appeared, gone: reasons of one decision only, told apart by token and subject.
    """

    kind: tuple[str | None, str | None]
    same_plan: bool
    domains: Mapping[str, tuple[DomainWork | None, DomainWork | None]]
    step_time_s_ratio: float | None
    tokens_per_s_ratio: float | None
    utilization_difference: float | None
    wan_bytes_per_step_difference: float | None
    cost_usd_per_mtoken_ratio: float | None
    appeared: tuple[Reason, ...]
    gone: tuple[Reason, ...]
    text: str

    @property
    def domains_added(self) -> list[str]:
        """Domains that only the new plan uses."""
        return [name for name, (old, _) in self.domains.items() if old is None]

    @property
    def domains_removed(self) -> list[str]:
        """Domains that only the old plan uses."""
        return [name for name, (_, new) in self.domains.items() if new is None]

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form, without the sentence."""
        return {
            "step_time_s_ratio": self.step_time_s_ratio,
            "tokens_per_s_ratio": self.tokens_per_s_ratio,
            "utilization_difference": self.utilization_difference,
            "wan_bytes_per_step_difference": self.wan_bytes_per_step_difference,
            "cost_usd_per_mtoken_ratio": self.cost_usd_per_mtoken_ratio,
            "same_plan": self.same_plan,
            "kind": {"old": self.kind[0], "new": self.kind[1]},
            "domains_added": self.domains_added,
            "domains_removed": self.domains_removed,
            "domains": {
                name: {"old": asdict(old) if old else None, "new": asdict(new) if new else None}
                for name, (old, new) in self.domains.items()
            },
            "reasons_appeared": [reason.to_dict() for reason in self.appeared],
            "reasons_gone": [reason.to_dict() for reason in self.gone],
        }


def compare(old: TrainingPlanReport, new: TrainingPlanReport) -> Comparison:
    """Compare the chosen plans of two answers; a side may have none."""
    before, after = old.best, new.best
    both = (before.report, after.report) if before is not None and after is not None else None
    works = work(before), work(after)
    names = [d.name for answer in (old, new) for d in answer.problem.fleet.domains]
    used = [name for name in dict.fromkeys(names) if name in works[0] or name in works[1]]
    domains = {name: (works[0].get(name), works[1].get(name)) for name in used}
    reasons = _reasons(old), _reasons(new)
    return Comparison(
        kind=(before.plan.kind if before else None, after.plan.kind if after else None),
        same_plan=before is not None and old.decision.choice == new.decision.choice,
        domains=domains,
        step_time_s_ratio=_ratio(both[0].step_time_s, both[1].step_time_s) if both else None,
        tokens_per_s_ratio=_ratio(both[0].tokens_per_s, both[1].tokens_per_s) if both else None,
        utilization_difference=both[1].utilization - both[0].utilization if both else None,
        wan_bytes_per_step_difference=both[1].wan_bytes_per_step - both[0].wan_bytes_per_step if both else None,
        cost_usd_per_mtoken_ratio=(
            _ratio(both[0].cost_usd_per_mtoken, both[1].cost_usd_per_mtoken) if both else None
        ),
        appeared=tuple(reason for key, reason in reasons[1].items() if key not in reasons[0]),
        gone=tuple(reason for key, reason in reasons[0].items() if key not in reasons[1]),
        text=_text(old, new, domains),
    )


def _reasons(answer: TrainingPlanReport) -> dict[tuple[str, str], Reason]:
    """Return the reasons by what tells them apart; that a plan was chosen is the same, whichever it is."""
    reasons = answer.decision.reasons
    return {(r.token, "" if r.token == "chosen" else r.subject): r for r in reasons}


def _ratio(old: float | None, new: float | None) -> float | None:
    return new / old if old and new is not None else None


def work(item: Evaluated | None) -> dict[str, DomainWork]:
    """Return what a plan gives each domain it uses; nothing without a plan."""
    if item is None:
        return {}
    plan, devices = item.plan, item.plan.devices()
    layers: dict[str, set[int]] = {}
    done: dict[str, int] = {}
    for pipeline in plan.pipelines:
        samples = plan.samples(pipeline)
        for stage in pipeline.stages:
            held = range(stage.first_layer, stage.first_layer + stage.num_layers)
            layers.setdefault(stage.domain, set()).update(held)
            done[stage.domain] = done.get(stage.domain, 0) + samples * stage.num_layers
    total = sum(done.values())
    return {name: DomainWork(len(layers[name]), devices[name], done[name] / total) for name in done}


def _text(
    old: TrainingPlanReport,
    new: TrainingPlanReport,
    domains: Mapping[str, tuple[DomainWork | None, DomainWork | None]],
) -> str:
    """Return the one sentence for people."""
    before, after = old.best, new.best
    if after is None:
        why = f": {new.decision.reasons[-1]}" if new.decision.reasons else ""
        return f"No plan fits{' any more' if before is not None else ', as before'}{why}."
    if before is None:
        return f"A plan fits now: {explain.name(after.plan)}, a step of {show_time(after.report.step_time_s)}."
    joined = [name for name, (was, _) in domains.items() if was is None]
    left = [name for name, (_, now) in domains.items() if now is None]
    moves = [f"{', '.join(names)} {verb}{'s' if len(names) == 1 else ''}"
             for names, verb in ((left, "leave"), (joined, "join")) if names]  # fmt: skip
    moved = " and ".join(moves) or _rearranged(before.plan, after.plan)
    objective = new.problem.job.objective
    why_left = _why_left(new, after, left, objective)
    return f"{moved}: {_pace(before, after, objective)}{f'; {why_left}' if why_left else ''}."


def _rearranged(old: TrainingPlan, new: TrainingPlan) -> str:
    if old == new:
        return "The plan stays as it is"
    if old.kind != new.kind:
        return f"The same domains, {new.kind} instead of {old.kind}"
    return "The same domains, arranged differently"


def _pace(before: Evaluated, after: Evaluated, objective: Objective) -> str:
    was, now = before.report.step_time_s, after.report.step_time_s
    text = f"a step takes {show_time(now)}"
    text += (
        ", as before" if show_time(was) == show_time(now) else f" instead of {show_time(was)} ({now / was:.2f}x)"
    )
    cost, price = before.report.cost_usd_per_mtoken, after.report.cost_usd_per_mtoken
    if objective is Objective.COST and cost is not None and price is not None:
        text += f" and a million tokens cost {show_usd(price)} instead of {show_usd(cost)}"
    return text


def _why_left(new: TrainingPlanReport, best: Evaluated, left: list[str], objective: Objective) -> str:
    """Return what the best plan that still has a domain that left would pay, as far as it was evaluated."""
    if objective not in (Objective.TIME, Objective.COST):
        return ""  # a score has no unit to say it in
    for item in new.plans:
        with_left = [name for name in left if name in item.plan.domains]
        if with_left and not set(best.plan.domains).isdisjoint(item.plan.domains):
            if objective is Objective.COST:
                return f"with {', '.join(with_left)} it would cost {item.score / best.score:.2f}x that"
            link = explain.slowest_link(new.problem, item)
            why = f" ({link})" if link else ""
            return f"with {', '.join(with_left)} it would take {item.score / best.score:.2f}x that{why}"
    return ""
