"""What if: a fleet and a serving job with some values set to something else, and how the two plans differ."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from strata.errors import UsageError
from strata.files import API_VERSION
from strata.fleet.comparison import Comparison, DomainWork, compared, ratio
from strata.fleet.overrides import JobKeys, Key
from strata.serving.planning.planner import ServingAnswer
from strata.units import show_count, show_time
from strata.workload.serving_job import ServingJob
from strata.workload.serving_schema import (
    DemandEntry,
    EfficiencyEntry,
    GoalsEntry,
    PrecisionEntry,
    ServingJobFile,
)

_DEMAND: Final = {"prompt": 1, "output": 1}
_FILE: Final = {"apiVersion": API_VERSION, "kind": "ServingJob", "name": "-", "model": "-", "demand": _DEMAND}


def _goal(seconds: float) -> str:
    return "none" if seconds == math.inf else show_time(seconds)


def _share(share: float | None) -> str:
    return "by kernels" if share is None else f"{100 * share:g}%"


JOB: Final = {
    "prompt": Key("demand.prompt_tokens", "{} tokens".format, DemandEntry, _DEMAND),
    "output": Key("demand.output_tokens", "{} tokens".format, DemandEntry, _DEMAND),
    "batch": Key("demand.batch", "{} sequences".format, DemandEntry, _DEMAND),
    "rate": Key("demand.rate_per_s", "{:g}/s".format, DemandEntry, _DEMAND),
    "goals.ttft": Key("demand.ttft_goal_s", _goal, GoalsEntry, may_be_none=True),
    "goals.tpot": Key("demand.tpot_goal_s", _goal, GoalsEntry, may_be_none=True),
    "precision.weights": Key("weights", str, PrecisionEntry, is_text=True),
    "precision.kv": Key("kv", str, PrecisionEntry, is_text=True),
    "efficiency.flops": Key("flops_efficiency", _share, EfficiencyEntry, may_be_none=True),
    "efficiency.bandwidth": Key("bandwidth_efficiency", _share, EfficiencyEntry, may_be_none=True),
    "memory_headroom": Key("memory_headroom", _share, ServingJobFile, _FILE),
    "strategy": Key("strategy", str, ServingJobFile, _FILE, is_text=True),
}  # fmt: skip
RATIOS: Final = (
    "tokens_per_s", "requests_per_s", "goodput_per_s", "decode_s", "ttft_s", "cost_usd_per_mtoken",
    "goodput_usd_per_mtoken",
)  # fmt: skip
"""Figures of an estimate that are compared, new over old."""


def _job(old: ServingJob, values: Mapping[str, Any]) -> ServingJob:
    new = {JOB[key].attribute: value for key, value in values.items()}
    demand: dict[str, Any] = {
        name.removeprefix("demand."): math.inf if value is None else value
        for name, value in new.items()
        if name.startswith("demand.")
    }
    whole = {name: value for name, value in new.items() if not name.startswith("demand.")}
    stored = old.stored(weights=whole.pop("weights", None), kv=whole.pop("kv", None))
    job = replace(stored, **whole, demand=replace(old.demand, **demand))
    most, needed = job.model.max_position_embeddings, job.demand.kv_tokens
    if most and needed > most:
        text = f"{job.model.model_name} has learned positions for only {most} tokens"
        raise UsageError(f"{text}, but prompt and output are {needed}")
    return job


JOB_KEYS: Final = JobKeys(JOB, fixed=("model",), changed=_job, sections=("demand",))


def compare(old: ServingAnswer, new: ServingAnswer) -> Comparison:
    """Compare two answers; a side may have no plan."""
    works = _services(old), _services(new)
    moved = compared(
        works,
        (old.decision.reasons, new.decision.reasons),
        domains=(*works[0], *works[1]),
        same_plan=old.decision.choice is not None
        and [p.layout for p in old.plan.pipelines] == [p.layout for p in new.plan.pipelines],
        figures={
            f"{name}_ratio": ratio(*(getattr(answer.estimate, name, None) for answer in (old, new)))
            for name in RATIOS
        },
    )
    return replace(moved, text=_text(old, new, moved))


def _services(answer: ServingAnswer) -> dict[str, DomainWork]:
    """Return what a plan gives each domain that it uses."""
    devices, done = answer.plan.devices(), defaultdict[str, float](float)
    for pipeline in answer.plan.pipelines:
        for stage in pipeline.stages:
            done[stage.node.rpartition("/")[0]] += pipeline.tokens_per_s * (stage.end - stage.first)
    return {name: DomainWork(devices[name], done[name] / sum(done.values())) for name in sorted(done)}


def _text(old: ServingAnswer, new: ServingAnswer, moved: Comparison) -> str:
    """Return the one sentence for people."""
    before, after = old.estimate, new.estimate
    if after is None:
        why = f": {new.decision.reasons[0]}" if new.decision.reasons else ""
        return f"No plan fits{' any more' if before is not None else ', as before'}{why}."
    now = f"{show_count(after.tokens_per_s)} tokens/s, decode {show_time(after.decode_s)}"
    if before is None:
        return f"A plan fits now: {now}."
    was = f"{show_count(before.tokens_per_s)} tokens/s, decode {show_time(before.decode_s)}"
    return f"{moved.moves or 'The same domains'}: {now}{', as before' if was == now else f' instead of {was}'}."
