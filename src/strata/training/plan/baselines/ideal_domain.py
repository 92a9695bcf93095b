"""The same number of GPUs in one ideal domain: what crossing domains costs, with the GPU count taken out.

A cross-domain plan "wins" against a single domain mostly by having more GPUs; this comparison has as many, of
the largest domain's kind and behind its network. It is a bound to measure the gap by, not a place one can run.
"""

from __future__ import annotations

from dataclasses import replace

from strata.training.plan.baselines.context import Context, exact
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.search import Evaluated


def plan(problem: Problem, context: Context) -> Evaluated | None:
    """Return the exact plan for one domain with as many accelerators as strata's plan uses."""
    if not problem.fleet.domains:
        return None
    largest = max(problem.fleet.domains, key=lambda domain: domain.num_devices)
    node = largest.devices_per_node
    devices = max(node, context.num_devices // node * node)
    merged = replace(largest, name="ideal", num_devices=devices)
    alone = Problem(replace(problem.fleet, domains=(merged,), links={}), problem.job, ())
    return exact(alone, context, (0,))
