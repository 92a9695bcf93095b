"""Allocation ratios between domains, the seeds' literal action (seed 000 §2.2), made a plan.

A ratio says how much of the job a domain gets, not how: of the layers where the domains form one pipeline, of
the batch where each holds a copy of the model. Both are made, by largest remainder, in the inner shapes that
look best, and the cost model says which has the shorter step; limits on cost and throughput are not asked.
K domains of the problem; a share of 0 leaves a domain out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.decision import Reason
from strata.evaluation.allocation_heads.layered import Counts, Layered
from strata.simulate.collective import eta
from strata.training.plan.exact.config import CommonConfig
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated
from strata.training.plan.exact.unit import Inner, Units
from strata.workload.job import Recompute
from strata.workload.plan import TrainingPlan

WORST_REWARD: Final = -1.0
"""Reward of ratios that no plan follows, and of any step of twice the baseline or more: a learner need not know
how much worse, and one fleet of slow links does not drown the others."""

MICROBATCHES: Final = (1, 2, 4)
SHAPES: Final = 8
"""Inner shapes of a domain that are built for sharing the batch: its fastest."""

EVALUATED: Final = 3
"""Plans of either kind that the cost model sees: those that look fastest."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """The best plan found that follows some ratios, or why there is none."""

    best: Evaluated | None
    reason: Reason | None = None

    def reward(self, baseline_s: float) -> float:
        """Return the seeds' R_eff = (T_base - T) / T_base, at least WORST_REWARD."""
        if self.best is None:
            return WORST_REWARD
        return max(WORST_REWARD, 1 - self.best.report.step_time_s / baseline_s)


def largest_remainder(ratios: Floats, total: int) -> Counts:
    """Return whole numbers that sum to `total`, each less than 1 away from its share of it."""
    shares = ratios / ratios.sum() * total
    counts = np.floor(shares + 1e-9).astype(np.int64)
    order = np.argsort(counts - shares, kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return tuple(counts.tolist())


class Allocator:
    """Makes plans of ratios. What was built for a problem is kept, so that many ratios cost little more."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem = problem.undivided
        self._layered = Layered(problem)
        self._units = Units(problem, fastest=SHAPES)
        self._menus: dict[tuple[Counts, Counts], list[TrainingPlan]] = {}

    def allocate(self, ratios: Floats) -> list[Allocated]:
        """Return for each row of `ratios` [B, K] the better of pipeline and sharing. No row may be all 0.

        The recurrence costs about the same for one plan as for some dozens: rows are evaluated together.
        """
        menus = [self._menu(row) for row in ratios]
        reports = self.problem.model.reports([plan for menu in menus for plan in menu])
        allocations, start = [], 0
        for row, menu in zip(ratios, menus, strict=True):
            pairs = zip(menu, reports[start : start + len(menu)], strict=True)
            items = [Evaluated(plan, report, report.step_time_s) for plan, report in pairs]
            start += len(menu)
            best = min((i for i in items if np.isfinite(i.score)), key=lambda item: item.score, default=None)
            allocations.append(Allocated(best, None if best else self._refusal(row)))
        return allocations

    def _menu(self, ratios: Floats) -> list[TrainingPlan]:
        """Return the plans of both kinds that follow the ratios and look fastest."""
        job = self.problem.job
        layers = largest_remainder(ratios, len(job.layers))
        samples = largest_remainder(ratios, job.global_batch)
        if (layers, samples) not in self._menus:
            pipelines = self._layered.plans(layers, most=EVALUATED)
            self._menus[layers, samples] = [*pipelines, *self._sharings(samples)]
        return self._menus[layers, samples]

    def _refusal(self, ratios: Floats) -> Reason:
        names = [d.name for d, ratio in zip(self.problem.fleet.domains, ratios, strict=True) if ratio > 0]
        return Reason("ratios-without-plan", "", {"domains": "+".join(names)})

    def _sharings(self, samples: Counts) -> list[TrainingPlan]:
        """Return plans in which each domain works through its samples, rounded up to whole microbatches."""
        job, model = self.problem.job, self.problem.model
        candidates: list[tuple[float, TrainingPlan]] = []
        wires: dict[tuple[int, float], float] = {}
        for size, recompute in product(MICROBATCHES, job.recompute):
            parts = self._parts(samples, size, recompute)
            if parts is None:
                continue
            busy_s = max(inner.least_s(count) for inner, count in parts)
            hidden_s = min(inner.hidden_s for inner, _ in parts)
            plan = _joined(parts)
            ways = product(job.gradient_compression, (1, *job.local_steps)) if len(parts) > 1 else [(1.0, 1)]
            for factor, steps in ways:
                variant = replace(plan, gradient_compression=factor, local_steps=steps)
                if (len(parts), factor) not in wires:
                    across = model.all_reduce(variant)
                    wires[len(parts), factor] = 0.0 if across is None else across.time_s
                exposed_s = max(0.0, wires[len(parts), factor] - hidden_s)
                candidates.append((busy_s * eta(steps) + exposed_s / steps, variant))
        candidates.sort(key=lambda item: item[0])
        return list(islice((plan for _, plan in candidates if model.fits(plan)), EVALUATED))

    def _parts(self, samples: Counts, size: int, recompute: Recompute) -> list[tuple[Inner, int]] | None:
        """Return each domain's shape and microbatches a copy that end its samples first; None: one holds none.

        A domain whose share is below one microbatch of this size takes no part; the others share the batch.
        """
        shares = np.where(np.array(samples) >= size, samples, 0).astype(float)
        if not shares.any():
            return None
        samples = largest_remainder(shares, self.problem.job.global_batch)
        parts = []
        for i in np.flatnonzero(shares):
            inners = self._units.inners((int(i),), CommonConfig(size, recompute))
            counted = [(inner, -(-samples[i] // inner.samples)) for inner in inners]
            ways = [(inner, count) for inner, count in counted if count <= inner.room]
            if not ways:
                return None
            parts.append(min(ways, key=lambda way: way[0].least_s(way[1])))
        return parts


def _joined(parts: list[tuple[Inner, int]]) -> TrainingPlan:
    """Return one plan of the domains' own ones, each with its number of microbatches a copy."""
    pipelines = tuple(inner.plan.pipelines[0].with_microbatches(count) for inner, count in parts)
    zero = max(inner.plan.zero_stage for inner, _ in parts)
    return replace(parts[0][0].plan, pipelines=pipelines, zero_stage=zero)
