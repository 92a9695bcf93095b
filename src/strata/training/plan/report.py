"""What planning a job answers with, and its one JSON form, `kind: TrainingPlan`: printed, saved and read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from strata.decision import Decision, Reason
from strata.files import API_VERSION
from strata.simulate.compute import peak_flops
from strata.training.plan import explain
from strata.training.plan.assumptions import assumptions
from strata.training.plan.exact.problem import Problem
from strata.training.plan.exact.result import Evaluated, SearchResult
from strata.training.plan.objective import Scales, money
from strata.training.plan.planned import InputDigests, PlannedFleet, PlannedJob, PlanRequest
from strata.workload.job import Objective
from strata.workload.plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """The plan a baseline reached, or why there is none."""

    plan: Evaluated | None
    absent: str = ""


@dataclass(frozen=True)
class TrainingPlanReport:
    """The Decision, the evaluated plans behind it, best first, and what they are compared with.

    policy: where a learned policy chose, which one and its explanation (stable JSON). front: the Pareto front
    where it was asked for, and whether it is complete. given: the user's own plan beside the best (stable JSON).
    knee: the cheapest plan that is nearly as fast as the best.
    """

    problem: Problem
    digests: InputDigests
    decision: Decision[TrainingPlan]
    plans: tuple[Evaluated, ...]
    search: SearchResult
    scales: Scales
    policy: Mapping[str, Any] | None = None
    baselines: Mapping[str, BaselineResult] = field(default_factory=dict)
    front: tuple[Evaluated, ...] | None = None
    front_complete: bool = True
    interrupted: bool = False
    given: Mapping[str, Any] | None = None
    knee: Evaluated | None = None

    @property
    def best(self) -> Evaluated | None:
        """The chosen plan, evaluated."""
        return self.plans[0] if self.plans else None

    @property
    def bound_s(self) -> float | None:
        """The step time (or score, for other objectives) that no plan in the space can beat."""
        return float(self.search.bound) if np.isfinite(self.search.bound) else None

    @property
    def out_of_time(self) -> bool:
        """Whether the time limit passed before there was any plan."""
        return self.best is None and self.search.stopped and not self.search.interrupted

    def to_dict(self, request: PlanRequest, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Return the plan file; `inputs` names the files it was planned from."""
        decision, job = self.decision, self.problem.job
        data: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "TrainingPlan",
            "name": job.name,
            "objective": str(job.objective),
            "plans": [self._ranked(rank, item) for rank, item in enumerate(self.plans[: request.top], 1)],
            "baselines": {name: self._baseline(item) for name, item in self.baselines.items()},
            "proof": self.proof(),
            "search_s": decision.elapsed_s,
            "reasons": [reason.to_dict() for reason in decision.reasons],
            "alternatives": [
                {
                    "name": item.name,
                    "domains": list(item.choice.domains) if item.choice is not None else item.name.split("+"),
                    "cost": dict(item.cost),
                    "reasons": [reason.to_dict() for reason in item.reasons],
                }
                for item in decision.alternatives
            ],
            "trust": str(decision.trust),
            "assumed": self._assumed(),
            "inputs_digest": decision.inputs_digest,
            "seed": decision.seed,
            "fleet": PlannedFleet.of(self.problem.fleet).model_dump(),
            "job": PlannedJob.of(job).model_dump(),
            "inputs": dict(inputs),
            "request": request.model_dump(mode="json"),
            "digests": self.digests.model_dump(),
        }
        if self.policy is not None:
            data["policy"] = dict(self.policy)
        if self.front is not None:
            data["front"] = [self._ranked(rank, item) for rank, item in enumerate(self.front, 1)]
        if self.knee is not None:
            data["knee"] = self._knee(self.knee)
        if self.given is not None:
            data["given"] = dict(self.given)
        return data

    def _knee(self, knee: Evaluated) -> dict[str, Any]:
        assert self.best is not None, "the knee is cheaper than some plan"
        rank = next((n for n, item in enumerate(self.plans, 1) if item.plan == knee.plan), len(self.plans) + 1)
        return {
            "step_time_ratio": knee.report.step_time_s / self.best.report.step_time_s,
            "cost_ratio": money(knee.report) / (money(self.best.report) or 1.0),
            "plan": self._ranked(rank, knee),
        }

    def _assumed(self) -> list[dict[str, Any]]:
        best = self.best
        return [] if best is None else [item.to_dict() for item in assumptions(self.problem, best.plan)]

    def _ranked(self, rank: int, item: Evaluated) -> dict[str, Any]:
        if self.best is not None and item.plan == self.best.plan:
            return plan_dict(self.problem, item, rank, self.decision.reasons[:1])
        # Computed with the alternatives; only a plan of the front may be none of them.
        known = {other.choice: other.reasons for other in self.decision.alternatives}
        return plan_dict(self.problem, item, rank, known.get(item.plan) or self._why_not(item))

    def _why_not(self, item: Evaluated) -> tuple[Reason, ...]:
        return explain.why_not(self.problem, item, self.best) if self.best is not None else ()

    def proof(self) -> dict[str, Any]:
        """Return what no plan can beat, and how far the best plan is from it (stable JSON)."""
        search = self.search
        bound = None if self.best is None else self.bound_s
        return {
            "bound_s": bound if self.problem.job.objective is Objective.TIME else None,
            "bound_score": bound,
            "gap": None if bound is None else float(search.gap),
            "branches": search.branches,
            "evaluated": search.evaluated,
            "rows_searched_in_part": [
                rank
                for rank, item in enumerate(self.plans, 1)
                if rank > 1 and item.domain_set not in search.closed
            ],
        }

    def _baseline(self, baseline: BaselineResult) -> dict[str, Any]:
        if baseline.plan is None:
            return {"found": False, "step_time_s": None, "ratio": None, "reason": baseline.absent}
        report, best = baseline.plan.report, self.best
        return {
            "found": True,
            "name": explain.name(baseline.plan.plan),
            "step_time_s": report.step_time_s,
            "ratio": None if best is None else report.step_time_s / best.report.step_time_s,
            "tokens_per_s": report.tokens_per_s,
            "utilization": report.utilization,
            "wan_bytes_per_step": report.wan_bytes_per_step,
            "cost_usd_per_mtoken": report.cost_usd_per_mtoken,
            "num_devices": report.num_devices,
            "device_seconds_per_mtoken": report.num_devices / report.tokens_per_s * 1e6,
            "trust": str(report.trust),
        }


