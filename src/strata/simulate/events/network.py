"""The links of a fleet under contention: flows share each link max-min fair while its bandwidth changes.

A fleet's links join pairs of domains directly, so a flow crosses one link and progressive filling goes link by
link, but where a site has an uplink that all its links share: then it goes over all links that such sites join.
Work is counted in seconds the link would need for it alone, which also holds for links whose bandwidth depends on
the size of a message (`Link.curve`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import simpy

from strata.fleet.fleet import Pair

Uplink = tuple[str, str]
"""A site, and one of WAYS."""

WAYS: Final = ("out", "in")


@dataclass(slots=True, eq=False)
class Flow:
    """Messages that cross a link together.

    work_s: time the link needs for what is left of them at its nominal bandwidth, alone [s].
    weight: how many messages: a flow of two gets two shares. limit: share of the nominal bandwidth that the
    sender's card can fill. priority: flows of a higher one are served first. bytes_per_s: what crosses the link at
    its nominal bandwidth.
    """

    owner: object
    work_s: float
    weight: float
    limit: float
    priority: int
    sent: simpy.Event
    bytes_per_s: float = 1.0
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


def joint_rates(
    capacity: Mapping[Pair, float], uplinks: Mapping[Uplink, float], flows: Sequence[tuple[Pair, Flow]]
) -> list[float]:
    """Return the max-min fair rate of each flow on its link, of links whose sites' `uplinks` [B/s] they share.

    Progressive filling over all of them, priority by priority: bytes a second and message rise alike until a link,
    an uplink or a flow's own limit is full.
    """
    left: dict[Pair | Uplink, float] = {**capacity, **uplinks}
    rates = [0.0] * len(flows)
    costs = [dict(_costs(pair, flow, uplinks)) for pair, flow in flows]
    limits = [flow.limit * flow.bytes_per_s / flow.weight for _, flow in flows]
    for priority in sorted({flow.priority for _, flow in flows}, reverse=True):
        rising = [i for i, (_, flow) in enumerate(flows) if flow.priority == priority]
        while rising:
            wanted: dict[Pair | Uplink, float] = {}
            for place, cost in chain.from_iterable(costs[i].items() for i in rising):
                wanted[place] = wanted.get(place, 0.0) + cost
            levels = {place: left[place] / cost for place, cost in wanted.items()}
            level = min(*levels.values(), *(limits[i] for i in rising))
            for i in [i for i in rising if min(limits[i], *(levels[place] for place in costs[i])) <= level]:
                flow = flows[i][1]
                rates[i] = level * flow.weight / flow.bytes_per_s
                for place, cost in costs[i].items():
                    left[place] = max(0.0, left[place] - level * cost)
                rising.remove(i)
    return rates


def _costs(pair: Pair, flow: Flow, uplinks: Mapping[Uplink, float]) -> Iterator[tuple[Pair | Uplink, float]]:
    """Yield what a flow takes of its link [share] and of both sites' uplinks [B/s], for each B/s of a message."""
    yield pair, flow.weight / flow.bytes_per_s
    for uplink in zip(pair, WAYS, strict=True):
        if uplink in uplinks:
            yield uplink, flow.weight


@dataclass(slots=True)
class _Wire:
    """One directed link: what flows on it, and what its bandwidth and latency are multiplied with now."""

    flows: list[Flow] = field(default_factory=list)
    bandwidth_factor: float = 1.0
    latency_factor: float = 1.0
    cuts: int = 0


@dataclass(slots=True)
class _Group:
    """Links that share uplinks, or one that shares none: their rates are set together."""

    wires: dict[Pair, _Wire]
    uplinks: dict[Uplink, float]
    changed_s: float = 0.0
    version: int = 0

    @property
    def flows(self) -> list[Flow]:
        return [flow for wire in self.wires.values() for flow in wire.flows]

    def share(self) -> None:
        """Set the rates anew."""
        if not self.uplinks:
            [wire] = self.wires.values()
            for flow, rate in zip(wire.flows, fair_rates(_capacity(wire), wire.flows), strict=True):
                flow.rate = rate
            return
        capacity = {pair: _capacity(wire) for pair, wire in self.wires.items()}
        flows = [(pair, flow) for pair, wire in self.wires.items() for flow in wire.flows]
        for (_, flow), rate in zip(flows, joint_rates(capacity, self.uplinks, flows), strict=True):
            flow.rate = rate


