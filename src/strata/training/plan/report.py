"""The planner's answer as data: the stable JSON of `strata plan train`, which is also the plan file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from strata.decision import Reason
from strata.files import API_VERSION
from strata.fleet.fleet import Fleet
from strata.training.plan import explain
from strata.training.plan.baselines import absent
from strata.training.plan.exact.search import Evaluated
from strata.training.plan.planner import Answer
from strata.workload.job import Objective, TrainingJob


def answer_dict(
    answer: Answer,
    *,
    baselines: Mapping[str, Evaluated | None],
    top: int,
    inputs: Mapping[str, str],
    front: Sequence[Evaluated] | None = None,
) -> dict[str, Any]:
    """Return the whole answer. `plans` stand best first; `inputs` names the files it was planned from."""
    decision, found, job = answer.decision, answer.found, answer.problem.job
    bounded = np.isfinite(found.bound) and answer.best is not None
    by_time = job.objective is Objective.TIME
    data: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "TrainingAnswer",
        "name": job.name,
        "objective": str(job.objective),
        "plans": [plan_dict(answer, item, rank) for rank, item in enumerate(answer.plans[:top], 1)],
        "baselines": {name: _baseline(name, item, answer.best) for name, item in baselines.items()},
        "proof": {
            "bound_s": float(found.bound) if bounded and by_time else None,
            "bound_score": float(found.bound) if bounded else None,
            "gap": float(found.gap) if bounded else None,
            "branches": found.branches,
            "evaluated": found.evaluated,
        },
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
        "inputs_digest": decision.inputs_digest,
        "seed": decision.seed,
        "fleet": fleet_dict(answer.problem.fleet),
        "job": job_dict(job),
        "inputs": dict(inputs),
    }
    if answer.policy is not None:
        data["policy"] = dict(answer.policy)
    if front is not None:
        data["front"] = [plan_dict(answer, item, rank) for rank, item in enumerate(front, 1)]
    return data


def plan_dict(answer: Answer, item: Evaluated, rank: int) -> dict[str, Any]:
    """Return one plan with its figures; `plan` inside reads back with TrainingPlan.from_dict."""
    plan = item.plan
    report = answer.problem.model.details([plan])[0]
    reasons: tuple[Reason, ...] = ()
    if answer.best is not None:
        chosen = item.plan == answer.best.plan
        reasons = answer.decision.reasons[:1] if chosen else explain.why_not(answer.problem, item, answer.best)
    figures = report.to_dict()
    stages, breakdown = figures.pop("stages"), figures.pop("breakdown_s")
    return {
        "rank": rank,
        "name": explain.name(plan),
        "kind": plan.kind,
        **figures,
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


def _baseline(name: str, item: Evaluated | None, best: Evaluated | None) -> dict[str, Any]:
    if item is None:
        return {"found": False, "step_time_s": None, "ratio": None, "reason": absent(name)}
    report = item.report
    return {
        "found": True,
        "name": explain.name(item.plan),
        "step_time_s": report.step_time_s,
        "ratio": None if best is None else report.step_time_s / best.report.step_time_s,
        "tokens_per_s": report.tokens_per_s,
        "utilization": report.utilization,
        "wan_bytes_per_step": report.wan_bytes_per_step,
        "cost_usd_per_mtoken": report.cost_usd_per_mtoken,
        "num_devices": report.num_devices,
        "device_seconds_per_mtoken": report.step_time_s
        * report.num_devices
        / (report.tokens_per_s * report.step_time_s)
        * 1e6,
        "trust": str(report.trust),
    }


def fleet_dict(fleet: Fleet) -> dict[str, Any]:
    """Return what launching needs to know of the fleet."""
    return {
        "name": fleet.name,
        "domains": [
            {"name": d.name, "accelerator": d.accelerator.name, "num_devices": d.num_devices,
             "devices_per_node": d.devices_per_node}
            for d in fleet.domains
        ],
    }  # fmt: skip


def job_dict(job: TrainingJob) -> dict[str, Any]:
    """Return what launching needs to know of the job."""
    return {
        "name": job.name,
        "model": job.model_name,
        "num_layers": len(job.layers),
        "sequence_length": job.sequence_length,
        "global_batch": job.global_batch,
        "precision": job.precision,
        "optimizer": job.optimizer,
        "num_heads": job.num_heads,
    }
