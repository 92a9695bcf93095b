"""Links that several jobs send over: each has its max-min fair share, in the plan as in virtual time."""

from __future__ import annotations

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


def open_share(loads: Floats) -> Floats:
    """Return the share of a link [...] that is open to one more job beside others that would fill `loads` [..., n]
    of it alone; 0 for one that does not send over it.

    The level s of sum(min(load, s)) + s = 1 (progressive filling: Bertsekas, Gallager, Data Networks, §6.5.2): who
    needs less than an equal share leaves the rest to the others. With the k smallest loads served the others get
    (1 - their sum) / (n + 1 - k) each; s is the largest of these.
    """
    count = loads.shape[-1]
    left = 1 - np.cumsum(np.sort(loads, axis=-1), axis=-1)
    return np.asarray((left / np.arange(count, 0, -1)).max(axis=-1, initial=1 / (count + 1)))


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

    def users(self, links: Iterable[int]) -> set[str]:
        """Return the jobs that send over some of these links."""
        return {job for link in links for job in self._on.get(link, ())}

    def beside(self, job: str, other: str, loads: Floats) -> tuple[list[int], Floats]:
        """Return the links [l] of a job, and its shares of them [P, l] where another job puts loads [P, L] on all
        links instead of its own.
        """
        links = list(self._loads[job])
        third = sorted(self.users(links) - {job, other})
        rest = np.array([[self._on[link].get(name, 0.0) for name in third] for link in links])  # [l, n]
        every = np.concatenate([np.tile(rest, (len(loads), 1, 1)), loads[:, links, None]], axis=2)
        return links, _in_grains(every)

    def _share(self, link: int, *, without: str | None = None) -> float:
        return float(_in_grains(np.array([load for job, load in self._on[link].items() if job != without])))


def _in_grains(loads: Floats) -> Floats:
    equal = 1 / (np.count_nonzero(loads, axis=-1) + 1)
    return np.asarray(np.maximum(equal, np.floor(GRAIN * open_share(loads) + 1e-9) / GRAIN))


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
