"""The neutral formulas: what a plan over measured profiles costs, the same for every planner.

They are those of Sailor's simulator (arXiv 2504.17096 section 4.3, eth-easl/sailor
`runtime_simulator.py`), with which `training_cases.json` scores all planners. With c_i the slowest
replica's layer times in stage i, m_i its transfers and nb = ceil(global batch / (mbs D)):

    T = (nb-1) max_i(c_i + m_i) + sum_i(c_i + m_i) + max update + max_i ring all-reduce_i

Plans are kept as runs of equal replicas, so a plan over 512 accelerators costs what a plan over 8 does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from strata.evaluation.published_benchmarks.case_file import CaseFile, End
from strata.evaluation.published_benchmarks.plan import BenchmarkPlan, BenchmarkStage, ReplicaRun

ELEMENT_BYTES: Final = 4
BUCKET_BYTES: Final = 500_000_000
"""The ring all-reduce sends gradients in buckets of this size."""
STATE_BYTES_PER_PARAM: Final = 24
"""Adam 8, master copy 4, gradient 4, communication 4, DeepSpeed 4."""
RING_TP: Final = 4
"""Tensor-parallel shards past this many do not make the ring all-reduce smaller."""


def overhead_bytes(tp: int) -> float:
    """Return the memory a worker needs beside its layers [bytes]."""
    return 2.0e9 if tp == 1 else 3.0e9


def region(zone: str) -> str:
    """Return the region of a zone: us-central1-a lies in us-central1."""
    return zone.rsplit("-", 1)[0]


@dataclass(frozen=True, slots=True)
class FormulaScore:
    """What the formulas say of one plan; infinite times where two neighbours have no measured curve."""

    iteration_s: float
    sync_s: float
    num_microbatches: int
    gpu_usd: float
    egress_usd: float
    gpus_used: int
    fits_memory: bool
    crosses_regions: bool
    """Whether some stage's ring spans regions, which these formulas flatter: such a plan is not legal."""

    @property
    def cost_usd(self) -> float:
        """Return the money one iteration takes."""
        return self.gpu_usd + self.egress_usd


