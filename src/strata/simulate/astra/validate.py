"""What must hold before ASTRA-sim is asked: most of it makes it hang or answer wrongly, and exit with 0."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from strata.errors import UsageError
from strata.simulate.astra.chakra import ChakraCollective, Node, NodeType
from strata.simulate.astra.files import AstraDimension, Scenario

MAX_TAG: Final = 500_000_000
"""Tags are taken modulo this."""

DEFAULT_INVOLVED_DIMS: Final = 4
"""Dimensions a collective takes part in where `involved_dim` is not written."""

ALGORITHMS: Final = frozenset({"ring", "oneRing", "direct", "oneDirect", "halvingDoubling", "oneHalvingDoubling",
                               "doubleBinaryTree"})  # fmt: skip
TOPOLOGIES: Final = frozenset({"Ring", "Switch", "FullyConnected"})

_MOST_SHOWN: Final = 5
_ALLOWED: Final = (NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV, NodeType.COMM_COLL)

Traces = Sequence[Sequence[Node]]
Groups = Sequence[Sequence[int]]


def check_scenario(scenario: Scenario, *, is_aware: bool) -> None:
    """Raise UsageError with what ASTRA-sim's analytical backend would stumble over in silence."""
    faults = [*_network(scenario, is_aware=is_aware), *trace_faults(scenario.traces, scenario.groups)]
    if not faults and len(scenario.dims) > 1:
        faults = list(_diagonals(scenario))
    _raise(faults)


def check_traces(traces: Traces, groups: Groups = ()) -> None:
    """Raise UsageError with what is wrong with traces, whatever network they run on."""
    _raise(list(trace_faults(traces, groups)))


def _raise(faults: list[str]) -> None:
    if faults:
        more = f"\n  and {len(faults) - _MOST_SHOWN} more" if len(faults) > _MOST_SHOWN else ""
        shown = "\n  ".join(faults[:_MOST_SHOWN])
        raise UsageError(f"ASTRA-sim would fail on these traces without saying so:\n  {shown}{more}")


def _network(scenario: Scenario, *, is_aware: bool) -> Iterator[str]:
    dims = scenario.dims
    if math.prod(dim.size for dim in dims) != scenario.num_ranks:
        yield f"{scenario.num_ranks} traces for a network of {' x '.join(str(dim.size) for dim in dims)} ranks"
    if is_aware and len(dims) != 1:
        yield f"the aware backend has one dimension, not {len(dims)}"
    for index, dim in enumerate(dims):
        for fault in _dimension(dim, is_aware=is_aware):
            yield f"dimension {index}: {fault}"
    for number, group in enumerate(scenario.groups, 1):
        halves = len(dims) == 1 and "alvingDoubling" in dims[0].algorithm
        if halves and len(group) & (len(group) - 1):
            yield f"group {number}: halvingDoubling between {len(group)} ranks never ends: not a power of two"
    if len(dims) > DEFAULT_INVOLVED_DIMS:
        for rank, nodes in enumerate(scenario.traces):
            if any(node.type is NodeType.COMM_COLL and "involved_dim" not in node.attrs for node in nodes):
                yield f"rank {rank}: a collective without involved_dim on {len(dims)} dimensions: half would hang"


def _dimension(dim: AstraDimension, *, is_aware: bool) -> Iterator[str]:
    if dim.size < 2:
        yield f"{dim.size} ranks; at least 2 are needed"
    if not (math.isfinite(dim.bandwidth_bytes_per_s) and dim.bandwidth_bytes_per_s > 0):
        yield f"an impossible bandwidth: {dim.bandwidth_bytes_per_s} B/s"
    if not (math.isfinite(dim.latency_s) and dim.latency_s >= 0):
        yield f"an impossible latency: {dim.latency_s} s"
    if dim.topology not in TOPOLOGIES:
        yield f"unknown topology {dim.topology!r} (known: {', '.join(sorted(TOPOLOGIES))})"
    if dim.algorithm not in ALGORITHMS:
        yield f"unknown algorithm {dim.algorithm!r} (known: {', '.join(sorted(ALGORITHMS))})"
    if "alvingDoubling" in dim.algorithm and dim.size & (dim.size - 1):
        yield f"halvingDoubling between {dim.size} ranks never ends: not a power of two"
    if is_aware and dim.topology == "Ring" and dim.size == 2:
        yield "a Ring of 2 makes the aware backend abort; FullyConnected is the same network"


