"""Row `load_stability`: how often everything still holds while the load of each domain varies by 20 %.

A decision is stable when its plan fits, its step is within 10 % of the clairvoyant's in that state, work does
not pile up, and no switch follows another within the cooldown. The clairvoyant knows all loads to come and pays
for switches. An oracle that switches for nothing is a yardstick nobody can reach: it stands in the guards.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

from strata.arrays import Bools, Floats
from strata.decision import Trust
from strata.evaluation.kpi.instances import LOAD
from strata.evaluation.kpi.kpi import Kpi, ends
from strata.evaluation.kpi.perturbed import DECISIONS, Arena, Choose, Perturbation, PolicyRun, corners, independent
from strata.evaluation.kpi.study import Study
from strata.stats import mean_interval
from strata.training.replan import rules

TARGET: Final = 0.99
HALF_WIDTH: Final = 0.2
EPISODES: Final = 64
"""As many as there are corners of six domains."""

CLOSE: Final = 1.1
COOLDOWN: Final = 3
"""Decisions within which a second switch counts as unstable."""

OFFERED: Final = 0.8
MOST_WAITING: Final = 1.0
"""Work arrives at this share of what the nominal plan does; this many steps of it may wait."""

OURS: Final = "hi_ppo"
NAMES: Final = ("drawn", "corners")
FREE: Final = "stable_against_free_oracle"


def measure(study: Study) -> Kpi:
    """Return the row; its value counts drawn loads and corners alike."""
    instances = LOAD.draw(quick=study.quick)
    by_policy: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    rated = []
    for done, instance in enumerate(instances, 1):
        arena = Arena.of(study, instance.problem())
        study.advance(done / len(instances))
        if arena is None:
            continue
        loads = []
        for name, change in changes(arena, np.random.default_rng(instance.seed)).items():
            clairvoyant_s, oracle_s = arena.clairvoyant_s(change), arena.oracle_s(change)
            ways: dict[str, Choose] = {
                OURS: study.policy.choose, "do_nothing": rules.keep, "switching_oracle": rules.myopic
            }  # fmt: skip
            for way, choose in ways.items():
                run = arena.run(choose, change)
                checks = stable(arena, run, clairvoyant_s)
                figures = by_policy[f"{name}_{way}"]
                figures["stable"].append(float(np.all(list(checks.values()), axis=0).mean()))
                strict = {**checks, "close": run.step_s <= CLOSE * oracle_s}
                figures[FREE].append(float(np.all(list(strict.values()), axis=0).mean()))
                for check, kept in checks.items():
                    figures[check].append(float(kept.mean()))
            loads.append(by_policy[f"{name}_{OURS}"]["stable"][-1])
        rated.append(float(np.mean(loads)))
    return Kpi(
        name="load_stability",
        definition="share of (episode, decision) whose plan fits, takes at most 1.1 times the step of a "
        "clairvoyant that pays for switches, lets no work pile up, switches at most once in 4 decisions; "
        "+-20 % load on each domain, drawn anew at every decision, and in all corners",
        baseline="the clairvoyant; beside it doing nothing, and an oracle that is always on the fastest plan",
        value=float(np.mean(rated)) if rated else None,
        target=TARGET,
        sense="at least",
        ci95=ends(mean_interval(rated, rng=study.rng()) if len(rated) > 1 else None),
        instances=len(rated),
        guards=_guards(by_policy),
        trust=Trust.ASSUMED,
    )


def changes(arena: Arena, rng: np.random.Generator) -> dict[str, Perturbation]:
    """Return loads drawn anew at every decision, and the corners of all domains that last."""
    domains = len(arena.problem.fleet.domains)
    links = np.ones((DECISIONS, EPISODES, max(1, domains * (domains - 1) // 2)))
    shape = (DECISIONS, EPISODES, domains)
    return {
        "drawn": Perturbation(links, independent(rng, shape, half_width=HALF_WIDTH), 0.0),
        "corners": Perturbation(links, corners(rng, shape, half_width=HALF_WIDTH), 1.0),
    }


def stable(arena: Arena, run: PolicyRun, wanted_s: Floats) -> dict[str, Bools]:
    """Return [T, E] for each condition: whether it holds after each decision.

    wanted_s: [T, E] the steps to be close to.
    """
    fits = np.array([arena.problem.model.fits(item.plan) for item in arena.items])
    waiting, bounded = np.zeros(run.earned.shape[1]), np.empty(run.earned.shape, dtype=bool)
    for step, earned in enumerate(run.earned):
        waiting = np.maximum(0.0, waiting + OFFERED - earned)
        bounded[step] = waiting <= MOST_WAITING
    calm = np.ones(run.switched.shape, dtype=bool)
    for behind in range(1, COOLDOWN + 1):
        calm[behind:] &= ~(run.switched[behind:] & run.switched[:-behind])
    return {"fits": fits[run.plans], "close": run.step_s <= CLOSE * wanted_s, "bounded": bounded, "calm": calm}


def _guards(by_policy: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    table = {name: {check: float(np.mean(v)) for check, v in checks.items()} for name, checks in by_policy.items()}
    if not table:
        return {}
    free = min(table[f"{name}_{OURS}"][FREE] for name in NAMES)
    is_met = all(table[f"{name}_{OURS}"]["stable"] >= TARGET for name in NAMES)
    return {
        "by_load_and_rule": table,
        "do_nothing_passes": all(table[f"{name}_do_nothing"]["stable"] >= TARGET for name in NAMES),
        "passes_only_against": ["clairvoyant"] if is_met and free < TARGET else [],
        "misses_against": ["an oracle that switches for nothing"] if free < TARGET else [],
    }
