"""A cluster in arrays, so that a gang is placed among thousands of nodes in about a millisecond.

A row is the devices of one model in one node: R rows, at most D devices a row. Rows whose devices, shape and free
devices are alike are of one kind; what a pod is worth there is computed once a kind. Updates give a new index and
leave the old one as it was; only what is remembered about shapes and kinds is shared, and it never changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from strata.arrays import Bools, Floats, Ints
from strata.cluster.scheduling.host import UNLIMITED, PodRequests
from strata.cluster.scheduling.shape import Shape
from strata.cluster.scheduling.snapshot import Cluster, NodeState, Placement
from strata.fleet.accelerator import Accelerator
from strata.fleet.acu import deliverable

MIN_HEALTH: Final = 0.5
"""Devices below it are not used."""

_WHOLE: Final = 1 - 1e-9


class RowKind(NamedTuple):
    """Rows alike: a shape, the devices that are well, and those of them that nobody uses."""

    shape: int
    usable: int
    free: int


@dataclass
class Kinds:
    """Every shape and kind seen so far; numbers are never given anew."""

    shapes: list[Shape] = field(default_factory=list)
    shape_ids: dict[tuple[object, ...], int] = field(default_factory=dict)
    kinds: list[RowKind] = field(default_factory=list)
    kind_ids: dict[RowKind, int] = field(default_factory=dict)
    tables: dict[int, Floats] = field(default_factory=dict)

    def number(self, kind: RowKind) -> int:
        """Return the number of a kind."""
        number = self.kind_ids.get(kind)
        if number is None:
            number = self.kind_ids[kind] = len(self.kinds)
            self.kinds.append(kind)
        return number


class Row(NamedTuple):
    """What of a row does not change while its node's fingerprint stays: its devices' places in the node."""

    node: int
    model: str
    devices: tuple[int, ...]
    memory_bytes: tuple[float, ...]


@dataclass(frozen=True)
class Index:
    """nodes: by name, in order. Per row [R]: kind, groups (numbers), taints (a number of `taint_sets`), is_open.

    free_bytes, free_share: [R, D], -1 for a device that is not there or not well. sizes: bytes of each device.
    cards: what a device of each model is worth; None where the catalogue and the nodes do not know.
    groups: of each level (node, rdma, rack) the number of the row's group [R]; rows nobody grouped stand alone.
    resources: the number of each resource that some node has. unrequested: what of it no pod requests, less than 0
    where too many do [resources + 1, N]; the last one stands for every other resource.
    """

    nodes: tuple[NodeState, ...]
    node_number: Mapping[str, int]
    rows: tuple[Row, ...]
    rows_of_node: tuple[tuple[int, ...], ...]
    rows_of_model: Mapping[str, Ints]
    cards: Mapping[str, Accelerator | None]
    kind: Ints
    is_open: Bools
    taint_set: Ints
    taint_sets: tuple[tuple[str, ...], ...]
    groups: Mapping[str, Ints]
    free_bytes: Floats
    free_share: Floats
    sizes: Floats
    kinds: Kinds
    resources: Mapping[str, int]
    unrequested: Ints
    min_health: float = MIN_HEALTH

    @staticmethod
    def of(cluster: Cluster, *, min_health: float = MIN_HEALTH) -> Index:
        """Build the index of a snapshot."""
        nodes = tuple(sorted(cluster.nodes, key=lambda node: node.name))
        kinds, rows_of_node, filled = Kinds(), [], []
        rows: list[Row] = []
        by_model: dict[str, list[int]] = {}
        cards: dict[str, list[Accelerator | None]] = {}
        for number, node in enumerate(nodes):
            node_rows = []
            for row in _rows(number, node):
                node_rows.append(len(rows))
                by_model.setdefault(row.model, []).append(len(rows))
                cards.setdefault(row.model, []).append(node.fingerprint.devices[row.devices[0]].card)
                filled.append(_fill(kinds, row, node, min_health))
                rows.append(row)
            rows_of_node.append(tuple(node_rows))
        width = max((len(row.devices) for row in rows), default=1)
        free_bytes, free_share = np.full((len(rows), width), -1.0), np.full((len(rows), width), -1.0)
        sizes = np.ones((len(rows), width))
        for r, (_, some_bytes, some_share) in enumerate(filled):
            sizes[r, : len(some_bytes)] = np.maximum(rows[r].memory_bytes, 1.0)  # 0 where it is not known
            free_bytes[r, : len(some_bytes)], free_share[r, : len(some_share)] = some_bytes, some_share
        taint_ids: dict[tuple[str, ...], int] = {}
        of_row = [nodes[row.node] for row in rows]
        names = sorted({name for node in nodes for name in node.allocatable or ()})
        resources = {name: column for column, name in enumerate(names)}
        unrequested = np.zeros((len(resources) + 1, len(nodes)), dtype=np.int64)
        for number, node in enumerate(nodes):
            unrequested[:, number] = _unrequested(node.allocatable, node.requested.amounts, resources)
        return Index(
            nodes=nodes,
            node_number={node.name: number for number, node in enumerate(nodes)},
            rows=tuple(rows),
            rows_of_node=tuple(rows_of_node),
            rows_of_model={model: np.array(some) for model, some in by_model.items()},
            cards={model: _middle(some) for model, some in cards.items()},
            kind=np.array([kind for kind, _, _ in filled], dtype=np.int64),
            is_open=np.array([node.is_schedulable for node in of_row], dtype=bool),
            taint_set=np.array([taint_ids.setdefault(n.taints, len(taint_ids)) for n in of_row], dtype=np.int64),
            taint_sets=tuple(taint_ids),
            groups={
                "node": np.array([row.node for row in rows], dtype=np.int64),
                "rdma": _groups([node.rdma_group for node in of_row]),
                "rack": _groups([node.rack for node in of_row]),
            },
            free_bytes=free_bytes,
            free_share=free_share,
            sizes=sizes,
            kinds=kinds,
            resources=resources,
            unrequested=unrequested,
            min_health=min_health,
        )

    def with_nodes(self, changed: Iterable[NodeState]) -> Index:
        """Return the index after nodes changed what is free, their health, taints or schedulability.

        Nodes that came, went, or have other devices, groups, links or resources need `Index.of` again: ValueError.
        """
        nodes, taint_sets = list(self.nodes), list(self.taint_sets)
        kind, is_open, taint_set = self.kind.copy(), self.is_open.copy(), self.taint_set.copy()
        free_bytes, free_share = self.free_bytes.copy(), self.free_share.copy()
        unrequested = self.unrequested.copy()
        for node in changed:
            number = self.node_number.get(node.name)
            is_same = number is not None and _alike(self.nodes[number], node)
            if number is None or not is_same or not self.resources.keys() >= (node.allocatable or {}).keys():
                raise ValueError(f"node {node.name} is new or built otherwise; build the index again")
            nodes[number] = node
            unrequested[:, number] = _unrequested(node.allocatable, node.requested.amounts, self.resources)
            if node.taints not in taint_sets:
                taint_sets.append(node.taints)
            for r in self.rows_of_node[number]:
                kind[r], some_bytes, some_share = _fill(self.kinds, self.rows[r], node, self.min_health)
                free_bytes[r, : len(some_bytes)], free_share[r, : len(some_share)] = some_bytes, some_share
                is_open[r], taint_set[r] = node.is_schedulable, taint_sets.index(node.taints)
        return replace(
            self,
            nodes=tuple(nodes),
            kind=kind,
            is_open=is_open,
            taint_set=taint_set,
            taint_sets=tuple(taint_sets),
            free_bytes=free_bytes,
            free_share=free_share,
            unrequested=unrequested,
        )

    def emptied(self) -> Index:
        """Return the index after all pods have left; their host ports apart."""
        whole = [self.kinds.number(kind._replace(free=kind.usable)) for kind in tuple(self.kinds.kinds)]
        is_well = self.free_share >= 0
        return replace(
            self,
            kind=np.array(whole, dtype=np.int64)[self.kind],
            free_bytes=np.where(is_well, self.sizes, -1.0),
            free_share=np.where(is_well, 1.0, -1.0),
            unrequested=np.array([_unrequested(node.allocatable, {}, self.resources) for node in self.nodes]).T,
        )

    def level_of(self, rows: Collection[int]) -> str:
        """Return how near some rows are: the nearest level that holds them all."""
        for level, group in self.groups.items():
            if len({int(group[row]) for row in rows}) == 1:
                return level
        return "any"

    def capacity(self, rows: Ints, requests: PodRequests) -> Ints:
        """Return for how many more such pods the node of each row has capacity, devices apart [rows]."""
        numbers = self.groups["node"][rows]
        pods: Ints = np.full(len(rows), UNLIMITED)
        for name, amount in requests.amounts.items():
            if amount > 0:
                left = self.unrequested[self.resources.get(name, -1)].take(numbers)
                np.minimum(pods, left if amount == 1 else left // amount, out=pods)
        if requests.ports:
            is_free = [not requests.ports & self.nodes[number].requested.ports for number in numbers]
            np.minimum(pods, np.array(is_free, dtype=np.int64), out=pods)
        pods[pods < 0] = 0
        return pods

    def placed(self, placement: Placement) -> Index:
        """Return the index after a placement took its devices."""
        return self.with_nodes(_changed(self, placement, sign=-1))


def has_room(index: Index, placement: Placement) -> bool:
    """Return whether every device of a placement is still free, and of the same model, on nodes that are open.

    The nodes have what its pods request, too.
    """
    for name, pods in Counter(pod.node for pod in placement.pods).items():
        number = index.node_number.get(name)
        if number is None or index.nodes[number].capacity(placement.requests) < pods:
            return False
    left: dict[tuple[str, int], tuple[float, float]] = {}
    for pod in placement.pods:
        number = index.node_number.get(pod.node)
        if number is None or not index.nodes[number].is_schedulable:
            return False
        node = index.nodes[number]
        for place in pod.devices:
            if place >= len(node.fingerprint.devices):
                return False
            device = node.fingerprint.devices[place]
            if device.model != placement.model or not device.health >= index.min_health:
                return False
            memory, share = device.memory_bytes, 1.0
            if pod.memory_bytes is not None:
                memory, share = pod.memory_bytes, placement.cores_share or 0.0
            free_bytes, free_share = left.get((pod.node, place), (node.free_bytes[place], node.free_share[place]))
            if free_bytes < memory * _WHOLE or free_share < share * _WHOLE:
                return False
            left[pod.node, place] = free_bytes - memory, free_share - share
    return True


def has_devices(index: Index, placement: Placement) -> bool:
    """Return whether all nodes of a placement are there, with as many devices as it names, free or not."""
    numbers = [(index.node_number.get(pod.node), pod.devices) for pod in placement.pods]
    return all(
        number is not None and max(devices, default=-1) < len(index.nodes[number].fingerprint.devices)
        for number, devices in numbers
    )


def released(index: Index, placement: Placement) -> list[NodeState]:
    """Return the nodes of a placement with its devices given back."""
    return _changed(index, placement, sign=1)


def _changed(index: Index, placement: Placement, *, sign: int) -> list[NodeState]:
    share = placement.cores_share or 0.0
    changed: dict[str, tuple[list[float], list[float]]] = {}
    requested: dict[str, PodRequests] = {}
    for pod in placement.pods:
        node = index.nodes[index.node_number[pod.node]]
        some_bytes, some_share = changed.setdefault(pod.node, (list(node.free_bytes), list(node.free_share)))
        before = requested.get(pod.node, node.requested)
        requested[pod.node] = before.plus(placement.requests) if sign < 0 else before.minus(placement.requests)
        for device in pod.devices:
            if pod.memory_bytes is None:
                some_bytes[device] = node.fingerprint.devices[device].memory_bytes if sign > 0 else 0.0
                some_share[device] = 1.0 if sign > 0 else 0.0
            else:
                some_bytes[device] += sign * pod.memory_bytes
                some_share[device] += sign * share
    return [
        replace(node, free_bytes=tuple(b), free_share=tuple(s), requested=requested[node.name])
        for node, (b, s) in ((index.nodes[index.node_number[name]], left) for name, left in changed.items())
    ]


def _unrequested(
    there: Mapping[str, int] | None, requested: Mapping[str, int], resources: Mapping[str, int]
) -> list[int]:
    if there is None:
        return [UNLIMITED] * (len(resources) + 1)
    return [*(there.get(name, 0) - requested.get(name, 0) for name in resources), 0]


def _middle(cards: list[Accelerator | None]) -> Accelerator | None:
    """Return the card that stands for a model: nodes measure their own, and the middle one by FP16 is taken."""
    known = {card for card in cards if card is not None}
    if len(known) < 2:
        return next(iter(known), None)
    each = [(known_[0] if (known_ := deliverable(card, "fp16")) else 0.0, card) for card in cards if card]
    return sorted(each, key=lambda pair: pair[0])[len(each) // 2][1]


def _rows(number: int, node: NodeState) -> list[Row]:
    devices = node.fingerprint.devices
    models: dict[str, list[int]] = {}
    for position, device in enumerate(devices):
        models.setdefault(device.model, []).append(position)
    return [
        Row(number, model, tuple(some), tuple(devices[i].memory_bytes for i in some))
        for model, some in models.items()
    ]


def _fill(kinds: Kinds, row: Row, node: NodeState, min_health: float) -> tuple[int, list[float], list[float]]:
    """Return a row's kind, and what is free of each of its devices."""
    devices = node.fingerprint.devices
    usable = free = 0
    some_bytes, some_share = [], []
    for bit, position in enumerate(row.devices):
        left, share = node.free_bytes[position], node.free_share[position]
        if not devices[position].health >= min_health:
            left = share = -1.0
        else:
            usable |= 1 << bit
            if share >= _WHOLE and left >= devices[position].memory_bytes * _WHOLE:
                free |= 1 << bit
        some_bytes.append(left)
        some_share.append(share)
    return kinds.number(RowKind(_shape(kinds, row, node), usable, free)), some_bytes, some_share


