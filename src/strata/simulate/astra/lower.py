"""From a plan to the ranks, dimensions and traces of ASTRA-sim's analytical backends, or the reason why not.

Up to three dimensions, so that each kind of traffic has links of its own and no message crosses two of them:
*stages* of a copy inside a domain, *copies* of a stage, and *domains*. Stages joined over a wide-area link, or
summing gradients over one, get the same place inside their domains: ASTRA-sim charges a message only in the
first dimension in which its ends differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise, permutations
from typing import Final, Generic, TypeVar

from strata.decision import Reason
from strata.errors import Infeasible
from strata.reasons import REASONS
from strata.simulate.analytic import StepModel
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.astra.files import MEMORY_BYTES_PER_S, AstraDimension, Scenario
from strata.simulate.astra.ns3 import Ns3Network
from strata.simulate.astra.program import (
    Key,
    Worker,
    gradient_bytes,
    message_bytes,
    microseconds,
    ring_order,
    traces,
    workers,
)
from strata.simulate.traffic import replica_wire
from strata.units import show_bandwidth, show_time
from strata.workload.job import Schedule
from strata.workload.plan import TrainingPlan


class Aggregation(StrEnum):
    """What stands for unlike links: the least favourable, the mean, or the most favourable one.

    `min` is the lowest bandwidth with the longest latency, `max` the opposite, `mean` the arithmetic means.
    """

    MIN = "min"
    MEAN = "mean"
    MAX = "max"


class Refused(Infeasible):
    """ASTRA-sim would answer this wrongly without saying so."""

    def __init__(self, *reasons: Reason) -> None:
        remedy = REASONS[reasons[0].token].remedy if reasons else None
        super().__init__(
            "ASTRA-sim cannot answer this:\n" + "\n".join(f"  {reason}" for reason in reasons), hint=remedy
        )
        self.reasons = reasons


@dataclass(frozen=True, slots=True)
class Wire:
    """What one rank has towards another: bandwidth [B/s] and one-way latency [s]."""

    bandwidth_bytes_per_s: float
    latency_s: float

    def __str__(self) -> str:
        return f"{show_bandwidth(self.bandwidth_bytes_per_s)}, {show_time(self.latency_s)}"


InputT = TypeVar("InputT", Scenario, Ns3Network)


@dataclass(frozen=True, slots=True)
class Lowered(Generic[InputT]):
    """A plan as ASTRA-sim sees it. labels: what each rank is, "" where it only fills the grid."""

    backend: AstraBackend
    scenario: InputT
    labels: tuple[str, ...]
    notes: tuple[str, ...]


KINDS: Final = ("stages", "copies", "domains")
Wires = dict[str, list[Wire]]


def lower(
    model: StepModel,
    plan: TrainingPlan,
    *,
    backend: AstraBackend | None = None,
    aggregation: Aggregation | None = None,
    links_vary: bool = False,
) -> Lowered[Scenario]:
    """Return the traces and the network of a plan, on the aware backend where one dimension is enough.

    Raises Refused with the reason where ASTRA-sim would be silently wrong. Unlike links are refused unless an
    `aggregation` is named; `links_vary` says that they are a process and no constants.
    """
    refuse_schedules(plan, links_vary=links_vary)
    refuse_unequal(plan)
    kinds = _kinds(plan)
    if backend is None:
        backend = AstraBackend.UNAWARE if len(kinds) > 1 else AstraBackend.AWARE
    merges = backend is AstraBackend.AWARE and len(kinds) > 1
    # A sum over the whole grid is ASTRA-sim's own hierarchical one; groups are rings in more than one dimension.
    whole = (
        kinds == ["copies", "domains"]
        and all(len(pipeline.stages) == 1 for pipeline in plan.pipelines)
        and plan.gradient_compression == 1
        and not merges
    )
    work = workers(model, plan, flat=whole)
    across = _across(model, plan) if whole or kinds == ["domains"] else "ring"
    wires = _wires(model, plan, across)
    rank_of: dict[Key, int]
    if merges:
        if aggregation is None:
            data = {"count": len(kinds), "dimensions": ", ".join(kinds)}
            raise Refused(Reason("astra-one-dimension", "", data))
        rank_of = {worker.key: rank for rank, worker in enumerate(work)}
        sizes = {"all links": len(work)}
        wires = {"all links": [wire for kind in kinds for wire in wires[kind]]}
    else:
        rank_of, sizes = _grid(plan, work)
    dims, notes = _dimensions(sizes, wires, aggregation, across)
    planned_sum = model.all_reduce(plan)
    if planned_sum is not None and planned_sum.algorithm != across:
        notes.append(f"sums between domains are a {across} here; the analytic model takes {planned_sum.algorithm}")
    num_ranks = math.prod(dim.size for dim in dims)
    rank_traces, groups = traces(work, rank_of, num_ranks=num_ranks, num_dims=len(dims))
    label_of = {rank_of[worker.key]: worker.label for worker in work}
    labels = tuple(label_of.get(rank, "") for rank in range(num_ranks))
    scenario = Scenario(dims, rank_traces, groups, memory_bytes_per_s(model, plan))
    return Lowered(backend, scenario, labels, (*notes, *common_notes(model, plan)))


def refuse_schedules(plan: TrainingPlan, *, links_vary: bool) -> None:
    """Raise Refused for what no trace of one step holds."""
    reasons = []
    if links_vary:
        reasons.append(Reason("astra-links-vary"))
    if plan.schedule is Schedule.DUAL_PIPE_V:
        reasons.append(Reason("astra-schedule", "", {"what": f"{plan.schedule}, folded and overlapped,"}))
    elif plan.virtual_stages > 1 or plan.schedule is Schedule.INTERLEAVED:
        reasons.append(Reason("astra-schedule", "", {"what": "an interleaved schedule"}))
    if plan.schedule is Schedule.ZERO_BUBBLE:
        reasons.append(Reason("astra-schedule", "", {"what": f"{plan.schedule}, with weight gradients apart,"}))
    if plan.zero_stage > 1 and any(plan.state_shards(pipeline) > 1 for pipeline in plan.pipelines):
        what = f"what ZeRO stage {plan.zero_stage} exchanges for every microbatch"
        reasons.append(Reason("astra-schedule", "", {"what": what}))
    reasons += [Reason("astra-schedule", "", {"what": what}) for what in plan.refinements]
    if plan.local_steps > 1:
        reasons.append(Reason("astra-schedule", "", {"what": f"DiLoCo with {plan.local_steps} local steps"}))
    if reasons:
        raise Refused(*reasons)


def refuse_unequal(plan: TrainingPlan, *, copies_may_differ: bool = False) -> None:
    """Raise Refused where pipelines that sum their gradients are not alike."""
    cuts = {
        tuple((stage.first_layer, stage.num_layers) for stage in pipeline.stages) for pipeline in plan.pipelines
    }
    copies = sorted({pipeline.replicas for pipeline in plan.pipelines})
    if len(cuts) > 1:
        values = "; ".join("+".join(str(count) for _, count in cut) for cut in sorted(cuts))
        raise Refused(Reason("astra-unequal-domains", "", {"what": "layers a stage", "values": values}))
    if len(copies) > 1 and not copies_may_differ:
        values = ", ".join(map(str, copies))
        raise Refused(Reason("astra-unequal-domains", "", {"what": "copies", "values": values}))


def _kinds(plan: TrainingPlan) -> list[str]:
    """Return the kinds of traffic there are."""
    cuts = [pair for pipeline in plan.pipelines for pair in pairwise(pipeline.stages)]
    there = (
        any(here.domain == after.domain for here, after in cuts),
        any(pipeline.replicas > 1 for pipeline in plan.pipelines),
        len(plan.domains) > 1,
    )
    return [kind for kind, is_there in zip(KINDS, there, strict=True) if is_there]


def _wires(model: StepModel, plan: TrainingPlan, across: str) -> Wires:
    """Return the links each kind of traffic takes, one entry a use."""
    wires: Wires = {kind: [] for kind in KINDS}
    for p, pipeline in enumerate(plan.pipelines):
        times = model.times(plan, pipeline)
        for size, *both in zip(message_bytes(model, plan, pipeline), times.there, times.back, strict=True):
            for hop in both:
                wire = Wire(size / hop.serial_s, hop.latency_s)
                wires["domains" if hop.wan_bytes else "stages"].append(wire)
        if pipeline.replicas > 1:
            wires["copies"] += copy_wires(model, plan, p)
    ring = ring_order(model.fleet, plan)
    pairs = permutations(ring, 2) if across == "direct" else pairwise((*ring, ring[0]))
    for here, there in pairs:
        wires["domains"] += _sum_wires(model, plan, here, there)
    return wires


def _across(model: StepModel, plan: TrainingPlan) -> str:
    """Return the algorithm of sums between domains, as the analytic model chose it where ASTRA-sim has it."""
    chosen = model.all_reduce(plan)
    return "direct" if chosen is not None and chosen.algorithm == "direct" else "ring"


def copy_wires(model: StepModel, plan: TrainingPlan, p: int) -> list[Wire]:
    """Return the wire of each stage of a pipeline towards its copies, all its devices together."""
    pipeline, hop_wires = plan.pipelines[p], []
    for stage in pipeline.stages:
        devices = sum(other.tensor_parallel for other in pipeline.stages if other.domain == stage.domain)
        domain = model.fleet.domain(stage.domain)
        bandwidth, latency = replica_wire(domain, replicas=pipeline.replicas, copy_devices=devices)
        hop_wires.append(Wire(bandwidth * stage.tensor_parallel, latency))
    return hop_wires


def _sum_wires(model: StepModel, plan: TrainingPlan, here: int, there: int) -> list[Wire]:
    """Return what a rank has of the links between two pipelines that sum their gradients.

    All ranks that cross a link share it; with the share of the largest message, that one ends when all bytes
    have crossed.
    """
    source, dest = plan.pipelines[here], plan.pipelines[there]
    pairs: dict[tuple[str, str], list[float]] = {}
    for s, (a, b) in enumerate(zip(source.stages, dest.stages, strict=True)):
        if a.domain != b.domain:
            pairs.setdefault((a.domain, b.domain), []).append(gradient_bytes(model, source, s))
    sum_wires = []
    for (a_name, b_name), sizes in pairs.items():
        link = model.fleet.link(a_name, b_name)
        if link is None:
            raise Refused(Reason("link-missing", "", {"source": a_name, "dest": b_name}))
        share = max(sizes) / (sum(sizes) * source.replicas) if sum(sizes) else 1.0
        sum_wires.append(Wire(link.bandwidth_bytes_per_s * share, link.latency_s))
    return sum_wires


def _grid(plan: TrainingPlan, work: Sequence[Worker]) -> tuple[dict[Key, int], dict[str, int]]:
    """Return the rank of each worker and the size of each kind of dimension."""
    domains = {name: index for index, name in enumerate(plan.domains)}
    place = _places(plan)
    sizes = dict(zip(KINDS, (max(place.values()) + 1, max(p.replicas for p in plan.pipelines), len(domains)),
                     strict=True))  # fmt: skip
    ranks = {}
    for worker in work:
        p, copy, s = worker.key
        ranks[worker.key] = place[p, s] + sizes["stages"] * (copy + sizes["copies"] * domains[worker.domain])
    return ranks, sizes


def _places(plan: TrainingPlan) -> dict[tuple[int, int], int]:
    """Return the place of each (pipeline, stage) in its domain, the same for all that meet over a WAN."""
    stage_of = {(p, s): stage for p, pipeline in enumerate(plan.pipelines)
                for s, stage in enumerate(pipeline.stages)}  # fmt: skip
    together = {key: [key] for key in stage_of}

    def join(first: tuple[int, int], other: tuple[int, int]) -> None:
        if together[first] is not together[other]:
            merged = together[first] + together[other]
            for key in merged:
                together[key] = merged

    for (p, s), stage in stage_of.items():
        after = stage_of.get((p, s + 1))
        if after is not None and after.domain != stage.domain:
            join((p, s), (p, s + 1))
        if p:
            join((0, s), (p, s))
    places: dict[tuple[int, int], int] = {}
    taken: dict[str, set[int]] = {stage.domain: set() for stage in stage_of.values()}
    for met in together.values():
        if met[0] in places:
            continue
        names = [stage_of[key].domain for key in met]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            source, dest = [f"pipeline {p} stage {s} ({twice})" for p, s in met
                            if stage_of[p, s].domain == twice][:2]  # fmt: skip
            raise Refused(Reason("astra-diagonal", "", {"source": source, "dest": dest}))
        place = next(i for i in range(len(stage_of)) if all(i not in taken[name] for name in names))
        for key, name in zip(met, names, strict=True):
            places[key] = place
            taken[name].add(place)
    return places


def _dimensions(
    sizes: dict[str, int], wires: Wires, aggregation: Aggregation | None, across: str
) -> tuple[tuple[AstraDimension, ...], list[str]]:
    dims, notes = [], []
    for kind, size in sizes.items():
        if size == 1:
            continue
        wire, note = merge(kind, wires[kind], aggregation)
        notes += [note] if note else []
        algorithm = across if kind == "domains" else "ring"
        dims.append(AstraDimension(size, wire.bandwidth_bytes_per_s, wire.latency_s, algorithm=algorithm))
    if not dims:  # a plan of one rank; ASTRA-sim knows no network of one
        dims.append(AstraDimension(2, 2.0**30, 0.0))
    return tuple(dims), notes


def merge(kind: str, wires: Sequence[Wire], aggregation: Aggregation | None) -> tuple[Wire, str]:
    """Return the one wire that stands for all of a kind, and a sentence where it is not each of them."""
    speeds = [wire.bandwidth_bytes_per_s for wire in wires]
    delays = [wire.latency_s for wire in wires]
    worst, best = Wire(min(speeds), max(delays)), Wire(max(speeds), min(delays))
    if math.isclose(min(speeds), max(speeds), rel_tol=1e-9) and math.isclose(
        min(delays), max(delays), rel_tol=1e-9
    ):
        return worst, ""
    if aggregation is None:
        data = {"dimension": kind, "low": str(worst), "high": str(best)}
        raise Refused(Reason("astra-links-differ", "", data))
    mean = Wire(math.fsum(speeds) / len(speeds), math.fsum(delays) / len(delays))
    chosen = {Aggregation.MIN: worst, Aggregation.MEAN: mean, Aggregation.MAX: best}[aggregation]
    return chosen, f"{kind}: links from {worst} to {best} are all taken as {chosen} ({aggregation})"


def memory_bytes_per_s(model: StepModel, plan: TrainingPlan) -> float:
    """Return the memory bandwidth a rank's reductions are charged to: that of the slowest stage's devices."""

    def of(domain: str, devices: int) -> float:
        card = model.fleet.domain(domain).accelerator
        known = card.memory_bandwidth_measured_bytes_per_s or card.memory_bandwidth_bytes_per_s
        return (known or MEMORY_BYTES_PER_S) * devices

    return min(of(stage.domain, stage.tensor_parallel) for item in plan.pipelines for stage in item.stages)


def common_notes(model: StepModel, plan: TrainingPlan) -> Iterable[str]:
    """Return what every ASTRA-sim backend does otherwise than ours."""
    if any(len(pipeline.stages) > 1 for pipeline in plan.pipelines):
        yield "a rank sends one message at a time, until it has arrived: long links look worse than they are"
    times = [model.times(plan, pipeline) for pipeline in plan.pipelines]
    spans = [span for item in times for span in (*item.forward_s, *item.backward_s) if span > 0]
    error = max((abs(microseconds(span) / 1e6 - span) / span for span in spans), default=0.0)
    if error > 1e-3:
        yield f"computing is rounded to microseconds, up to {error:.1%} of a pass"
