"""How the step time of a plan answers the state of the links and the load of its domains, in closed form.

The cost model is asked once per plan, at nominal links; from then on a plan is a row of a few numbers:

    T = slow A + Σ_l (a_l / f_l + w_l) + max(0, max_l (m_l / f_l) + y - slow O)

f_l is what is left of the bandwidth of link l, slow >= 1 the largest load factor of the domains. One domain:
only A. Pipelines: a, w are serialisation and latency of fill and drain, m = (M-1) x the wire time of a
microbatch, O = (M-1) x what a stage computes meanwhile (GPipe and latency-aware 1F1B hide latency; classic
1F1B pays both, docs/cost-model.md). Data parallel: m is the bytes each link carries in a sum / B, y its
latencies, O the last backward, all three / H. A makes T at nominal links what the cost model says.

A link is a pair of domains: both directions share one state. Away from nominal links this is a model of a
model: warm-ups, ring orders and shares stay those chosen at nominal links, as they would in a running job, where
the cost model picks the best ring anew; so sums between domains look slower here when few of their links are bad.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from array_api_compat import array_namespace

from strata.arrays import Floats, Ints
from strata.fleet.fleet import Fleet
from strata.simulate.analytic import StepModel
from strata.simulate.collective import eta
from strata.simulate.pipeline_times import PipelineTimes
from strata.training.environment.network import scaled
from strata.workload.job import Schedule
from strata.workload.plan import Pipeline, TrainingPlan

BAD: Final = 0.25
"""Share of nominal bandwidth at which the rows of pipelines are made to meet the cost model once more."""


MOST_WAITING: Final = 0.98
"""Of a step at nominal links, what a row may lay at the door of its links."""


def pair_numbers(num_domains: int) -> Ints:
    """Return the number of each pair of domains [K, K], symmetric, 0 on the diagonal; K (K-1) / 2 pairs."""
    numbers = np.zeros((num_domains, num_domains), dtype=np.int64)
    upper = np.triu_indices(num_domains, 1)
    numbers[upper] = np.arange(len(upper[0]))
    return numbers + numbers.T


def step_s(
    compute_s: Any, hidden_s: Any, serial_s: Any, steady_s: Any, wait_s: Any, lag_s: Any, inverse: Any,
    *, slow: Any = 1.0,
) -> Any:  # fmt: skip
    """Return T: A, O and y [..., P], a, m, w and 1 / f [..., P, links]; see the formula of this file.

    All arrays are NumPy's, or all torch's.
    """
    crossing = (serial_s * inverse + wait_s).sum(axis=-1)
    exposed = array_namespace(steady_s).max(steady_s * inverse, axis=-1) + lag_s - slow * hidden_s
    return slow * compute_s + crossing + exposed.clip(0.0)


@dataclass(frozen=True, eq=False, slots=True)
class PlanResponse:
    """P plans of one job on one fleet as rows of the formula; links padded to the most that a plan uses.

    compute_s, hidden_s, lag_s      [P]     A, O and y (at nominal latency) [s]
    pair                            [P, l]  number of each link used (`pair_numbers`), -1 for padding, last
    serial_s, steady_s, wait_s      [P, l]  a, m and w at nominal links [s], 0 for padding
    """

    compute_s: Floats
    hidden_s: Floats
    lag_s: Floats
    pair: Ints
    serial_s: Floats
    steady_s: Floats
    wait_s: Floats

    @classmethod
    def of(cls, model: StepModel, plans: Sequence[TrainingPlan]) -> PlanResponse:
        """Return the rows of some plans."""
        rows = [_terms(model, plan) for plan in plans]
        width = max(1, *(len(row.links) for row in rows))
        links = np.zeros((3, len(rows), width))
        pair = np.full((len(rows), width), -1, dtype=np.int64)
        for p, row in enumerate(rows):
            for slot, (number, figures) in enumerate(sorted(row.links.items())):
                pair[p, slot], links[:, p, slot] = number, figures
        hidden, lag = np.array([row.hidden_s for row in rows]), np.array([row.lag_s for row in rows])
        nominal = np.array([report.step_time_s for report in model.reports(plans)])
        serial, steady, wait = links
        crossing = serial.sum(axis=1)
        # Pipelines: in bad times warm-ups are too short to fill their links; m takes what that costs.
        pipes = [p for p, plan in enumerate(plans) if len(plan.pipelines) == 1 and rows[p].links]
        bad = _slower(model, BAD).reports([plans[p] for p in pipes])
        for p, report in zip(pipes, bad, strict=True):
            for _ in range(2):  # A depends on m where links are waited for at nominal bandwidth too
                busy = nominal[p] - crossing[p] - max(0.0, steady[p].max() + lag[p] - hidden[p])
                waits = report.step_time_s - busy - crossing[p] / BAD
                if waits > 0:
                    steady[p] *= max(0.0, waits + hidden[p] - lag[p]) * BAD / steady[p].max()
        rest = step_s(np.zeros(len(rows)), hidden, serial, steady, wait, lag, 1.0)
        # The ends of uneven pipelines overlap, so links may ask for more than the whole step: such a row is
        # shrunk, and A stays positive.
        shrink = np.minimum(1.0, MOST_WAITING * nominal / np.maximum(rest, 1e-300))
        by_link = shrink[:, None]
        return cls(
            nominal - shrink * rest, hidden * shrink, lag * shrink, pair, serial * by_link, steady * by_link,
            wait * by_link,
        )  # fmt: skip

    def only(self, rows: Sequence[int]) -> PlanResponse:
        """Return some of the rows."""
        width = max(1, int(np.count_nonzero(self.pair[rows] >= 0, axis=1).max(initial=0)))
        parts = (getattr(self, part.name)[rows] for part in fields(self))
        return PlanResponse(*(part if part.ndim == 1 else part[:, :width] for part in parts))

    def __len__(self) -> int:
        return len(self.compute_s)

    def step_s(self, factors: Floats, *, slow: Any = 1.0) -> Floats:
        """Return the step times [..., P] when the pairs have these shares of their bandwidth, [..., pairs]."""
        padded = np.concatenate([factors, np.ones((*factors.shape[:-1], 1))], axis=-1)
        times = step_s(
            self.compute_s, self.hidden_s, self.serial_s, self.steady_s, self.wait_s, self.lag_s,
            1 / padded[..., self.pair], slow=slow,
        )  # fmt: skip
        return np.asarray(times)


def _slower(model: StepModel, factor: float) -> StepModel:
    links = model.fleet.links.values()
    return StepModel(model.fleet.with_links(scaled(link, bandwidth=factor) for link in links), model.job)


@dataclass(slots=True)
class _Terms:
    """One plan: O, y, and by pair number (a, m, w)."""

    hidden_s: float = 0.0
    lag_s: float = 0.0
    links: dict[int, Floats] = field(default_factory=lambda: defaultdict(lambda: np.zeros(3)))


def _terms(model: StepModel, plan: TrainingPlan) -> _Terms:
    numbers, terms = pair_numbers(len(model.fleet.domains)), _Terms()
    times = [model.times(plan, pipeline) for pipeline in plan.pipelines]
    if len(times) == 1:
        _add_pipeline(terms, model.fleet, numbers, plan, plan.pipelines[0], times[0])
        return terms
    _add_sum(terms, model, numbers, plan)
    terms.hidden_s = min(min(item.backward_s) for item in times) / plan.local_steps
    slowest = max(range(len(times)), key=lambda i: _period_s(times[i]) * plan.pipelines[i].microbatches)
    inside = _Terms()
    _add_pipeline(inside, model.fleet, numbers, plan, plan.pipelines[slowest], times[slowest])
    # Two terms of the formula would be maxima: the pipeline's counts only where its wires are what it waits for.
    waits = max((float(row[1]) for row in inside.links.values()), default=0.0) + inside.lag_s > inside.hidden_s
    for number, (serial, steady, wait) in inside.links.items():
        terms.links[number] += eta(plan.local_steps) * np.array([serial + waits * steady, 0.0, wait])
    return terms


def _period_s(times: PipelineTimes) -> float:
    return max(f + b for f, b in zip(times.forward_s, times.backward_s, strict=True))


def _add_pipeline(
    terms: _Terms, fleet: Fleet, numbers: Ints, plan: TrainingPlan, pipeline: Pipeline, times: PipelineTimes
) -> None:
    again, stages = pipeline.microbatches - 1, pipeline.stages
    work = np.add(times.forward_s, times.backward_s)
    least_idle = np.inf
    for i, (there, back) in enumerate(zip(times.there, times.back, strict=True)):
        if not there.wan_bytes:
            continue
        both_s, latency_s = there.serial_s + back.serial_s, there.latency_s + back.latency_s
        steady, lag = max(there.serial_s, back.serial_s), 0.0
        if plan.schedule is Schedule.GPIPE:
            steady = both_s
        elif plan.schedule is not Schedule.LATENCY_AWARE:
            # A microbatch and its gradient go round stages i and i+1 once in `ahead` periods.
            ahead = stages[i].warmup - stages[i + 1].warmup + 1
            steady, lag = both_s / ahead, latency_s / ahead
            least_idle = min(least_idle, work.max() - float(work[i] + work[i + 1]) / ahead)
        number = int(numbers[fleet.index(stages[i].domain), fleet.index(stages[i + 1].domain)])
        row = terms.links[number]
        row += (both_s, 0.0, latency_s)
        row[1] = max(row[1], again * steady)
        terms.lag_s = max(terms.lag_s, again * lag)
    terms.hidden_s = again * float(min(work.max(), least_idle))


def _add_sum(terms: _Terms, model: StepModel, numbers: Ints, plan: TrainingPlan) -> None:
    """Add the gradient sum between pipelines: the bytes each link carries, scaled to the time of the sum."""
    across, fleet = model.all_reduce(plan), model.fleet
    assert across is not None
    members = [[fleet.index(name) for name in pipeline.domains] for pipeline in plan.pipelines]
    speed, latency = fleet.bandwidth_bytes_per_s(), fleet.latency_s()
    rows: dict[int, float] = defaultdict(float)
    longest = 0.0
    for r, q in zip(*np.nonzero(across.bytes_sent), strict=True):
        wires = [(a, b) for a in members[r] for b in members[q] if a != b and speed[a, b] > 0]
        for a, b in wires:
            number, wire_s = int(numbers[a, b]), float(across.bytes_sent[r, q] / len(wires) / speed[a, b])
            rows[number] = max(rows[number], wire_s)
            longest = max(longest, float(latency[a, b]))
    count = len(members)
    hops = 2 * (count - 1) if across.algorithm == "ring" else 2
    lag_s = min(hops * longest, across.time_s)
    scale = (across.time_s - lag_s) / max(rows.values())
    for number, wire_s in rows.items():
        terms.links[number] += np.array([0.0, wire_s * scale / plan.local_steps, 0.0])
    terms.lag_s = lag_s / plan.local_steps
