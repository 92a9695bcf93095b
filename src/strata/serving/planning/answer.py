"""The planner's answer as data: the stable JSON of `strata plan serve`, which is also the plan file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from strata.decision import Trust
from strata.serving.planning.planner import ServingAnswer
from strata.workload.serving_job import ServingJob


def serving_answer(answer: ServingAnswer, job: ServingJob, *, inputs: Mapping[str, str]) -> dict[str, Any]:
    """Return the whole answer, which `read_serving_plan` reads; `inputs` names the files it was planned from.

    bound_tokens_per_s and gap are of the stages alone (`serving/planning/bound.py`), before KV memory limits them.
    """
    decision, allocation, estimate = answer.decision, answer.allocation, answer.estimate
    figures: dict[str, Any] | None = None
    if estimate is not None:
        figures = {
            "tokens_per_s": estimate.tokens_per_s,
            "decode_s": estimate.decode_s,
            "ttft_s": estimate.ttft_s,
            "requests_per_s": estimate.requests_per_s,
            "goodput_per_s": estimate.goodput_per_s,
            "link_share": estimate.link_share,
            "stages_tokens_per_s": allocation.performance.tokens_per_s,
            "bound_tokens_per_s": allocation.bound_tokens_per_s,
            "gap": None if allocation.gap is None else max(0.0, allocation.gap),
            "trust": str(estimate.trust),
            "batch": job.demand.batch,
            "flops_efficiency": job.flops_efficiency,
            "bandwidth_efficiency": job.bandwidth_efficiency,
            "efficiencies_trust": str(Trust.ASSUMED),
        }
    return {
        **replace(answer.plan, inputs=dict(inputs)).to_dict(),
        "figures": figures,
        "reasons": [reason.to_dict() for reason in decision.reasons],
        "alternatives": [
            {
                "name": item.name,
                "cost": dict(item.cost),
                "reasons": [reason.to_dict() for reason in item.reasons],
            }
            for item in decision.alternatives
        ],
        "unused": [left_out.to_dict() for left_out in answer.unused],
        "trust": str(decision.trust),
        "inputs_digest": decision.inputs_digest,
        "seed": decision.seed,
        "search_s": decision.elapsed_s,
    }
