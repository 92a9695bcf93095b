"""Where ASTRA-sim fails, and where it answers but should not be believed."""

from __future__ import annotations

import math

from strata.evaluation.astra_reference.case import AstraCase, CollectiveRun, Group, LlmRun, PipelineRun, Send
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.compat.groups import differing_dimensions
from strata.simulate.compat.network import Dimension, Topology
from strata.simulate.compat.system import Algorithm, Collective


def why_not(case: AstraCase) -> str | None:
    """Return why ASTRA-sim gives no answer to this case, in a sentence, or None where it gives one."""
    first = case.dimensions[0]
    if case.backend is AstraBackend.AWARE and len(case.dimensions) > 1:
        return "congestion-aware knows one dimension only: it exits with 255, `only support 1-dim topology`."
    if case.backend is AstraBackend.AWARE and first.topology is Topology.RING and first.npus == 2:
        return "a congestion-aware Ring of 2 aborts: both ways round are the same link, which it asserts is new."
    world = math.prod(d.npus for d in case.dimensions)
    if outside := [rank for rank in _ranks(case) if rank >= world]:
        return f"there is no rank {outside[0]} in a world of {world}."
    traffic = case.traffic
    if isinstance(traffic, CollectiveRun):
        for algorithm, dimension in zip(traffic.algorithms, case.dimensions, strict=True):
            if reason := _algorithm_fails(traffic.collective, algorithm, dimension.npus):
                return reason
    if isinstance(traffic, Group):
        if len(set(traffic.ranks)) < len(traffic.ranks):
            return "a group that lists a rank twice sends to itself: it aborts."
        return _algorithm_fails(traffic.collective, traffic.algorithm, len(traffic.ranks))
    if isinstance(traffic, Send) and traffic.source == traffic.dest:
        return "a rank that sends to itself has no route: it aborts."
    return None


def _ranks(case: AstraCase) -> tuple[int, ...]:
    traffic = case.traffic
    if isinstance(traffic, Group):
        return traffic.ranks
    if isinstance(traffic, Send):
        return (traffic.source, traffic.dest)
    if isinstance(traffic, LlmRun):
        return (traffic.stages * traffic.replicas - 1,)
    return (traffic.stages - 1,) if isinstance(traffic, PipelineRun) else ()


def _algorithm_fails(collective: Collective, algorithm: Algorithm, npus: int) -> str | None:
    if algorithm is not Algorithm.HALVING_DOUBLING:
        return None
    if collective is Collective.ALL_TO_ALL:
        return "halvingDoubling knows no all_to_all: it exits with 1, `unknown communication type`."
    if npus & (npus - 1):
        return f"halvingDoubling of {npus} ranks, not a power of two, hangs: it ends with 0 and no rank finished."
    return None


def why_doubtful(case: AstraCase) -> str | None:
    """Return why the answer ASTRA-sim gives is not what such a network would do, or None."""
    traffic, dimensions = case.traffic, case.dimensions
    if isinstance(traffic, CollectiveRun):
        chunks = min(traffic.system.splits, traffic.system.chunks_at_once)
        if case.backend is AstraBackend.UNAWARE and chunks > 1:
            return f"congestion-unaware: {chunks} chunks at once do not share the bandwidth, each has all of it."
        return None
    pairs = _pairs(case)
    if any(len(differing_dimensions(a, b, dimensions)) > 1 for a, b in pairs):
        return "a message is charged in the first dimension its ranks differ in: all others are free."
    if case.backend is AstraBackend.AWARE and _is_forwarded(dimensions[0], pairs):
        return "store-and-forward: a message is charged whole on every link of its way."
    return None


def _pairs(case: AstraCase) -> list[tuple[int, int]]:
    traffic = case.traffic
    if isinstance(traffic, Send):
        return [(traffic.source, traffic.dest)]
    if isinstance(traffic, Group):
        return list(zip(traffic.ranks, [*traffic.ranks[1:], traffic.ranks[0]], strict=True))
    if isinstance(traffic, LlmRun):
        return [(0, traffic.replicas)]
    return [(stage, stage + 1) for stage in range(traffic.stages - 1)] if isinstance(traffic, PipelineRun) else []


def _is_forwarded(dimension: Dimension, pairs: list[tuple[int, int]]) -> bool:
    return dimension.topology is Topology.SWITCH or any(dimension.ring_hops(a, b) > 1 for a, b in pairs)
