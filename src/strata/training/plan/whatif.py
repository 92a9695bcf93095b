"""What if: a fleet and a training job with some values set to something else.

`plan_training` of the two and of what they were gives the two answers that `comparison.py` compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from strata import units
from strata.errors import UsageError
from strata.files import API_VERSION
from strata.fleet.changes import ValueChange, changed_fleet, fleet_changes, value_changes
from strata.fleet.fleet import Fleet
from strata.fleet.overrides import JobKeys, Key, each, meant, noting, or_none, read_overrides
from strata.workload.job import Recompute, TrainingJob
from strata.workload.schema import (
    GoalEntry,
    LimitsEntry,
    ParallelEntry,
    SyncEntry,
    TrainEntry,
    TrainingJobFile,
    compression_factor,
)

_TRAIN: Final = {"global_batch": 1, "sequence": 1}
_FILE: Final = {"apiVersion": API_VERSION, "kind": "TrainingJob", "name": "-", "model": "-", "train": _TRAIN}


def _three(weights: Any, _domains: Sequence[str]) -> None:
    if len(weights) != 3:
        raise UsageError("write three numbers, of time, utilisation and money: 0.4,0.3,0.3")


def _known(names: Any, domains: Sequence[str]) -> None:
    for name in names or ():
        if name not in domains:
            raise UsageError(f"no domain is named {name!r}{meant(name, domains)}")


JOB: Final = {
    "global_batch": Key("global_batch", "{} sequences".format, TrainEntry, _TRAIN),
    "recompute": Key("recompute", lambda modes: "auto" if len(modes) > 1 else each(modes), TrainEntry, _TRAIN),
    "local_steps": Key("local_steps", or_none(each), SyncEntry, is_list=True, may_be_none=True),
    "compress": Key("gradient_compression", lambda by: f"by {each(by)}", SyncEntry, is_list=True),
    **{f"parallel.{name}": Key(f"pins.{name}", or_none(str), ParallelEntry, may_be_none=True)
       for name in ParallelEntry.model_fields},
    "minimize": Key("objective", str, GoalEntry),
    "weights": Key("weights", each, GoalEntry, is_list=True, check=_three),
    "efficiency": Key("flops_efficiency", or_none("{:g}".format), TrainingJobFile, _FILE, may_be_none=True),
    "limits.cost": Key("limits.cost_usd_per_step", or_none(units.show_usd), LimitsEntry, may_be_none=True),
    "limits.tokens_per_s": Key("limits.tokens_per_s", or_none("{:,.0f}".format), LimitsEntry, may_be_none=True),
    "limits.domains": Key("limits.domains", or_none(lambda names: each(sorted(names))), LimitsEntry,
                          is_text=True, is_list=True, may_be_none=True, check=_known),
    "limits.memory_headroom": Key("limits.memory_headroom", lambda share: f"{100 * share:g}%", LimitsEntry),
}  # fmt: skip

JOB_KEYS: Final = JobKeys(JOB, fixed=("sequence", "precision", "model", "profile"))


def apply(
    fleet: Fleet, job: TrainingJob, overrides: Sequence[str]
) -> tuple[Fleet, TrainingJob, list[ValueChange]]:
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


def _job(old: TrainingJob, values: Mapping[str, Any]) -> TrainingJob:
    new = {JOB[key].attribute: _job_value(old, key, value) for key, value in values.items()}
    limits = {name.removeprefix("limits."): new.pop(name) for name in list(new) if name.startswith("limits.")}
    pins = {name.removeprefix("pins."): new.pop(name) for name in list(new) if name.startswith("pins.")}
    return replace(old, **new, limits=replace(old.limits, **limits), pins=replace(old.pins, **pins))


def _job_value(job: TrainingJob, key: str, value: Any) -> Any:
    """Return what a job holds of a value of its file."""
    match key, value:
        case "global_batch", str():
            sequences = units.parse(value, "tokens") / job.sequence_length
            if sequences != int(sequences):
                raise UsageError(f"{value!r} is not a whole number of sequences of {job.sequence_length} tokens")
            return int(sequences)
        case "recompute", _:
            return (Recompute.NONE, Recompute.FULL) if value == "auto" else (Recompute(value),)
        case "local_steps", _:
            return tuple(dict.fromkeys(value or ()))
        case "compress", _:
            return tuple(dict.fromkeys(compression_factor(name, job.element_bytes) for name in value))
        case "limits.domains", list():
            return frozenset(value)
    return value