class FormulaScorer:
    """The formulas for one model and global batch; transfers are remembered between plans."""

    def __init__(self, file: CaseFile, model: str, global_batch: int) -> None:
        self.file, self.model, self.global_batch = file, file.models[model], global_batch
        self._transfers: dict[tuple[str, str, int, str, str, int, float], float] = {}

    def score(self, plan: BenchmarkPlan) -> FormulaScore:
        """Score a plan. Raises KeyError where it names a (gpu, mbs, tp) without a profile."""
        stages, S, D = plan.stages, len(plan.stages), plan.stages[0].num_replicas
        nb = math.ceil(self.global_batch / (plan.mbs * D))
        compute, update_s, fits = [], 0.0, True
        for i, stage in enumerate(stages):
            slowest = 0.0
            for gpu, tp in {(run.gpu, run.tp) for run in stage.runs}:
                times = self.model.times[gpu][plan.mbs, tp]
                layers = slice(stage.first, stage.last + 1)
                slowest = max(slowest, float(times.forward_s[layers].sum() + times.backward_s[layers].sum()))
                update_s = max(update_s, float(times.update_s[stage.first]))
                need = self.memory_bytes(stage.first, stage.last, tp, mbs=plan.mbs, stages_left=S - i)
                fits = fits and need <= self.file.gpus[gpu].memory_bytes
            compute.append(slowest)
        sending = self._sending(plan)
        busiest = max(c + m for c, m in zip(compute, sending, strict=True))
        sync_s = max(self._ring_s(stage, D) for stage in stages)
        iteration_s = (nb - 1) * busiest + sum(sending) + sum(compute) + update_s + sync_s
        runs = [run for stage in stages for run in stage.runs]
        usd_per_s = sum(self.file.gpus[r.gpu].price_usd_per_hour * r.tp * r.num_replicas for r in runs) / 3600
        return FormulaScore(
            iteration_s=iteration_s,
            sync_s=sync_s,
            num_microbatches=nb,
            gpu_usd=usd_per_s * iteration_s if usd_per_s else 0.0,
            egress_usd=self._egress_usd(plan, nb),
            gpus_used=sum(r.tp * r.num_replicas for r in runs),
            fits_memory=fits,
            crosses_regions=any(len({region(run.zone) for run in stage.runs}) > 1 for stage in stages),
        )

    def memory_bytes(self, first: int, last: int, tp: int, *, mbs: int, stages_left: int) -> float:
        """Return one worker's peak memory [bytes]; a stage holds as many microbatches as stages are left."""
        params = float(self.model.params[tp][first : last + 1].sum())
        activations = float(self.model.act_mem_elems[tp][first : last + 1].sum())
        held = activations * mbs * ELEMENT_BYTES * stages_left
        return params * STATE_BYTES_PER_PARAM + held + overhead_bytes(tp)

    def transfer_s(
        self, source: ReplicaRun, dest: ReplicaRun, num_bytes: float, *, tp: tuple[int, int] | None = None
    ) -> float:
        """Return one message's time between two replicas [s]; `tp` overrides how many accelerators take part."""
        n1, n2 = tp or (source.tp, dest.tp)
        key = (source.zone, source.gpu, n1, dest.zone, dest.gpu, n2, num_bytes)
        known = self._transfers.get(key)
        if known is None:
            gpus = self.file.gpus
            a = End(source.zone, source.gpu, min(n1, gpus[source.gpu].gpus_per_node))
            b = End(dest.zone, dest.gpu, min(n2, gpus[dest.gpu].gpus_per_node))
            curve = self.file.curves.get((a, b))
            known = math.inf if curve is None else curve.transfer_s(num_bytes)
            self._transfers[key] = known
        return known

    def _sending(self, plan: BenchmarkPlan) -> list[float]:
        """Return m_i [s] of each stage: activations forward, gradients back, the slowest replica of each."""
        stages, S = plan.stages, len(plan.stages)
        sample = plan.mbs * ELEMENT_BYTES
        forward, back = [0.0] * S, [0.0] * S
        for i in range(S - 1):
            act = float(self.model.act_out_elems[stages[i].last]) * sample
            grad = float(self.model.act_out_elems[stages[i + 1].first]) * sample
            for a, b, _ in pairs(stages[i], stages[i + 1]):
                forward[i] = max(forward[i], self.transfer_s(a, b, act))
                back[i + 1] = max(back[i + 1], self.transfer_s(b, a, grad))
        if S == 1:
            return [0.0]
        first = forward[0] if S <= 3 else 2 * forward[0]
        return [first, *(forward[i] + back[i] for i in range(1, S - 1)), 2 * back[-1]]

    def _ring_s(self, stage: BenchmarkStage, D: int) -> float:
        if D <= 1:
            return 0.0
        shards = min(RING_TP, *(run.tp for run in stage.runs))
        left = self._stage_bytes(stage) / shards
        full, rest = divmod(left, BUCKET_BYTES)
        total = 0.0
        for a, b in _neighbours(stage):
            time = full * self.transfer_s(a, b, BUCKET_BYTES / D, tp=(1, 1))
            if rest:
                time += self.transfer_s(a, b, rest / D, tp=(1, 1))
            total = max(total, 2 * (D - 1) * time)
        return total

    def _stage_bytes(self, stage: BenchmarkStage) -> float:
        return float(self.model.params[1][stage.first : stage.last + 1].sum()) * ELEMENT_BYTES

    def _egress_usd(self, plan: BenchmarkPlan, nb: int) -> float:
        price, total = self.file.egress_usd_per_byte, 0.0
        D = plan.stages[0].num_replicas
        for stage, after in zip(plan.stages, plan.stages[1:], strict=False):
            act = float(self.model.act_out_elems[stage.last]) * ELEMENT_BYTES * plan.mbs * nb
            for a, b, count in pairs(stage, after):
                total += (price[a.zone][b.zone] + price[b.zone][a.zone]) * act * count
        if D == 1:
            return total
        for stage in plan.stages:
            runs, share = stage.runs, self._stage_bytes(stage) / D * 2 * (D - 1)
            for run, after_run in zip(runs, (*runs[1:], runs[0]), strict=True):
                inside = price[run.zone][run.zone] * (run.num_replicas - 1)
                total += (inside + price[run.zone][after_run.zone]) * share
        return total


def pairs(a: BenchmarkStage, b: BenchmarkStage) -> Iterator[tuple[ReplicaRun, ReplicaRun, int]]:
    """Yield the pairs of replicas of equal index, as (run of a, run of b, how many such pairs)."""
    i = j = 0
    left_a, left_b = a.runs[0].num_replicas, b.runs[0].num_replicas
    while True:
        count = min(left_a, left_b)
        yield a.runs[i], b.runs[j], count
        left_a, left_b = left_a - count, left_b - count
        if not left_a:
            i += 1
            if i == len(a.runs):
                return
            left_a = a.runs[i].num_replicas
        if not left_b:
            j += 1
            left_b = b.runs[j].num_replicas


def _neighbours(stage: BenchmarkStage) -> Iterator[tuple[ReplicaRun, ReplicaRun]]:
    """Yield the kinds of pairs next to each other in the ring; its closing pair is not timed, as published."""
    for run, after in zip(stage.runs, (*stage.runs[1:], None), strict=True):
        if run.num_replicas > 1:
            yield run, run
        if after is not None:
            yield run, after
