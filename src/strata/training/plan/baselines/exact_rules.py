"""Baselines that plan exactly, with strata's own search, where their rule puts the job."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from strata.training.plan.baselines.context import (
    Context,
    Unfinished,
    best,
    best_of,
    evaluate,
    exact,
    exact_among,
)
from strata.training.plan.exact.alone import TOGETHER, SingleDomains
from strata.training.plan.exact.branches import CROSSING, LOTS
from strata.training.plan.exact.problem import POOL, Problem
from strata.training.plan.exact.result import Evaluated, SearchResult
from strata.training.plan.exact.search import Search
from strata.training.plan.exact.speed import speeds


def single_domain(problem: Problem, context: Context) -> Evaluated | None:
    """Every domain alone, the best of them: what a cluster scheduler per site would reach."""
    if context.alone:
        return context.alone[0]
    known = {key: item for key, item in context.known.by_set.items() if item.plan.kind == "single"}
    result, every = SearchResult(known), problem.representatives
    if context.is_best(best(result.ranked)):
        every = ()
    for first in range(0, len(every), TOGETHER):
        chains = SingleDomains(problem, every[first : first + TOGETHER])
        search = Search(problem, context.scales, (), clock=context.clock, deadline=context.deadline, chains=chains)
        result.merge(search.run(so_far=result))
        if result.stopped:
            raise Unfinished
    context.alone.append(best(result.ranked))
    return context.alone[0]


def ideal_domain(problem: Problem, context: Context) -> Evaluated | None:
    """As many GPUs in one ideal domain, of the kind that does best: what crossing domains and mixing kinds costs.

    A cross-domain plan "wins" against a single domain mostly by having more GPUs; this comparison has as many (a
    last node is filled up), of one kind of the fleet and behind that kind's network. It measures the gap; it is no
    place one can run, and no bound: on a fleet of several kinds a mixed plan may have more of what it needs. It is
    searched as a row of the table below the first.
    """
    kinds = {}
    for domain in sorted(problem.fleet.domains, key=lambda domain: -(domain.price_usd_per_device_hour or 0.0)):
        node = domain.devices_per_node
        devices = -(-context.num_devices // node) * node
        kind = replace(domain, name="ideal", region="", num_devices=devices)
        kinds[replace(kind, price_usd_per_device_hour=None)] = kind
    fleets = [replace(problem.fleet, domains=(kind,), links={}) for kind in kinds.values()]
    result: Evaluated | None = None
    # What is slower than the best of the fastest kind is not looked into.
    for ideal in sorted((Problem(fleet, problem.job, ()) for fleet in fleets), key=lambda each: -speeds(each)[0]):
        result = exact(ideal, context, (0,), so_far=result, is_rough=True) or result
    return result


def home_domain(problem: Problem, context: Context) -> Evaluated | None:
    """The domain where the job was submitted, as most jobs run today; the first usable one where it names none."""
    names = [domain.name for domain in problem.fleet.domains]
    if not names:
        return None
    home = problem.job.home or names[0]
    return exact_among(problem, context, (names.index(home),)) if home in names else None


def mast_like(problem: Problem, context: Context) -> Evaluated | None:
    """One region per job, by exhaustive search (MAST, OSDI'24: global placement, one region a job).

    A region is the domains that share a `region` label, or a domain alone. Inside the region strata plans exactly,
    which is more than MAST does: it has no step-time model (facts from the talk's abstract).
    """
    regions: dict[str, list[int]] = defaultdict(list)
    for index, domain in enumerate(problem.fleet.domains):
        regions[domain.region or domain.name].append(index)
    result = single_domain(problem, context)
    for members in regions.values():
        if len(members) > 1:
            result = exact_among(problem, context, members[:POOL], so_far=result) or result
    return result


def latency_blind(problem: Problem, context: Context) -> Evaluated | None:
    """Strata's own search told that every link has no latency, then run with the real one.

    Strata's own plan is known to it: what is not better by half a per cent without latency is not looked into, nor
    are single domains where that plan is proved.
    """
    blind_links = {pair: replace(link, latency_s=0.0) for pair, link in problem.fleet.links.items()}
    blind = problem.relinked(replace(problem.fleet, links=blind_links))
    members, known = range(min(len(problem.fleet.domains), POOL)), best([])
    if (own := context.plan) is not None and all(problem.fleet.index(name) in members for name in own.domains):
        known = best(evaluate(blind, context, [own]))
    is_proved = known is not None and any(context.is_best(i) for i in context.known.ranked if i.plan == own)
    lots = CROSSING if is_proved else LOTS
    chosen = exact(blind, context, members, so_far=known, lots=lots, is_rough=True) or known
    return best_of(problem, context, [chosen.plan]) if chosen is not None else None
