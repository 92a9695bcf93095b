"""The search: bound all structures, split the promising ones, lay them out over zones, improve.

1. Structures (how many stages of which kinds) are bounded for every useful microbatch size and number of
   replicas at once.
2. In order of their bounds, until no bound is below the best plan, the orders of each are split into layers.
3. The best pipelines are laid out over zones and scored by the neutral formulas, which alone decide.
4. Neighbours of the best (a stage of another kind, one more or one less, two swapped) are tried likewise:
   they reach orders and mixtures which no structure covers.

Nothing is kept between points, so a plan for what is left after a shrink is as good as a first plan.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from strata.evaluation.published_benchmarks.case_file import CasePoint
from strata.evaluation.published_benchmarks.formulas import FormulaScore, FormulaScorer
from strata.evaluation.published_benchmarks.plan import BenchmarkPlan
from strata.evaluation.published_benchmarks.search.layer_split import SplitBatch, Splitter
from strata.evaluation.published_benchmarks.search.objective import PointObjective
from strata.evaluation.published_benchmarks.search.promises import Promise, Promises
from strata.evaluation.published_benchmarks.search.stage_kinds import KindTable, QuotaPools, Rings
from strata.evaluation.published_benchmarks.search.structures import (
    MAX_GROUPS,
    StructureBounds,
    Structures,
    enumerate_structures,
    most_replicas,
    orders,
)
from strata.evaluation.published_benchmarks.search.zones import UnplacedPipeline, layouts

NUM_LAID_OUT: Final = 24
MAX_TRIED: Final = 1000
"""Splits laid out at most before the next look, those counted that miss a limit once their zones are named."""
NUM_SETTLED: Final = 6
NUM_IMPROVED: Final = 5
MAX_ROUNDS: Final = 6


class StageSequence(NamedTuple):
    """A sequence of stages to be split: the kinds by number in one table, and the replicas."""

    table: int
    kinds: tuple[int, ...]
    replicas: int


class SplitPipeline(NamedTuple):
    """A split pipeline and its objective: estimated at first, scored once it is laid out."""

    value: float
    table: int
    pipeline: UnplacedPipeline


@dataclass(frozen=True, slots=True)
class PointResult:
    """The plan for one point and its score, or why there is none."""

    plan: BenchmarkPlan | None
    score: FormulaScore | None
    reason: str
    num_evaluated: int
    bound: float | None
    """No plan of at most MAX_GROUPS kinds of stages, one of them mixed, has a lower value of the objective.

    None where the plan found has more kinds, and where there is none."""


def search_point(scorer: FormulaScorer, point: CasePoint) -> PointResult:
    """Return the best plan found for one point, within its quota and limits."""
    goal = PointObjective.of(point)
    search = _PointSearch(scorer, point, goal)
    search.run()
    reason = ""
    if search.plan is None:
        reason = search.retry(goal.relaxed()) if goal.is_limited else "no pipeline over the quota fits memory"
    if not search.tables:
        reason = "no accelerator of the quota has a profile of this model that fits a zone"
    # A plan below the bound mixes more kinds than the structures that were bounded: then there is no bound.
    is_bounded = search.plan is not None and search.bound <= search.best * (1 + 1e-9)
    return PointResult(
        plan=search.plan,
        score=search.score,
        reason=reason,
        num_evaluated=search.num_evaluated,
        bound=min(search.bound, search.best) if is_bounded else None,
    )


class _PointSearch:
    def __init__(self, scorer: FormulaScorer, point: CasePoint, goal: PointObjective) -> None:
        pools = QuotaPools({key: n for key, n in point.quota.items() if key[1] in scorer.file.gpus})
        sizes = sorted({mbs for rows in scorer.model.times.values() for mbs, _ in rows})
        tables = [KindTable(scorer, pools, mbs) for mbs in sizes] if pools.names else []
        self.scorer, self.point, self.goal = scorer, point, goal
        self.tables = [table for table in tables if table.kinds]
        self.rings = [Rings(table) for table in self.tables]
        self.splitters = [Splitter(table, rings) for table, rings in zip(self.tables, self.rings, strict=True)]
        self.bounds = [StructureBounds(table) for table in self.tables]
        self.samples = [-(-scorer.global_batch // table.mbs) for table in self.tables]
        self.degrees = [_degrees(samples) for samples in self.samples]
        self.plan: BenchmarkPlan | None = None
        self.score: FormulaScore | None = None
        self.best = self.bound = math.inf
        self.num_evaluated = 0
        self.seen: set[StageSequence] = set()
        self.estimated: list[SplitPipeline] = []
        self.scored: list[SplitPipeline] = []

    def run(self) -> None:
        for num_groups in range(1, MAX_GROUPS + 1):
            promises = self._promises(num_groups)
            self.bound = min(self.bound, promises.least)
            for chunk in promises.chunks():
                if chunk[0].bound >= self.best:
                    break
                self._examine(chunk)
        self._improve()

    def retry(self, relaxed: PointObjective) -> str:
        """Look for a first plan under a relaxed goal and improve it; return why there is none, if so."""
        other = _PointSearch(self.scorer, self.point, relaxed)
        other.run()
        self.num_evaluated += other.num_evaluated
        if other.score is None or other.plan is None:
            return "no plan over the quota meets the limits"
        if not self.goal.admits(other.score):
            return f"no plan over the quota meets the limits: the best {relaxed.describe(other.score)}"
        self.best, self.plan, self.score = self.goal.value(other.score), other.plan, other.score
        self.scored = [split._replace(value=self.best) for split in sorted(other.scored)[:1]]
        self._improve()
        return ""

    def _improve(self) -> None:
        for _ in range(MAX_ROUNDS):
            before = self.best
            self._split(self._neighbours())
            self._lay_out()
            if self.best >= before:
                break
        self._settle()

    def _promises(self, num_groups: int) -> Promises:
        """Bound the structures of so many kinds for every useful number of replicas; keep what may improve."""
        promises = Promises()
        for t, (table, bounds) in enumerate(zip(self.tables, self.bounds, strict=True)):
            structures = self._screened(t, enumerate_structures(table, num_groups))
            busiest_s = bounds.busiest_s(structures)
            structures, busiest_s = structures.take(np.isfinite(busiest_s)), busiest_s[np.isfinite(busiest_s)]
            pipeline_s, shards = bounds.pipeline_s(structures), bounds.shards(structures)
            replicas, replica_usd_per_s = most_replicas(table, structures), bounds.usd_per_s(structures)
            for D in self._degrees(t, int(replicas.max(initial=0))):
                nb = -(-self.samples[t] // D)
                time = (nb - 1) * busiest_s + pipeline_s + self.rings[t].shared_s(D)[shards]
                rows = np.flatnonzero((replicas >= D) & (time < self.goal.deadline_s(self.best)))
                time, usd_per_s = time[rows], replica_usd_per_s[rows] * D
                egress_usd = bounds.egress_usd(
                    structures.take(rows), np.full(len(rows), D), np.full(len(rows), nb)
                )
                keep = time < self.goal.longest_s(usd_per_s, egress_usd, self.best)
                values = self.goal.values(time, usd_per_s, egress_usd)
                promises.add(t, structures, D, rows[keep], values[keep])
        return promises

    def _screened(self, t: int, structures: Structures) -> Structures:
        """Drop structures that quick bounds rule out whatever the number of replicas."""
        table, bounds, samples = self.tables[t], self.bounds[t], self.samples[t]
        replicas, ideal_s = most_replicas(table, structures), bounds.ideal_s(structures)
        fewest = -(-samples // np.maximum(replicas, 1))
        # D replicas take at least ideal * nb, and D * nb microbatches at least cover the samples.
        keep = (replicas > 0) & (fewest * ideal_s < self.goal.deadline_s(self.best))
        keep &= samples * ideal_s * bounds.usd_per_s(structures) < self.goal.budget_usd(self.best)
        structures, fewest = structures.take(keep), fewest[keep]
        least_s = (fewest - 1) * bounds.smooth_s(structures) + bounds.pipeline_s(structures)
        return structures.take(least_s < self.goal.deadline_s(self.best))

    def _degrees(self, table: int, most: int) -> list[int]:
        """Return the numbers of replicas worth trying, `most` at most."""
        degrees = self.degrees[table]
        return degrees[: bisect.bisect_right(degrees, most)]

    def _examine(self, promises: list[Promise]) -> None:
        self._split(
            StageSequence(p.table, sequence, p.replicas)
            for p in promises
            if p.bound < self.best
            for sequence in orders(self.tables[p.table], p.kinds, p.counts)
        )
        self._lay_out()

    def _split(self, candidates: Iterable[StageSequence]) -> None:
        """Split candidates into layers, all of one table and length at once; keep what may improve."""
        groups: dict[tuple[int, int], list[StageSequence]] = defaultdict(list)
        for candidate in candidates:
            if candidate not in self.seen:
                self.seen.add(candidate)
                groups[candidate.table, len(candidate.kinds)].append(candidate)
        for (t, S), group in groups.items():
            table = self.tables[t]
            kinds = np.array([c.kinds for c in group], dtype=np.int64)
            replicas = np.array([c.replicas for c in group], dtype=np.int64)
            possible = table.layers_fitting[kinds, np.arange(S, 0, -1)].sum(axis=1) >= table.num_layers
            possible &= np.isfinite(table.send_s[kinds[:, :-1], kinds[:, 1:]]).all(axis=(1, 2))
            possible &= np.isfinite(table.send_s[kinds[:, 1:], kinds[:, :-1]]).all(axis=(1, 2))
            if not possible.any():
                continue
            kinds, replicas = kinds[possible], replicas[possible]
            batch = SplitBatch(kinds, replicas, -(-self.samples[t] // replicas))
            usd_per_s = table.usd_per_s[kinds].sum(axis=1) * replicas
            egress_usd = self.bounds[t].egress_usd(
                Structures(kinds.T, np.ones_like(kinds.T)), replicas, batch.num_microbatches
            )
            longest_s = self.goal.longest_s(usd_per_s, egress_usd, self.best)
            time, first = self.splitters[t].best(batch, keep_within_s=longest_s)
            self.num_evaluated += len(batch)
            values = self.goal.values(time, usd_per_s, egress_usd)
            for row in np.flatnonzero(time < longest_s):
                pipeline = UnplacedPipeline(
                    tuple(kinds[row].tolist()), tuple(first[row].tolist()), int(replicas[row])
                )
                self.estimated.append(SplitPipeline(float(values[row]), t, pipeline))

    def _lay_out(self) -> None:
        """Lay out the most promising splits over zones, until one is better than all the others promise."""
        self.estimated = sorted(split for split in self.estimated if split.value < self.best)
        laid_out = tried = 0
        for split in self.estimated:
            if split.value >= self.best or laid_out >= NUM_LAID_OUT or tried >= MAX_TRIED:
                break
            tried += 1
            value = self._score(split, thorough=False)
            if math.isfinite(value):
                laid_out += 1
                self.scored.append(split._replace(value=value))
        del self.estimated[:tried]

    def _settle(self) -> None:
        """Try every order of zones for the best pipelines."""
        for split in sorted(self.scored)[:NUM_SETTLED]:
            self._score(split, thorough=True)

    def _score(self, split: SplitPipeline, *, thorough: bool) -> float:
        value = math.inf
        for plan in layouts(self.tables[split.table], split.pipeline, thorough=thorough):
            score = self.scorer.score(plan)
            self.num_evaluated += 1
            if self.goal.admits(score):
                value = min(value, self.goal.value(score))
                if self.goal.value(score) < self.best:
                    self.best, self.plan, self.score = self.goal.value(score), plan, score
        return value

    def _neighbours(self) -> Iterator[StageSequence]:
        """Yield what is one step from the best pipelines, in every table and with nearby numbers of replicas."""
        for split in sorted(self.scored)[:NUM_IMPROVED]:
            source = self.tables[split.table].kinds
            names = tuple(source[k] for k in split.pipeline.kinds)
            for t, table in enumerate(self.tables):
                number = {kind: k for k, kind in enumerate(table.kinds)}
                if not all(name in number for name in names):
                    continue
                sequences = sorted(
                    _steps(tuple(number[name] for name in names), len(table.kinds), table.num_layers)
                )
                for S in {len(sequence) for sequence in sequences}:
                    rows = np.array([q for q in sequences if len(q) == S], dtype=np.int64)
                    most = most_replicas(table, Structures(rows.T, np.ones_like(rows.T)))
                    for row, replicas in zip(rows.tolist(), most.tolist(), strict=True):
                        for D in self._nearby(t, split.pipeline.replicas, replicas):
                            yield StageSequence(t, tuple(row), D)

    def _nearby(self, table: int, replicas: int, most: int) -> list[int]:
        if most < 1:
            return []
        degrees = self._degrees(table, most)
        here = min(range(len(degrees)), key=lambda i: abs(degrees[i] - replicas))
        return sorted({*degrees[-2:], *degrees[max(here - 1, 0) : here + 2]})


def _degrees(samples: int) -> list[int]:
    """Return the least number of replicas for each possible number of microbatches."""
    return sorted({-(-samples // -(-samples // D)) for D in range(1, samples + 1)})


def _steps(kinds: tuple[int, ...], num_kinds: int, longest: int) -> set[tuple[int, ...]]:
    """Return the sequences one change away: another kind, a stage more, a stage less, two swapped; and itself."""
    S, sequences = len(kinds), {kinds}
    for i in range(S + 1):
        for k in range(num_kinds):
            sequences.add((*kinds[:i], k, *kinds[i:]))
            if i < S:
                sequences.add((*kinds[:i], k, *kinds[i + 1 :]))
        sequences.add((*kinds[:i], *kinds[i + 1 :]))
    for i, j in itertools.combinations(range(S), 2):
        swapped = list(kinds)
        swapped[i], swapped[j] = swapped[j], swapped[i]
        sequences.add(tuple(swapped))
    return {sequence for sequence in sequences if 0 < len(sequence) <= longest}
