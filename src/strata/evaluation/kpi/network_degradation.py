"""Row `network_degradation`: what +-30 % on the links costs a job in the control loop."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from strata.decision import Trust
from strata.evaluation.kpi.dynamics import DECISIONS, Change, Dynamics, corners, independent
from strata.evaluation.kpi.instances import NETWORK, PlanningCase, at_crossover
from strata.evaluation.kpi.kpi import Kpi, ends, summary
from strata.evaluation.kpi.study import Study
from strata.evaluation.kpi.ways import OURS, ways
from strata.stats import mean_interval

TARGET: Final = 0.10
HALF_WIDTH: Final = 0.3
HEADLINE: Final = "independent_30"
INSIDE: Final = (HEADLINE, "corners_30")
FORESEEN: Final = "fastest_at_every_moment"
CROSSOVER: Final = (0.5, 2.0)


def measure(study: Study) -> Kpi:
    """Return the row; its value is the mean over instances under the reference noise."""
    instances = NETWORK.draw(quick=study.quick)
    kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    crosses: list[bool] = []
    for done, instance in enumerate(instances, 1):
        rng = np.random.default_rng(instance.seed)
        case = Dynamics(crossing(instance, rng))
        study.advance(done / len(instances))
        if not case.candidates.plans:
            continue
        for name, change in changes(case, rng).items():
            for way, how in ways(study.policy).items():
                played = case.play(how, change)
                kept[name][way].append(1 - played.kept)
                if name == HEADLINE and way == OURS:
                    crosses.append(len(case.candidates.plans[played.plans[0]].domains) > 1)
            best = case.rates(change)
            kept[name][FORESEEN].append(1 - float(best.max(axis=1).mean()))
    headline = kept[HEADLINE][OURS]
    return Kpi(
        name="network_degradation",
        definition="mean of 1 - J / J_nominal in the control loop, J the steps trained, restarts and moves paid, "
        "every direction of every link drawn in +-30 % anew at each of 32 decisions",
        baseline="the plan that is best at nominal links, at nominal links",
        value=float(np.mean(headline)) if headline else None,
        target=TARGET,
        sense="below",
        ci95=ends(mean_interval(headline, rng=study.rng()) if len(headline) > 1 else None),
        instances=len(headline),
        guards=_guards(kept, crosses),
        trust=Trust.ASSUMED,
        beside={
            way: float(np.mean(values)) for way, values in kept[HEADLINE].items() if way not in (OURS, FORESEEN)
        },
    )


def crossing(instance: PlanningCase, rng: np.random.Generator) -> PlanningCase:
    """Return the instance with links about as busy as its devices, so that they matter."""
    return at_crossover(instance, float(np.exp(rng.uniform(*np.log(CROSSOVER)))))


def changes(case: Dynamics, rng: np.random.Generator) -> dict[str, Change]:
    """Return the noises the table has: inside +-30 %, and outside of it."""
    count = len(case.candidates.pairs)
    return {
        HEADLINE: Change(independent(rng, count, half_width=HALF_WIDTH)),
        "corners_30": Change(corners(rng, count, half_width=HALF_WIDTH)),
        "all_links_50_down": Change(np.full((DECISIONS, count), 0.5)),
    }


def _guards(kept: dict[str, dict[str, list[float]]], crosses: list[bool]) -> dict[str, Any]:
    table = {name: {way: float(np.mean(values)) for way, values in some.items()} for name, some in kept.items()}
    missed = [name for name in INSIDE if name in table and table[name][OURS] >= TARGET]
    return {
        "by_noise": table,
        "spread": summary(kept[HEADLINE][OURS]),
        "share_of_plans_over_several_domains": float(np.mean(crosses)) if crosses else None,
        "crossover_of_instances": list(CROSSOVER),
        "passes_only_against": [name for name in INSIDE if name not in missed] if missed else [],
        "misses_against": missed,
    }