def plan_dict(problem: Problem, item: Evaluated, rank: int, reasons: Sequence[Reason]) -> dict[str, Any]:
    """Return one plan with its figures; `plan` inside reads back with TrainingPlan.from_dict."""
    plan = item.plan
    figures = problem.model.details([plan])[0].to_dict()
    stages, breakdown = figures.pop("stages"), figures.pop("breakdown_s")
    return {
        "rank": rank,
        "name": explain.name(plan),
        "kind": plan.kind,
        **figures,
        "mfu": _mfu(problem, plan, figures["step_time_s"]),
        "domains": list(plan.domains),
        "devices": plan.devices(),
        "stages": stages,
        "microbatches": max(pipeline.microbatches for pipeline in plan.pipelines),
        "microbatch_size": plan.microbatch_size,
        "schedule": str(plan.schedule),
        "recompute": str(plan.recompute),
        "local_steps": plan.local_steps,
        "gradient_compression": plan.gradient_compression,
        "score": item.score,
        "breakdown_s": breakdown,
        "reasons": [reason.to_dict() for reason in reasons],
        "plan": plan.to_dict(),
    }


def _mfu(problem: Problem, plan: TrainingPlan, step_s: float) -> float | None:
    """Return the model FLOPs utilisation, None where a card's peak is not known.

    FLOPs of forward and backward, without recomputation, over the nominal peak of all devices in a step's time
    (Chowdhery et al. 2022, PaLM, appendix B).
    """
    peaks = [
        (count, peak_flops(problem.fleet.domain(name), problem.job)) for name, count in plan.devices().items()
    ]
    if any(peak is None for _, peak in peaks):
        return None
    model_flops = 3.0 * float(problem.job.layers.forward_flops.sum()) * problem.job.global_batch
    return model_flops / (step_s * sum(count * (peak or 0.0) for count, peak in peaks))
