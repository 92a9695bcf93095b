"""What may be set of a training job in a what-if; `comparison.py` compares the two plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from strata import units
from strata.errors import UsageError
from strata.files import API_VERSION
from strata.fleet.overrides import JobKeys, Key, each, meant, or_none
from strata.workload.job import ANY_RECOMPUTE, PRECISION_BYTES, Recompute, TrainingJob
from strata.workload.job_entries import (
    GoalEntry,
    LimitsEntry,
    ParallelEntry,
    SyncEntry,
    TrainEntry,
    TrainingJobFile,
)
from strata.workload.job_faults import too_long
from strata.workload.pins import show_stages
from strata.workload.schema import compression_factor, layers_of
from strata.workload.software_schema import ATTRIBUTES, SoftwareEntry, software_text, software_value

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
    "sequence": Key("sequence_length", "{} tokens".format, TrainEntry, _TRAIN),
    "precision": Key("precision", str, TrainEntry, _TRAIN),
    "optimizer": Key("optimizer", str, TrainEntry, _TRAIN),
    "expert_imbalance": Key("expert_imbalance", "{:g}".format, TrainEntry, _TRAIN),
    "schedules": Key("schedules", each, TrainEntry, _TRAIN, is_list=True),
    "zero": Key("zero_stages", each, TrainEntry, _TRAIN, is_list=True),
    "recompute": Key("recompute", lambda modes: "auto" if len(modes) > 1 else each(modes), TrainEntry, _TRAIN),
    "local_steps": Key("local_steps", or_none(each), SyncEntry, is_list=True, may_be_none=True),
    "compress": Key("gradient_compression", lambda by: f"by {each(by)}", SyncEntry, is_list=True),
    **{f"parallel.{name}": Key(f"pins.{name}", or_none(str), ParallelEntry, may_be_none=True)
       for name in ParallelEntry.model_fields if name != "stages"},
    "parallel.stages": Key("pins.stages", or_none(show_stages), ParallelEntry, is_map=True, may_be_none=True,
                           check=_known),
    "minimize": Key("objective", str, GoalEntry),
    "weights": Key("weights", each, GoalEntry, is_list=True, check=_three),
    "efficiency": Key("flops_efficiency", or_none("{:g}".format), TrainingJobFile, _FILE, may_be_none=True),
    **{f"software.{name}": Key(f"software.{attribute}", partial(software_text, name), SoftwareEntry)
       for name, attribute in ATTRIBUTES.items()},
    "limits.cost": Key("limits.cost_usd_per_step", or_none(units.show_usd), LimitsEntry, may_be_none=True),
    "limits.tokens_per_s": Key("limits.tokens_per_s", or_none("{:,.0f}".format), LimitsEntry, may_be_none=True),
    "limits.domains": Key("limits.domains", or_none(lambda names: each(sorted(names))), LimitsEntry,
                          is_text=True, is_list=True, may_be_none=True, check=_known),
    "limits.memory_headroom": Key("limits.memory_headroom", lambda share: f"{100 * share:g}%", LimitsEntry),
}  # fmt: skip


def _job(old: TrainingJob, values: Mapping[str, Any]) -> TrainingJob:
    read = replace(old, sequence_length=values.get("sequence", old.sequence_length))  # what tokens are counted by
    new = {JOB[key].attribute: _job_value(read, key, value) for key, value in values.items()}
    limits = {name.removeprefix("limits."): new.pop(name) for name in list(new) if name.startswith("limits.")}
    pins = {name.removeprefix("pins."): new.pop(name) for name in list(new) if name.startswith("pins.")}
    own = {name.removeprefix("software."): new.pop(name) for name in list(new) if name.startswith("software.")}
    old = replace(old, software=replace(old.software, **own))
    if {"sequence_length", "precision"} & new.keys() or "transformer_engine" in own:
        new |= _recomputed(old, new)
    return replace(old, **new, limits=replace(old.limits, **limits), pins=replace(old.pins, **pins))


def _recomputed(old: TrainingJob, new: Mapping[str, Any]) -> dict[str, Any]:
    """Return what follows from another length of sequences or precision."""
    sequence = new.get("sequence_length", old.sequence_length)
    precision = new.get("precision", old.precision)
    if old.spec is None or old.profile is not None:
        raise UsageError("the layers were measured at one sequence length and precision: profile it at these")
    if (message := too_long(old.spec, sequence)) is not None:
        raise UsageError(message)
    shrinks = PRECISION_BYTES[precision] / old.element_bytes
    factors = new.get("gradient_compression") or tuple(
        factor if factor == 1 else factor * shrinks for factor in old.gradient_compression
    )
    return {
        "layers": layers_of(old.spec, sequence, precision=precision, software=old.software),
        "gradient_compression": factors,
    }


def _job_value(job: TrainingJob, key: str, value: Any) -> Any:
    """Return what a job holds of a value of its file."""
    if key.startswith("software."):
        return software_value(key.removeprefix("software."), value)
    match key, value:
        case "global_batch", str():
            sequences = units.parse(value, "tokens") / job.sequence_length
            if sequences != int(sequences):
                raise UsageError(f"{value!r} is not a whole number of sequences of {job.sequence_length} tokens")
            return int(sequences)
        case "recompute", _:
            return ANY_RECOMPUTE if value == "auto" else (Recompute(value),)
        case (("local_steps" | "schedules" | "zero"), _):
            return tuple(dict.fromkeys(value or ()))
        case "compress", _:
            return tuple(dict.fromkeys(compression_factor(name, job.element_bytes) for name in value))
        case "limits.domains", list():
            return frozenset(value)
        case "parallel.stages", dict():
            return tuple(value.items())
    return value


JOB_KEYS: Final = JobKeys(JOB, fixed=("model", "profile"), changed=_job, sections=("train", "train.sync", "goal"))