class Network:
    """All wide-area links. Times are those of the SimPy environment.

    uplinks: what sites send to all others together, and receive [B/s]. Where links are not shared every flow has
    its link to itself, as the analytic model takes it.
    """

    def __init__(
        self,
        env: simpy.Environment,
        pairs: Iterable[Pair],
        *,
        uplinks: Mapping[str, float] | None = None,
        are_shared: bool = True,
    ) -> None:
        self.env, self.are_shared = env, are_shared
        self._wires = {pair: _Wire() for pair in pairs}
        self._groups = _groups(self._wires, uplinks or {})

    def send(
        self,
        pair: Pair,
        work_s: float,
        *,
        owner: object,
        size_bytes: float = 0.0,
        weight: float = 1.0,
        limit: float = math.inf,
        priority: int = 0,
    ) -> simpy.Event:
        """Start a flow of `work_s` seconds of the link; the event fires when its last byte has left [s].

        Where uplinks are shared its `size_bytes` say how much of them it takes.
        """
        if not self.are_shared:
            return self.env.timeout(work_s / min(1.0, limit))
        flow = Flow(owner, work_s, weight, limit, priority, self.env.event())
        if work_s <= 0:
            flow.sent.succeed()
            return flow.sent
        flow.bytes_per_s = size_bytes / work_s or 1.0
        group = self._groups[pair]
        self._settle(group)
        group.wires[pair].flows.append(flow)
        self._share(group)
        return flow.sent

    def drop(self, owner: object) -> None:
        """Forget the flows of one owner; their events never fire."""
        for pair, wire in self._wires.items():
            if any(flow.owner is owner for flow in wire.flows):
                self._settle(self._groups[pair])
                wire.flows = [flow for flow in wire.flows if flow.owner is not owner]
                self._share(self._groups[pair])

    def vary(self, pair: Pair, *, bandwidth_factor: float = 1.0, latency_factor: float = 1.0) -> None:
        """Set what a link's bandwidth and latency are multiplied with from now on."""
        wire = self._wires[pair]
        self._settle(self._groups[pair])
        wire.bandwidth_factor, wire.latency_factor = bandwidth_factor, latency_factor
        self._share(self._groups[pair])

    def cut(self, pair: Pair, *, is_cut: bool) -> None:
        """Cut a link, or mend one cut of it; what is on its way waits."""
        self._settle(self._groups[pair])
        self._wires[pair].cuts += 1 if is_cut else -1
        self._share(self._groups[pair])

    def latency_factor(self, pair: Pair) -> float:
        """Return what a link's latency is multiplied with now."""
        return self._wires[pair].latency_factor

    def load(self, pair: Pair) -> tuple[float, list[float]]:
        """Return a link's capacity and the rates of its flows now, as shares of the nominal bandwidth."""
        wire = self._wires[pair]
        return _capacity(wire), [flow.rate for flow in wire.flows]

    def _settle(self, group: _Group) -> None:
        """Take off what has been sent since the rates were set."""
        elapsed_s = self.env.now - group.changed_s
        for flow in group.flows:
            flow.work_s = max(0.0, flow.work_s - flow.rate * elapsed_s)
        group.changed_s = self.env.now

    def _share(self, group: _Group) -> None:
        """Set the rates anew and wait for the first flow to end."""
        group.version += 1
        group.share()
        moving = [flow for flow in group.flows if flow.rate > 0]
        if not moving:
            return  # the links are cut: nothing ends before one is mended
        first = min(moving, key=lambda flow: flow.work_s / flow.rate)
        left_s, version = first.work_s / first.rate, group.version

        def end(_event: simpy.Event) -> None:
            if version != group.version:
                return  # the rates changed in between
            self._settle(group)
            # Flows that end together differ by rounding alone: a clock cannot tell them apart.
            ended = [f for f in moving if f is first or f.work_s <= 1e-12 * f.rate * self.env.now]
            for wire in group.wires.values():
                wire.flows = [flow for flow in wire.flows if flow not in ended]
            self._share(group)
            for flow in ended:
                flow.sent.succeed()

        self.env.timeout(left_s).callbacks.append(end)


def _groups(wires: Mapping[Pair, _Wire], uplinks: Mapping[str, float]) -> dict[Pair, _Group]:
    """Return what is shared together with each link: links that meet at sites with an uplink."""
    groups: dict[Pair, _Group] = {}
    for pair, wire in wires.items():
        own = {(name, way): uplinks[name] for name, way in zip(pair, WAYS, strict=True) if name in uplinks}
        joined = _Group({pair: wire}, own)
        for other in [other for other in groups.values() if other.uplinks.keys() & own.keys()]:
            joined.wires.update(other.wires)
            joined.uplinks.update(other.uplinks)
        groups.update(dict.fromkeys(joined.wires, joined))
    return groups


def _capacity(wire: _Wire) -> float:
    return 0.0 if wire.cuts else wire.bandwidth_factor
