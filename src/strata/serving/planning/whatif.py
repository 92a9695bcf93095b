"""What if: a fleet and a serving job with some values set to something else, and how the two plans differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from strata.decision import Reason
from strata.errors import UsageError
from strata.files import API_VERSION
from strata.fleet.changes import ValueChange, changed_fleet, fleet_changes, value_changes
from strata.fleet.fleet import Fleet
from strata.fleet.overrides import JobKeys, Key, noting, read_overrides
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


def _share(share: float) -> str:
    return f"{100 * share:g}%"


JOB: Final = {
    "prompt": Key("demand.prompt_tokens", "{} tokens".format, DemandEntry, _DEMAND),
    "output": Key("demand.output_tokens", "{} tokens".format, DemandEntry, _DEMAND),
    "batch": Key("demand.batch", "{} sequences".format, DemandEntry, _DEMAND),
    "rate": Key("demand.rate_per_s", "{:g}/s".format, DemandEntry, _DEMAND),
    "goals.ttft": Key("demand.ttft_goal_s", _goal, GoalsEntry, may_be_none=True),
    "goals.tpot": Key("demand.tpot_goal_s", _goal, GoalsEntry, may_be_none=True),
    "precision.weights": Key("weights", str, PrecisionEntry, is_text=True),
    "precision.kv": Key("kv", str, PrecisionEntry, is_text=True),
    "efficiency.flops": Key("flops_efficiency", _share, EfficiencyEntry),
    "efficiency.bandwidth": Key("bandwidth_efficiency", _share, EfficiencyEntry),
    "memory_headroom": Key("memory_headroom", _share, ServingJobFile, _FILE),
    "strategy": Key("strategy", str, ServingJobFile, _FILE, is_text=True),
}  # fmt: skip
JOB_KEYS: Final = JobKeys(JOB, fixed=("model",))
RATIOS: Final = (
    "tokens_per_s", "requests_per_s", "goodput_per_s", "decode_s", "ttft_s", "cost_usd_per_mtoken",
    "goodput_usd_per_mtoken",
)  # fmt: skip
"""Figures of an estimate that are compared, new over old."""


@dataclass(frozen=True, slots=True)
class DomainService:
    """What a plan gives one domain: its devices in pipelines, and its share of all layers of all tokens/s."""

    num_devices: int
    share: float


@dataclass(frozen=True, slots=True)
class ServingComparison:
    """What moved from the old answer's plan to the new one's; ratios are new / old, None where a side has none.

    domains: (old, new) of every domain that either plan uses. appeared, gone: reasons of one decision only.
    """

    same_plan: bool
    ratios: Mapping[str, float | None]
    domains: Mapping[str, tuple[DomainService | None, DomainService | None]]
    appeared: tuple[Reason, ...]
    gone: tuple[Reason, ...]
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form, without the sentence."""
        return {
            **{f"{name}_ratio": ratio for name, ratio in self.ratios.items()},
            "same_plan": self.same_plan,
            "domains_added": [name for name, (old, _) in self.domains.items() if old is None],
            "domains_removed": [name for name, (_, new) in self.domains.items() if new is None],
            "domains": {
                name: {"old": asdict(old) if old else None, "new": asdict(new) if new else None}
                for name, (old, new) in self.domains.items()
            },
            "reasons_appeared": [reason.to_dict() for reason in self.appeared],
            "reasons_gone": [reason.to_dict() for reason in self.gone],
        }


def apply(fleet: Fleet, job: ServingJob, overrides: Sequence[str]) -> tuple[Fleet, ServingJob, list[ValueChange]]:
    """Return the fleet and the job with `path=value` settings made, and what is different then.

    A value set to what it is makes no change. Raises UsageError with all that is wrong.
    """
    faults: list[str] = []
    read = read_overrides(fleet, overrides, faults, job=JOB_KEYS)
    new_fleet, new_job = changed_fleet(fleet, read, faults), job
    of_job = [override for override in read if not override.target]
    with noting(faults, ", ".join(override.text for override in of_job)):
        new_job = _job(job, {override.key: override.value for override in of_job})
    if faults:
        raise UsageError("\n".join(faults))
    return new_fleet, new_job, [*fleet_changes(fleet, new_fleet), *value_changes("job", JOB, job, new_job)]


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


def compare(old: ServingAnswer, new: ServingAnswer) -> ServingComparison:
    """Compare two answers; a side may have no plan."""
    works = _services(old), _services(new)
    domains = {name: (works[0].get(name), works[1].get(name)) for name in dict.fromkeys([*works[0], *works[1]])}
    reasons = [{(r.token, r.subject): r for r in answer.decision.reasons} for answer in (old, new)]
    return ServingComparison(
        same_plan=old.decision.choice is not None
        and [p.layout for p in old.plan.pipelines] == [p.layout for p in new.plan.pipelines],
        ratios={name: _ratio(old, new, name) for name in RATIOS},
        domains=domains,
        appeared=tuple(reason for key, reason in reasons[1].items() if key not in reasons[0]),
        gone=tuple(reason for key, reason in reasons[0].items() if key not in reasons[1]),
        text=_text(old, new, domains),
    )


def _ratio(old: ServingAnswer, new: ServingAnswer, name: str) -> float | None:
    before, after = (getattr(answer.estimate, name, None) for answer in (old, new))
    return after / before if before and after is not None else None


def _services(answer: ServingAnswer) -> dict[str, DomainService]:
    """Return what a plan gives each domain that it uses."""
    devices: dict[str, int] = {}
    done: dict[str, float] = {}
    for pipeline in answer.plan.pipelines:
        for stage in pipeline.stages:
            node = answer.plan.node(stage.node)
            devices[node.domain] = devices.get(node.domain, 0) + node.num_devices
            layers = pipeline.tokens_per_s * (stage.end - stage.first)
            done[node.domain] = done.get(node.domain, 0.0) + layers
    return {name: DomainService(devices[name], done[name] / sum(done.values())) for name in sorted(devices)}


def _text(
    old: ServingAnswer,
    new: ServingAnswer,
    domains: Mapping[str, tuple[DomainService | None, DomainService | None]],
) -> str:
    """Return the one sentence for people."""
    before, after = old.estimate, new.estimate
    if after is None:
        why = f": {new.decision.reasons[0]}" if new.decision.reasons else ""
        return f"No plan fits{' any more' if before is not None else ', as before'}{why}."
    now = f"{show_count(after.tokens_per_s)} tokens/s, decode {show_time(after.decode_s)}"
    if before is None:
        return f"A plan fits now: {now}."
    joined = [name for name, (was, _) in domains.items() if was is None]
    left = [name for name, (_, there) in domains.items() if there is None]
    moves = [f"{', '.join(names)} {verb}{'s' if len(names) == 1 else ''}"
             for names, verb in ((left, "leave"), (joined, "join")) if names]  # fmt: skip
    moved = " and ".join(moves) or "The same domains"
    was = f"{show_count(before.tokens_per_s)} tokens/s, decode {show_time(before.decode_s)}"
    return f"{moved}: {now}{', as before' if was == now else f' instead of {was}'}."