def _shape(kinds: Kinds, row: Row, node: NodeState) -> int:
    print_ = node.fingerprint
    boards = tuple(print_.devices[i].board for i in row.devices)
    numa = tuple(-1 if (near := print_.devices[i].numa_node) is None else near for i in row.devices)
    links = tuple(sorted(print_.links.items()))
    key = (row.devices, boards, numa, links, tuple(sorted(print_.measured.items())), print_.can_p2p)
    if key not in kinds.shape_ids:
        kinds.shape_ids[key] = len(kinds.shapes)
        among = np.ix_(row.devices, row.devices)
        kinds.shapes.append(Shape.of(print_.bandwidth()[among], boards=boards, numa=numa, can_p2p=print_.can_p2p))
    return kinds.shape_ids[key]


def _groups(names: list[str]) -> Ints:
    numbers: dict[str, int] = {}
    group_numbers = []
    for position, name in enumerate(names):
        group_numbers.append(numbers.setdefault(name or f"\0{position}", len(numbers)))
    return np.array(group_numbers, dtype=np.int64)


def _alike(before: NodeState, after: NodeState) -> bool:
    a, b = before.fingerprint, after.fingerprint
    if (before.rdma_group, before.rack) != (after.rdma_group, after.rack):
        return False
    if a is b:
        return True
    return (
        (a.links, a.measured, a.can_p2p) == (b.links, b.measured, b.can_p2p)
        and len(a.devices) == len(b.devices)
        and all(
            (x.model, x.board, x.numa_node, x.memory_bytes, x.card)
            == (y.model, y.board, y.numa_node, y.memory_bytes, y.card)
            for x, y in zip(a.devices, b.devices, strict=True)
        )
    )
