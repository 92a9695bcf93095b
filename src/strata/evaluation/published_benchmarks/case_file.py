"""Case files: measured profiles, prices and network curves, the points to plan, and measured runs.

The form is that of `training_cases.json`, restated from the artifact of Sailor (SOSP 2025,
eth-easl/sailor, MIT licence). Times are seconds, sizes are elements of 4 bytes, 1 GB is 1e9 bytes.
Everything a planner is compared with (`results`, `best_known_within_quota`, `measured_runs`) may be absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from strata.arrays import Floats
from strata.errors import BadFile, Fault
from strata.evaluation.published_benchmarks.plan import BenchmarkPlan, plan_from_dict
from strata.files import read_json
from strata.fleet.fleet import BandwidthCurve
from strata.workload.profile import LayerTimes

Objective = Literal["iteration_s", "cost_usd"]
Array = Floats


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model's L layers: sizes by tp, activations a sample, times by gpu and (mbs, tp), all-reduce inside."""

    name: str
    num_layers: int
    params: Mapping[int, Array]
    act_mem_elems: Mapping[int, Array]
    act_out_elems: Array
    times: Mapping[str, Mapping[tuple[int, int], LayerTimes]]


@dataclass(frozen=True, slots=True)
class BenchmarkGpu:
    """What a plan must know of an accelerator; an unknown price counts as 0, as in the published scorer."""

    name: str
    memory_bytes: float
    gpus_per_node: int
    price_usd_per_hour: float


class End(NamedTuple):
    """One end of a transfer: where, what, and how many accelerators of the node take part."""

    zone: str
    gpu: str
    num_gpus: int


@dataclass(frozen=True, slots=True)
class CasePoint:
    """What may be used and what is wanted; `peers` are other planners' figures, as far as the file has them."""

    id: str
    quota: Mapping[tuple[str, str], int]
    """Accelerators by (zone, gpu)."""
    minimize: Objective
    max_cost_usd: float | None
    min_iterations_per_s: float | None
    best_known: float | None
    """The best legal value of `minimize` known, where the file names one."""
    peers: Mapping[str, Mapping[Objective, float]]


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """One model and global batch [samples], over several points."""

    id: str
    model: str
    global_batch: int
    points: tuple[CasePoint, ...]


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A plan that ran on real hardware; figures the file does not give are None."""

    id: str
    model: str
    global_batch: int
    plan: BenchmarkPlan
    measured_iteration_s: float | None
    sailor_simulator_iteration_s: float | None
    note: str


@dataclass(frozen=True, slots=True)
class CaseFile:
    """All of a case file."""

    models: Mapping[str, ModelProfile]
    gpus: Mapping[str, BenchmarkGpu]
    curves: Mapping[tuple[End, End], BandwidthCurve]
    egress_usd_per_byte: Mapping[str, Mapping[str, float]]
    """By sending and receiving zone."""
    cases: tuple[TrainingCase, ...]
    measured_runs: tuple[MeasuredRun, ...]


class _Place:
    """A value of the file that knows its path, so that every complaint can name it."""

    def __init__(self, file: str, value: Any, where: str = "") -> None:
        self.file, self.value, self.where = file, value, where

    def fail(self, message: str) -> BadFile:
        return BadFile([Fault(self.file, message, where=self.where)])

    def __getitem__(self, key: str) -> _Place:
        value = self.get(key)
        if value is None:
            raise self.fail(f"required key {key!r} is missing")
        return value

    def get(self, key: str) -> _Place | None:
        """Return the value under `key`; None where it is absent or null."""
        value = self.mapping().get(key)
        return None if value is None else self._child(key, value)

    def items(self) -> Iterator[tuple[str, _Place]]:
        return ((key, self._child(key, value)) for key, value in self.mapping().items())

    def rows(self) -> list[_Place]:
        if not isinstance(self.value, list):
            raise self.fail("must be a list")
        return [self._child(str(index), value) for index, value in enumerate(self.value)]

    def mapping(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.fail("must be a mapping")
        return self.value

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.fail(f"must be text, not {self.value!r}")
        return self.value

    def number(self, *, least: float = 0.0) -> float:
        """Return a finite number of at least `least`."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.fail(f"must be a finite number, not {value!r}")
        if value < least:
            raise self.fail(f"must be at least {least:g}, not {value!r}")
        return float(value)

    def count(self, *, least: int = 0) -> int:
        value = self.number(least=least)
        if value != int(value):
            raise self.fail(f"must be a whole number, not {self.value!r}")
        return int(value)

    def array(self, length: int) -> Array:
        if not isinstance(self.value, list) or len(self.value) != length:
            raise self.fail(f"must be a list of {length} numbers, one a layer")
        try:
            array = np.asarray(self.value, dtype=float)
        except (TypeError, ValueError):
            raise self.fail("must be a list of numbers") from None
        if array.ndim != 1 or not np.isfinite(array).all() or (array < 0).any():
            raise self.fail("must be finite numbers of at least 0")
        return array

    def int_keyed(self) -> Iterator[tuple[int, _Place]]:
        for key, place in self.items():
            if not key.isdigit() or int(key) < 1:
                raise place.fail("the key must be a whole number")
            yield int(key), place

    def _child(self, key: str, value: Any) -> _Place:
        return _Place(self.file, value, f"{self.where}.{key}" if self.where else key)


