"""Why a plan was chosen, why another was not, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from strata.decision import Reason
from strata.fleet.fleet import Link
from strata.simulate.report import StepReport
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated, SearchResult
from strata.training.plan.objective import Scales, money
from strata.units import show_bandwidth, show_time, show_usd
from strata.workload.job import Objective, TrainingJob
from strata.workload.plan import TrainingPlan

WORTH_SAYING: Final = 1.005
"""Less than this factor reads as 1.00x."""


def name(plan: TrainingPlan) -> str:
    """Return a short name: kind and domains in pipeline order, `>` across a pipeline, `|` between shards."""
    return f"{plan.kind} " + " | ".join(" > ".join(pipeline.domains) for pipeline in plan.pipelines)


def costs(item: Evaluated) -> dict[str, float]:
    """Return a plan's figures under stable, unit-suffixed keys."""
    return {
        "step_time_s": item.report.step_time_s,
        "utilization": item.report.utilization,
        "cost_usd_per_step": money(item.report),
        "score": item.score,
    }


def chosen(problem: Problem, best: Evaluated, search: SearchResult) -> Reason:
    """Return why the chosen plan was chosen."""
    considered = max(search.branches, search.evaluated)  # a first plan is there before branches are counted
    return Reason("chosen", name(best.plan), {"objective": str(problem.job.objective), "considered": considered})


def scale(job: TrainingJob, scales: Scales) -> list[Reason]:
    """Return that scores are measured against an estimate, where they are."""
    return [Reason("scale-estimated", "", {"objective": str(job.objective)})] if scales.is_estimate else []


def character(problem: Problem, best: Evaluated) -> list[Reason]:
    """Return what sets the pace of the chosen plan: computing, the network, or the bubble."""
    parts = problem.model.details([best.plan])[0].breakdown_s
    total = sum(parts.values())
    reasons = [
        Reason(token, "", {"share": parts[part] / total})
        for token, part, least in (
            ("compute-bound", "compute", 0.8), ("network-bound", "wan", 0.2), ("bubble-bound", "bubble", 0.2)
        )
        if parts[part] / total >= least
    ]  # fmt: skip
    if best.plan.local_steps > 1:
        from strata.simulate.collective import eta

        steps = best.plan.local_steps
        reasons.append(Reason("tokens-penalty", "", {"steps": steps, "eta": eta(steps)}))
    return reasons


def single_domain(job: TrainingJob, plans: Sequence[Evaluated], search: SearchResult) -> list[Reason]:
    """Return the finding that one domain alone is best, where it is, on the job's objective."""
    best = plans[0]
    across = [item for item in plans if item.plan.kind != "single"]
    if best.plan.kind != "single" or not across or across[0].score < best.score:
        return []
    data: dict[str, Any] = {"domain": best.plan.domains[0]}
    most, more = ("", "") if across[0].domain_set in search.closed else ("at most ", " or more")
    if job.objective in (Objective.TIME, Objective.COST):
        data["factor"] = factor = across[0].score / best.score
        data["comparison"] = f"{'takes' if job.objective is Objective.TIME else 'costs'} {most}{factor:.2f}x"
    else:  # scores have any sign, and no ratio that means something
        data["comparison"] = f"scores {-across[0].score:.4g}{more} against {-best.score:.4g} on {job.objective}"
    return [Reason("single-domain-best", "", data)]


def why_not(problem: Problem, item: Evaluated, best: Evaluated) -> tuple[Reason, ...]:
    """Return why an evaluated plan was not chosen, the wide-area link that costs most named."""
    factor_s = item.report.step_time_s / best.report.step_time_s
    reasons = []
    if factor_s >= WORTH_SAYING:
        reasons.append(Reason("slower", "", {"factor": factor_s}))
        link = slowest_link(problem, item)
        if link is not None:
            reasons.append(link)
    dearer = money(item.report) / money(best.report) if money(best.report) else 1.0
    if problem.job.objective is Objective.COST and dearer >= WORTH_SAYING:
        reasons.insert(0, Reason("dearer", "", {"factor": dearer}))
    if problem.job.objective not in (Objective.TIME, Objective.COST):
        data = {"score": -item.score, "best": -best.score, "objective": str(problem.job.objective)}
        reasons.insert(0, Reason("scores-lower", "", data))
    return tuple(reasons) or (Reason("as-good"),)


def slowest_link(problem: Problem, item: Evaluated) -> Reason | None:
    """Return the link that the plan's step waits for most, None where the WAN hardly matters."""
    parts = problem.model.details([item.plan])[0].breakdown_s
    if parts["wan"] < 0.05 * item.report.step_time_s:
        return None
    pairs = [
        pair
        for pipeline in item.plan.pipelines
        for pair in zip(pipeline.domains, pipeline.domains[1:], strict=False)
    ] or [(p.domains[0], q.domains[0]) for p in item.plan.pipelines for q in item.plan.pipelines if p is not q]
    links = [link for a, b in pairs for link in (problem.fleet.link(a, b), problem.fleet.link(b, a)) if link]
    if not links:
        return None
    message = problem.message_bytes(item.plan.microbatch_size)
    uplinks = {d.name: d.uplink_bytes_per_s or math.inf for d in problem.fleet.domains}

    def crossing_s(link: Link) -> float:
        return max(link.serialisation_s(message), message / min(uplinks[link.source], uplinks[link.dest]))

    worst = max(links, key=lambda link: crossing_s(link) + link.latency_s)
    site, bandwidth = min((worst.source, worst.dest), key=uplinks.__getitem__), worst.bandwidth_bytes_per_s
    is_site = uplinks[site] < bandwidth
    shown = f"{show_bandwidth(uplinks[site])} of the uplink of {site}" if is_site else show_bandwidth(bandwidth)
    return Reason(
        "link-too-slow", "",
        {
            "source": worst.source, "dest": worst.dest, "bandwidth": shown,
            "latency": show_time(worst.latency_s), "added": show_time(parts["wan"]),
            "step": show_time(item.report.step_time_s), "added_s": parts["wan"],
        },
    )  # fmt: skip


def limit_missed(job: TrainingJob, report: StepReport) -> tuple[Reason, ...]:
    """Return which of the job's limits a plan misses."""
    reasons, limits = [], job.limits
    if limits.cost_usd_per_step is not None and money(report) > limits.cost_usd_per_step:
        cost, limit = show_usd(money(report)), show_usd(limits.cost_usd_per_step)
        reasons.append(Reason("over-budget", "", {"cost": cost, "limit": limit}))
    if limits.tokens_per_s is not None and report.tokens_per_s < limits.tokens_per_s:
        data = {"reached": f"{report.tokens_per_s:,.0f}", "floor": f"{limits.tokens_per_s:,.0f}"}
        reasons.append(Reason("too-slow", "", data))
    return tuple(reasons)
