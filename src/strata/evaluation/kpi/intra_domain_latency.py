"""Row `intra_domain_latency_s`: wall time of a whole decision inside a domain, and what such decisions keep.

A decision is everything from the state of the devices to their binding: candidates, features, network, guard.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from strata.decision import Trust
from strata.evaluation.kpi.domain_states import advance, random_state
from strata.evaluation.kpi.instances import SITES_SEED, Series
from strata.evaluation.kpi.kpi import Kpi, ends
from strata.evaluation.kpi.straggling import compare, history
from strata.evaluation.kpi.study import Study
from strata.simulate.analytic import StepModel
from strata.stats import quantile_interval
from strata.training.hi_ppo.assignment import AssignmentCosts, assignments
from strata.training.hi_ppo.local_agent import LocalCase, decide
from strata.training.replan import rules

TARGET_S: Final = 0.1
SITES: Final = tuple(Series(SITES_SEED + 10_000 * n, (2, 3), devices=size, full=12, quick=1)
                     for n, size in enumerate((32, 128, 512)))  # fmt: skip
MOMENTS: Final = {True: 20, False: 60}
KEPT_MOMENTS: Final = {True: 48, False: 200}


def measure(study: Study) -> Kpi:
    """Return the row; its value is the 99th percentile over all sites and moments."""
    taken: dict[int, list[float]] = defaultdict(list)
    kept: dict[str, list[float]] = defaultdict(list)
    parts = [(series.devices, part, seed) for series in SITES for part, seed in _parts(study, series)]
    for done, (_, part, seed) in enumerate(parts, 1):
        rng = np.random.default_rng(seed)
        domain_state, current = random_state(part.domain, rng), None
        for _ in range(MOMENTS[study.quick]):
            started = study.clock()
            answer = decide([LocalCase(part, domain_state, current)], study.policy.choose)[0]
            taken[part.domain.num_devices].append(study.clock() - started)
            domain_state, current = advance(domain_state, rng), answer.binding
        if part.domain.num_devices <= 64:
            domain_states = history(random_state(part.domain, rng), rng, steps=KEPT_MOMENTS[study.quick])
            ways = {"hi_ppo": study.policy.choose, "fixed_rule": rules.hysteresis(), "keep": rules.keep}
            for name, run in compare(part, domain_states, ways).items():
                kept[name].append(run.throughput)
        study.advance(done / len(parts))
    every = [seconds for values in taken.values() for seconds in values]
    return Kpi(
        name="intra_domain_latency_s",
        definition="99th percentile of the wall time of a whole decision inside a domain of 8 to 512 devices with "
        "stragglers, lost and taken devices: candidates, features, network, guard; one thread",
        baseline="none: a bound; what the decisions keep of the throughput stands beside the fixed rule",
        value=float(np.quantile(every, 0.99)) if every else None,
        target=TARGET_S,
        sense="below",
        ci95=ends(quantile_interval(every, 0.99)) if every else (None, None),
        instances=len(every),
        guards=_guards(taken, kept),
        trust=Trust.MEASURED,
    )


def _parts(study: Study, series: Series) -> list[tuple[AssignmentCosts, int]]:
    """Return the part of the fastest single domain of each instance that has one, and its seed."""
    parts = []
    for instance in series.draw(quick=study.quick):
        problem = instance.problem()
        item = study.decide(problem)
        if item is None:
            continue
        model = StepModel(instance.fleet, instance.job)
        parts += [
            (AssignmentCosts(model, part), instance.seed) for part in list(assignments(item.plan).values())[:1]
        ]
    return parts


def _guards(taken: dict[int, list[float]], kept: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "by_devices": {
            str(size): {
                "p50_s": float(np.quantile(values, 0.5)),
                "p99_s": float(np.quantile(values, 0.99)),
                "most_s": max(values),
                "decisions": len(values),
            }
            for size, values in sorted(taken.items())
        },
        "throughput_kept": {name: float(np.mean(values)) for name, values in kept.items()},
    }
