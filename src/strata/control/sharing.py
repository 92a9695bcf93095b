"""Links that several jobs send over: each has its max-min fair share, in the plan as in virtual time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Final

import numpy as np

from strata.arrays import Floats
from strata.fleet.fleet import Pair
from strata.simulate.analytic import StepModel
from strata.workload.plan import TrainingPlan

GRAIN: Final = 16
"""Shares are whole multiples of a sixteenth, rounded down to at least an equal share: what is known of a state
of the links serves again where the others' loads changed a little."""


def open_share(loads: Iterable[float]) -> float:
    """Return the share of a link that is open to one more job beside others that would fill `loads` of it alone.

    The level s of sum(min(load, s)) + s = 1 (progressive filling: Bertsekas, Gallager, Data Networks, §6.5.2): who
    needs less than an equal share leaves the rest to the others. With the k smallest loads served the others get
    (1 - their sum) / (n + 1 - k) each; s is the largest of these.
    """
    smallest_first = sorted(loads)
    left, num_left, share = 1.0, len(smallest_first) + 1, 0.0
    for load in (*smallest_first, 0.0):
        share = max(share, left / num_left)
        left, num_left = left - load, num_left - 1
    return share


class Shares:
    """What each job has of every link, of the loads that jobs would put on links alone: {job: {link: load}}."""

    def __init__(self, num_links: int, loads: Mapping[str, Mapping[int, float]]) -> None:
        self._loads = loads
        self._on: dict[int, dict[str, float]] = defaultdict(dict)
        for job, own in loads.items():
            for link, load in own.items():
                self._on[link][job] = load
        self._newcomer = np.ones(num_links)
        for link in self._on:
            self._newcomer[link] = self._share(link)

    def of(self, job: str) -> Floats:
        """Return [L] the shares of a job, whether it runs or not yet."""
        shares = self._newcomer.copy()
        for link in self._loads.get(job, ()):
            shares[link] = self._share(link, without=job)
        return shares

    def with_loads(self, job: str, loads: Mapping[int, float]) -> Shares:
        """Return the same where a job puts other loads on links."""
        changed = {*self._loads.get(job, ()), *loads}
        result = copy(self)
        result._loads, result._on = {**self._loads, job: loads}, self._on.copy()
        result._newcomer = self._newcomer.copy()
        for link in changed:
            on = {name: load for name, load in self._on[link].items() if name != job}
            result._on[link] = on | ({job: loads[link]} if link in loads else {})
            result._newcomer[link] = result._share(link)
        return result

    def _share(self, link: int, *, without: str | None = None) -> float:
        others = [load for job, load in self._on[link].items() if job != without]
        return max(1 / (len(others) + 1), math.floor(GRAIN * open_share(others) + 1e-9) / GRAIN)


def sent_s(model: StepModel, plan: TrainingPlan) -> dict[Pair, float]:
    """Return how long each link is busy with one step of a plan [s], at the bandwidth of the model's fleet."""
    busy_s: dict[Pair, float] = defaultdict(float)
    links = model.fleet.links
    for pipeline in plan.pipelines:
        times = model.times(plan, pipeline)
        for i, (there, back) in enumerate(zip(times.there, times.back, strict=True)):
            ends = (pipeline.stages[i].domain, pipeline.stages[i + 1].domain)
            for pair, hop in ((ends, there), (ends[::-1], back)):
                if hop.wan_bytes:
                    messages = pipeline.microbatches * pipeline.replicas
                    busy_s[pair] += messages * links[pair].serialisation_s(hop.wan_bytes)
    across = model.all_reduce(plan)
    if across is not None:
        members = [pipeline.domains for pipeline in plan.pipelines]
        for r, q in zip(*np.nonzero(across.bytes_sent), strict=True):
            wires = [(a, b) for a in members[r] for b in members[q] if (a, b) in links]
            sent = float(across.bytes_sent[r, q]) / plan.local_steps
            for pair in wires:
                busy_s[pair] += sent / len(wires) / links[pair].bandwidth_bytes_per_s
    return busy_s