def trace_faults(traces: Traces, groups: Groups = ()) -> Iterator[str]:
    """Yield what is wrong with traces, a sentence each."""
    sent: Counter[tuple[object, ...]] = Counter()
    received: Counter[tuple[object, ...]] = Counter()
    issued: dict[str, dict[int, list[tuple[object, object]]]] = defaultdict(dict)
    for rank, nodes in enumerate(traces):
        yield from (f"rank {rank}: {fault}" for fault in _graph(nodes))
        for node in sorted(nodes, key=lambda node: node.id):
            where = f"rank {rank} node {node.id}"
            yield from (f"{where}: {fault}" for fault in _node(node, rank, len(traces), groups))
            attrs = node.attrs
            if node.type in (NodeType.COMM_SEND, NodeType.COMM_RECV):
                is_send = node.type is NodeType.COMM_SEND
                ends = (attrs.get("comm_src", rank), attrs.get("comm_dst", rank))
                (sent if is_send else received)[*ends, attrs.get("comm_tag"), attrs.get("comm_size")] += 1
            elif node.type is NodeType.COMM_COLL:
                name = str(attrs.get("pg_name", "0"))
                issued[name].setdefault(rank, []).append((attrs.get("comm_type"), attrs.get("comm_size")))
    for key in sorted(sent.keys() | received.keys(), key=str):
        if sent[key] != received[key]:
            source, dest, tag, size = key
            yield f"{source} to {dest}, tag {tag}, {size} bytes: sent {sent[key]}x, received {received[key]}x"
    for name, by_rank in issued.items():
        members = _members(name, len(traces), groups) or ()
        orders = {tuple(by_rank.get(rank, ())) for rank in members}
        if len(orders) > 1:
            yield f"group {name}: its ranks do not issue the same collectives in the same order"


def _graph(nodes: Sequence[Node]) -> Iterator[str]:
    if not nodes:
        yield "an empty trace; an idle rank needs one compute node"
        return
    waits = {node.id: {*node.data_deps, *node.ctrl_deps} for node in nodes}
    if len(waits) < len(nodes):
        yield "node ids are not unique"
    dangling = sorted(dep for deps in waits.values() for dep in deps if dep not in waits)
    if dangling:
        yield f"depends on node {dangling[0]}, which does not exist"
        return
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        yield f"{len(error.args[1]) - 1} nodes wait for each other"


def _node(node: Node, rank: int, num_ranks: int, groups: Groups) -> Iterator[str]:
    attrs = node.attrs
    if node.type not in _ALLOWED:
        yield f"a {node.type.name} node stops a run or is never finished"
        return
    if node.type is NodeType.COMP:
        if attrs.get("is_cpu_op"):
            yield "is_cpu_op makes ASTRA-sim lose the rank's statistics"
        return
    if not isinstance(size := attrs.get("comm_size"), int) or size <= 0:
        yield f"comm_size is {size}; a message must have at least 1 byte"
    if node.type is NodeType.COMM_COLL:
        if attrs.get("comm_type") not in list(ChakraCollective):
            yield f"comm_type is {attrs.get('comm_type')}, which ASTRA-sim does not implement"
        name = attrs.get("pg_name", "0")
        members = _members(str(name), num_ranks, groups)
        if members is None:
            yield f"no group {name!r}"
        elif rank not in members:
            yield f"group {name} does not hold this rank"
        return
    if not isinstance(tag := attrs.get("comm_tag"), int) or not 0 <= tag < MAX_TAG:
        yield f"comm_tag is {tag}; it must be a whole number below {MAX_TAG}"
    side = "comm_dst" if node.type is NodeType.COMM_SEND else "comm_src"
    if not isinstance(peer := attrs.get(side), int) or not 0 <= peer < num_ranks or peer == rank:
        yield f"{side} is {peer}, which is not another rank"


def _members(name: str, num_ranks: int, groups: Groups) -> Sequence[int] | None:
    if name == "0":
        return range(num_ranks)
    return groups[int(name) - 1] if name.isdecimal() and 0 < int(name) <= len(groups) else None


def _diagonals(scenario: Scenario) -> Iterator[str]:
    """Yield messages and groups that cross dimensions: all but the first would be free."""
    sizes = [dim.size for dim in scenario.dims]

    def differ(ranks: Sequence[int]) -> int:
        count, step = 0, 1
        for size in sizes:
            count += len({rank // step % size for rank in ranks}) > 1
            step *= size
        return count

    peers = {
        (rank, node.attrs["comm_dst"])
        for rank, nodes in enumerate(scenario.traces)
        for node in nodes
        if node.type is NodeType.COMM_SEND
    }
    pairs = sorted((rank, dest) for rank, dest in peers if isinstance(dest, int))
    for source, dest in pairs:
        if differ((source, dest)) > 1:
            yield f"{source} to {dest} crosses {differ((source, dest))} dimensions; only the first is charged"
    for number, group in enumerate(scenario.groups, 1):
        if differ(group) > 1:
            yield f"group {number} crosses {differ(group)} dimensions; only the first is charged"