def read_cases(path: str | Path) -> CaseFile:
    """Read a case file. Raises UsageError for a missing file, BadFile (naming the place) for a bad one."""
    top = _Place(str(path), read_json(path))
    models = {name: _model(name, place) for name, place in top["models"].items()}
    measured = top.get("measured_runs")
    return CaseFile(
        models=models,
        gpus={name: _gpu(name, place) for name, place in top["gpus"].items()},
        curves=dict(_curves(top["network"]["inter_node"])),
        egress_usd_per_byte={
            source: {dest: price.number() / 1e9 for dest, price in row.items()}
            for source, row in top["prices"]["egress_usd_per_GB"].items()
        },
        cases=tuple(_case(place, models, top["prices"]["egress_usd_per_GB"]) for place in top["cases"].rows()),
        measured_runs=() if measured is None else tuple(_measured(place) for place in measured.rows()),
    )


def _model(name: str, place: _Place) -> ModelProfile:
    L = place["n_layers"].count(least=1)
    return ModelProfile(
        name=name,
        num_layers=L,
        params={tp: sizes.array(L) for tp, sizes in place["params"].int_keyed()},
        act_mem_elems={tp: sizes.array(L) for tp, sizes in place["act_mem_elems"].int_keyed()},
        act_out_elems=place["act_out_elems"].array(L),
        times={gpu: dict(_times(rows, L)) for gpu, rows in place["profile"].items()},
    )


def _times(rows: _Place, L: int) -> Iterator[tuple[tuple[int, int], LayerTimes]]:
    for key, times in rows.items():
        mbs, _, tp = key.partition(",")
        if not (mbs.isdigit() and tp.isdigit()):
            raise times.fail("the key must be MBS,TP")
        yield (
            (int(mbs), int(tp)),
            LayerTimes(times["fwd_s"].array(L), times["bwd_s"].array(L), times["update_s"].array(L)),
        )


def _gpu(name: str, place: _Place) -> BenchmarkGpu:
    price = place.get("price_usd_per_hour")
    return BenchmarkGpu(
        name=name,
        memory_bytes=place["memory_GiB"].number() * 2**30,
        gpus_per_node=place["gpus_per_node"].count(least=1),
        price_usd_per_hour=0.0 if price is None else price.number(),
    )


def _curves(inter_node: _Place) -> Iterator[tuple[tuple[End, End], BandwidthCurve]]:
    for source, by_zone in _ends(inter_node):
        for dest, place in _ends(by_zone):
            curve = place["coefs"]
            yield (source, dest), BandwidthCurve(tuple(c.number(least=-math.inf) for c in curve.rows()))


def _ends(place: _Place) -> Iterator[tuple[End, _Place]]:
    for zone, by_gpu in place.items():
        for gpu, by_count in by_gpu.items():
            for num_gpus, entry in by_count.int_keyed():
                yield End(zone, gpu, num_gpus), entry


def _case(place: _Place, models: Mapping[str, ModelProfile], prices: _Place) -> TrainingCase:
    model = place["model"].text()
    if model not in models:
        raise place["model"].fail(f"no such model {model!r} (known: {', '.join(models)})")
    return TrainingCase(
        id=place["id"].text(),
        model=model,
        global_batch=place["global_batch"].count(least=1),
        points=tuple(_point(point, prices) for point in place["points"].rows()),
    )


def _point(place: _Place, prices: _Place) -> CasePoint:
    objective = place.get("minimize")
    minimize = "iteration_s" if objective is None else objective.text()
    if objective is not None and minimize not in ("iteration_s", "cost_usd"):
        raise objective.fail(f"must be iteration_s or cost_usd, not {minimize!r}")
    limits = dict(limit_keys.items()) if (limit_keys := place.get("limits")) else {}
    for name, limit in limits.items():
        if name not in ("max_cost_usd", "min_iterations_per_s"):
            raise limit.fail("unknown limit (known: max_cost_usd, min_iterations_per_s)")
    zones = place["gpus_per_zone"]
    for zone, by_gpu in zones.items():
        if any(other not in prices.mapping().get(zone, {}) for other in zones.mapping()):
            raise by_gpu.fail("no egress prices between this zone and the others (prices.egress_usd_per_GB)")
    best, results = place.get("best_known_within_quota"), place.get("results")
    value = best.get("value") if best else None
    return CasePoint(
        id=place["id"].text(),
        quota={(zone, gpu): count.count() for zone, by_gpu in zones.items() for gpu, count in by_gpu.items()},
        minimize="cost_usd" if minimize == "cost_usd" else "iteration_s",
        max_cost_usd=_limit(limits.get("max_cost_usd")),
        min_iterations_per_s=_limit(limits.get("min_iterations_per_s")),
        best_known=value.number() if value else None,
        peers={name: _peer(result) for name, result in results.items()} if results else {},
    )


def _limit(place: _Place | None) -> float | None:
    return None if place is None or place.value is None else place.number()


def _peer(place: _Place) -> dict[Objective, float]:
    figures: dict[Objective, float] = {}
    if (iteration := place.get("iteration_s")) is not None:
        figures["iteration_s"] = iteration.number()
    if (cost := place.get("cost_usd")) is not None:
        figures["cost_usd"] = cost.number()
    return figures


def _measured(place: _Place) -> MeasuredRun:
    try:
        plan = plan_from_dict(place["plan"].value)
    except ValueError as error:
        raise place["plan"].fail(str(error)) from None
    real, simulated, note = (
        place.get("measured_iteration_s"),
        place.get("sailor_simulator_iteration_s"),
        place.get("note"),
    )
    return MeasuredRun(
        id=place["id"].text(),
        model=place["model"].text(),
        global_batch=place["global_batch"].count(least=1),
        plan=plan,
        measured_iteration_s=real.number() if real else None,
        sailor_simulator_iteration_s=simulated.number() if simulated else None,
        note=note.text() if note else "",
    )
