"""Two answers to two like questions, side by side: what moved between the plans, and why, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strata.fleet.comparison import Comparison, DomainWork, compared, ratio
from strata.training.plan import explain
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.report import TrainingPlanReport
from strata.units import show_time, show_usd
from strata.workload.job import Objective
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class DomainLayers(DomainWork):
    """What a plan gives one domain: how many distinct layers, too."""

    num_layers: int


def compare(old: TrainingPlanReport, new: TrainingPlanReport) -> Comparison:
    """Compare the chosen plans of two answers; a side may have none."""
    before, after = old.best, new.best
    works = work(before), work(after)
    moved = compared(
        works,
        (old.decision.reasons, new.decision.reasons),
        domains=(domain.name for answer in (old, new) for domain in answer.problem.fleet.domains),
        same_plan=before is not None and old.decision.choice == new.decision.choice,
        figures={**_figures(before, after), "kind": {"old": _kind(before), "new": _kind(after)}},
    )
    return replace(moved, text=_text(old, new, moved))


def _kind(item: Evaluated | None) -> str | None:
    return item.plan.kind if item is not None else None


def _figures(before: Evaluated | None, after: Evaluated | None) -> dict[str, float | None]:
    """Return how each figure moved, None where a side has none."""
    old, new = (item.report if item is not None else None for item in (before, after))
    figures: dict[str, float | None] = {}
    for name in ("step_time_s", "tokens_per_s", "cost_usd_per_mtoken"):
        figures[f"{name}_ratio"] = ratio(getattr(old, name, None), getattr(new, name, None))
    for name in ("utilization", "wan_bytes_per_step"):
        figures[f"{name}_difference"] = getattr(new, name) - getattr(old, name) if old and new else None
    return figures


def work(item: Evaluated | None) -> dict[str, DomainLayers]:
    """Return what a plan gives each domain it uses; nothing without a plan."""
    if item is None:
        return {}
    plan, devices = item.plan, item.plan.devices()
    layers: dict[str, set[int]] = {}
    done: dict[str, int] = {}
    for pipeline in plan.pipelines:
        samples = plan.samples(pipeline)
        for stage, chunks in zip(pipeline.stages, plan.held_layers(pipeline), strict=True):
            layers.setdefault(stage.domain, set()).update(*chunks)
            done[stage.domain] = done.get(stage.domain, 0) + samples * stage.num_layers
    total = sum(done.values())
    return {name: DomainLayers(devices[name], done[name] / total, len(layers[name])) for name in done}


def _text(old: TrainingPlanReport, new: TrainingPlanReport, moved: Comparison) -> str:
    """Return the one sentence for people."""
    before, after = old.best, new.best
    if after is None:
        news = [why for why in new.decision.reasons if before is None or why not in old.decision.reasons]
        why = f": {news[-1]}" if news else ""
        return f"No plan fits{' any more' if before is not None else ', as before'}{why}."
    if before is None:
        return f"A plan fits now: {explain.name(after.plan)}, a step of {show_time(after.report.step_time_s)}."
    objective = new.problem.job.objective
    why_left = _why_left(new, after, moved.domains_removed, objective)
    moves = moved.moves or _rearranged(before.plan, after.plan)
    return f"{moves}: {_pace(before, after, objective)}{f'; {why_left}' if why_left else ''}."


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
