"""Row `load_stability`: how often everything still holds in the control loop while domains' load varies by 20 %.

A decision is stable when its plan fits, its step is within 10 % of the clairvoyant's in that state, work does
not pile up, and no switch follows another within the cooldown. The clairvoyant knows all loads to come and pays
for switches.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.decision import Trust
from strata.evaluation.kpi.dynamics import Change, Dynamics, Played, corners, independent
from strata.evaluation.kpi.instances import LOAD
from strata.evaluation.kpi.kpi import OF_THE_POLICY, Kpi, ends
from strata.evaluation.kpi.study import Study
from strata.evaluation.kpi.ways import OURS, ways
from strata.stats import mean_interval

TARGET: Final = 0.99
HALF_WIDTH: Final = 0.2
EPISODES: Final = 4

CLOSE: Final = 1.1
COOLDOWN: Final = 3
"""Decisions within which a second switch counts as unstable."""

OFFERED: Final = 0.8
MOST_WAITING: Final = 1.0
"""Work arrives at this share of what the best plan does nominally; this many decisions of it may wait."""

NAMES: Final = ("drawn", "corners")


def measure(study: Study) -> Kpi:
    """Return the row; its value counts drawn loads and corners alike."""
    instances = LOAD.draw(quick=study.quick)
    table: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rated = []
    for done, instance in enumerate(instances, 1):
        case = Dynamics(instance)
        study.advance(done / len(instances))
        if not case.candidates.plans:
            continue
        rng, own = np.random.default_rng(instance.seed), []
        for name, change in changes(case, rng):
            rates = case.rates(change)
            wanted = case.clairvoyant(rates)
            for way, how in ways(study.policy).items():
                checks = stable(case, case.play(how, change), rates=rates, wanted=wanted)
                figures = table[f"{name}_{way}"]
                figures["stable"].append(float(np.all(list(checks.values()), axis=0).mean()))
                for check, holds in checks.items():
                    figures[check].append(float(holds.mean()))
                if way == OURS:
                    own.append(figures["stable"][-1])
        rated.append(float(np.mean(own)))
    means = {name: {check: float(np.mean(v)) for check, v in checks.items()} for name, checks in table.items()}
    return Kpi(
        name="load_stability",
        definition="share of decisions of the control loop whose plan fits, takes at most 1.1 times the step of a "
        "clairvoyant that pays for switches, lets no work pile up, switches at most once in 4 decisions; "
        "+-20 % load on each domain, drawn anew at every decision, and in corners that last",
        baseline="the clairvoyant; the same loop under other rules stands beside",
        value=float(np.mean(rated)) if rated else None,
        target=TARGET,
        sense="at least",
        ci95=ends(mean_interval(rated, rng=study.rng()) if len(rated) > 1 else None),
        instances=len(rated),
        guards=_guards(means),
        trust=Trust.ASSUMED,
        beside={
            way: float(np.mean([means[f"{name}_{way}"]["stable"] for name in NAMES]))
            for way in OF_THE_POLICY
            if means
        },
    )


def changes(case: Dynamics, rng: np.random.Generator) -> list[tuple[str, Change]]:
    """Return loads drawn anew at every decision, and corners of all domains that last."""
    count = len(case.instance.fleet.domains)
    drawn = [("drawn", 1 / independent(rng, count, half_width=HALF_WIDTH)) for _ in range(EPISODES // 2)]
    lasting = [("corners", 1 / corners(rng, count, half_width=HALF_WIDTH)) for _ in range(EPISODES // 2)]
    return [(name, Change(speeds=speeds)) for name, speeds in drawn + lasting]


def stable(case: Dynamics, played: Played, *, rates: Floats, wanted: Ints) -> dict[str, Bools]:
    """Return [T] for each condition: whether it holds after each decision. wanted: the clairvoyant's plans [T]."""
    fits = np.array([case.candidates.model.fits(plan) for plan in case.candidates.plans])
    rows, before = np.arange(len(rates)), np.append(played.plans[0], played.plans[:-1])
    now = rates[rows, played.plans]
    earned = now * np.where(played.switched, 1 - case.switch_share[before, played.plans], 1.0)
    waiting, bounded = 0.0, np.empty(len(rates), dtype=bool)
    for step, rate in enumerate(earned.tolist()):
        waiting = max(0.0, waiting + OFFERED - rate)
        bounded[step] = waiting <= MOST_WAITING
    calm = np.ones(len(rates), dtype=bool)
    for behind in range(1, COOLDOWN + 1):
        calm[behind:] &= ~(played.switched[behind:] & played.switched[:-behind])
    close = CLOSE * now >= rates[rows, wanted]
    return {"fits": fits[played.plans], "close": close, "bounded": bounded, "calm": calm}


def _guards(means: dict[str, dict[str, float]]) -> dict[str, Any]:
    missed = [
        f"{name} loads"
        for name in NAMES
        if f"{name}_{OURS}" in means and means[f"{name}_{OURS}"]["stable"] < TARGET
    ]
    return {
        "by_load_and_rule": means,
        "never_passes": bool(means) and all(means[f"{name}_never"]["stable"] >= TARGET for name in NAMES),
        "misses_against": missed,
    }
