"""Row `network_degradation`: what +-30 % on the links costs one policy, and what an oracle would have kept."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Trust
from strata.evaluation.kpi.instances import NETWORK, at_crossover
from strata.evaluation.kpi.kpi import Kpi, ends, summary
from strata.evaluation.kpi.perturbed import DECISIONS, Arena, Perturbation, autoregressive, corners, independent
from strata.evaluation.kpi.study import Study
from strata.stats import mean_interval
from strata.training.replan import rules

TARGET: Final = 0.10
HALF_WIDTH: Final = 0.3
MEMORY: Final = 0.95
EPISODES: Final = 16
HEADLINE: Final = "independent_30"
INSIDE: Final = (HEADLINE, "ar1_30", "corners_30", "own_links_30_down")
CROSSOVER: Final = (0.5, 2.0)


def measure(study: Study) -> Kpi:
    """Return the row; its value is the mean over instances under the reference noise."""
    instances = NETWORK.draw(quick=study.quick)
    by_method: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    crosses: list[bool] = []
    for done, instance in enumerate(instances, 1):
        rng = np.random.default_rng(instance.seed)
        ratio = float(np.exp(rng.uniform(*np.log(CROSSOVER))))
        arena = Arena.of(study, at_crossover(instance, ratio).problem())
        study.advance(done / len(instances))
        if arena is None:
            continue
        crosses.append(len(arena.items[arena.start].plan.domains) > 1)
        for name, change in changes(arena, rng).items():
            for figure, value in _figures(study, arena, change).items():
                by_method[name][figure].append(value)
    headline = by_method[HEADLINE]["degradation"]
    return Kpi(
        name="network_degradation",
        definition="mean of 1 - J / J_nominal, J the steps a second of the same policy with switches taken off, "
        "every link's bandwidth drawn in +-30 % anew at each of 32 decisions",
        baseline="the same policy at nominal links",
        value=float(np.mean(headline)) if headline else None,
        target=TARGET,
        sense="below",
        ci95=ends(mean_interval(headline, rng=study.rng()) if len(headline) > 1 else None),
        instances=len(headline),
        guards=_guards(by_method, crosses),
        trust=Trust.ASSUMED,
    )


def changes(arena: Arena, rng: np.random.Generator) -> dict[str, Perturbation]:
    """Return the noises the table has: inside +-30 %, and far outside of it."""
    domains = len(arena.problem.fleet.domains)
    shape = (DECISIONS, EPISODES, max(1, domains * (domains - 1) // 2))
    loads = np.ones((DECISIONS, EPISODES, domains))

    def change(links: Floats, memory: float) -> Perturbation:
        return Perturbation(links, loads, memory)

    own = np.ones(shape)
    pairs = arena.response.pair[arena.start]
    own[..., pairs[pairs >= 0]] = 1 - HALF_WIDTH
    return {
        HEADLINE: change(independent(rng, shape, half_width=HALF_WIDTH), 0.0),
        "ar1_30": change(autoregressive(rng, shape, half_width=HALF_WIDTH, memory=MEMORY), MEMORY),
        "corners_30": change(corners(rng, shape, half_width=HALF_WIDTH), 1.0),
        "own_links_30_down": change(own, 1.0),
        "all_links_50_down": change(np.full(shape, 0.5), 1.0),
        "all_links_85_down": change(np.full(shape, 0.15), 1.0),
    }


def _figures(study: Study, arena: Arena, change: Perturbation) -> dict[str, float]:
    oracle = float((arena.nominal_s / arena.oracle_s(change)).mean())
    by_method = {}
    for name, choose in (
        ("", study.policy.choose),
        ("_kept_plan", rules.keep),
        ("_fixed_rule", rules.hysteresis()),
    ):
        earned = float(arena.run(choose, change).earned.mean())
        by_method[f"degradation{name}"] = 1 - earned
        by_method[f"regret{name}"] = 1 - earned / oracle
    return {**by_method, "degradation_oracle": 1 - oracle}


def _guards(by_method: dict[str, dict[str, list[float]]], crosses: list[bool]) -> dict[str, Any]:
    mask = np.array(crosses, dtype=bool)
    table: dict[str, Any] = {}
    for name, figures in by_method.items():
        table[name] = {figure: float(np.mean(values)) for figure, values in figures.items()}
        ours = np.array(figures["degradation"])
        table[name]["degradation_where_it_crosses"] = float(ours[mask].mean()) if mask.any() else None
        table[name]["spread"] = summary(ours)
    missed = [name for name in INSIDE if name in table and table[name]["degradation"] >= TARGET]
    return {
        "by_noise": table,
        "share_of_plans_over_several_domains": float(mask.mean()) if len(mask) else None,
        "crossover_of_instances": list(CROSSOVER),
        "passes_only_against": [name for name in INSIDE if name not in missed] if missed else [],
        "misses_against": missed,
    }
