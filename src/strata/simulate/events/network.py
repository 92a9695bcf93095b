"""The links of a fleet under contention: flows share each link max-min fair while its bandwidth changes.

A fleet's links join pairs of domains directly, so a flow crosses one link and progressive filling goes link by
link. Work is counted in seconds the link would need for it alone, which also holds for links whose bandwidth
depends on the size of a message (`Link.curve`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import simpy

from strata.fleet.fleet import Pair


@dataclass(slots=True, eq=False)
class Flow:
    """Messages that cross a link together.

    work_s: time the link needs for what is left of them at its nominal bandwidth, alone [s].
    weight: how many messages: a flow of two gets two shares. limit: share of the nominal bandwidth that the
    sender's card can fill. priority: flows of a higher one are served first.
    """

    owner: object
    work_s: float
    weight: float
    limit: float
    priority: int
    sent: simpy.Event
    rate: float = 0.0


def fair_rates(capacity: float, flows: Sequence[Flow]) -> list[float]:
    """Return the max-min fair rate of each flow on a link: no flow can gain without a poorer one losing.

    Progressive filling (Bertsekas, Gallager, Data Networks, §6.5.2), priority by priority: the flow whose limit
    per weight is lowest is settled first, with its limit or with its share of what is left.
    """
    rates = [0.0] * len(flows)
    order = sorted(range(len(flows)), key=lambda i: (-flows[i].priority, flows[i].limit / flows[i].weight))
    weights: dict[int, float] = {}
    for flow in flows:
        weights[flow.priority] = weights.get(flow.priority, 0.0) + flow.weight
    for i in order:
        flow = flows[i]
        # Subtracting weights rounds: without the maximum the last flow could get more than is left.
        share = capacity * flow.weight / max(weights[flow.priority], flow.weight)
        rates[i] = min(flow.limit, share)
        capacity = max(0.0, capacity - rates[i])
        weights[flow.priority] -= flow.weight
    return rates


@dataclass(slots=True)
class _Wire:
    """One directed link: what flows on it, and what its bandwidth and latency are multiplied with now."""

    flows: list[Flow] = field(default_factory=list)
    bandwidth_factor: float = 1.0
    latency_factor: float = 1.0
    cuts: int = 0
    changed_s: float = 0.0
    version: int = 0


class Network:
    """All wide-area links. Times are those of the SimPy environment.

    Where links are not shared every flow has its link to itself, as the analytic model takes it.
    """

    def __init__(self, env: simpy.Environment, pairs: Iterable[Pair], *, are_shared: bool = True) -> None:
        self.env, self.are_shared = env, are_shared
        self._wires = {pair: _Wire() for pair in pairs}

    def send(
        self,
        pair: Pair,
        work_s: float,
        *,
        owner: object,
        weight: float = 1.0,
        limit: float = math.inf,
        priority: int = 0,
    ) -> simpy.Event:
        """Start a flow of `work_s` seconds of the link; the event fires when its last byte has left [s]."""
        if not self.are_shared:
            return self.env.timeout(work_s / min(1.0, limit))
        flow = Flow(owner, work_s, weight, limit, priority, self.env.event())
        if work_s <= 0:
            flow.sent.succeed()
            return flow.sent
        wire = self._wires[pair]
        self._settle(wire)
        wire.flows.append(flow)
        self._share(wire)
        return flow.sent

    def drop(self, owner: object) -> None:
        """Forget the flows of one owner; their events never fire."""
        for wire in self._wires.values():
            if any(flow.owner is owner for flow in wire.flows):
                self._settle(wire)
                wire.flows = [flow for flow in wire.flows if flow.owner is not owner]
                self._share(wire)

    def vary(self, pair: Pair, *, bandwidth_factor: float = 1.0, latency_factor: float = 1.0) -> None:
        """Set what a link's bandwidth and latency are multiplied with from now on."""
        wire = self._wires[pair]
        self._settle(wire)
        wire.bandwidth_factor, wire.latency_factor = bandwidth_factor, latency_factor
        self._share(wire)

    def cut(self, pair: Pair, *, is_cut: bool) -> None:
        """Cut a link, or mend one cut of it; what is on its way waits."""
        wire = self._wires[pair]
        self._settle(wire)
        wire.cuts += 1 if is_cut else -1
        self._share(wire)

    def latency_factor(self, pair: Pair) -> float:
        """Return what a link's latency is multiplied with now."""
        return self._wires[pair].latency_factor

    def load(self, pair: Pair) -> tuple[float, list[float]]:
        """Return a link's capacity and the rates of its flows now, as shares of the nominal bandwidth."""
        wire = self._wires[pair]
        return _capacity(wire), [flow.rate for flow in wire.flows]

    def _settle(self, wire: _Wire) -> None:
        """Take off what has been sent since the rates were set."""
        elapsed_s = self.env.now - wire.changed_s
        for flow in wire.flows:
            flow.work_s = max(0.0, flow.work_s - flow.rate * elapsed_s)
        wire.changed_s = self.env.now

    def _share(self, wire: _Wire) -> None:
        """Set the rates anew and wait for the first flow to end."""
        wire.version += 1
        for flow, rate in zip(wire.flows, fair_rates(_capacity(wire), wire.flows), strict=True):
            flow.rate = rate
        moving = [flow for flow in wire.flows if flow.rate > 0]
        if not moving:
            return  # the link is cut: nothing ends before it is mended
        first = min(moving, key=lambda flow: flow.work_s / flow.rate)
        left_s, version = first.work_s / first.rate, wire.version

        def end(_event: simpy.Event) -> None:
            if version != wire.version:
                return  # the rates changed in between
            self._settle(wire)
            # Flows that end together differ by rounding alone: a clock cannot tell them apart.
            ended = [f for f in moving if f is first or f.work_s <= 1e-12 * f.rate * self.env.now]
            wire.flows = [flow for flow in wire.flows if flow not in ended]
            self._share(wire)
            for flow in ended:
                flow.sent.succeed()

        self.env.timeout(left_s).callbacks.append(end)


def _capacity(wire: _Wire) -> float:
    return 0.0 if wire.cuts else wire.bandwidth_factor
