"""A whole plan as ASTRA-sim would time it, without its binary: the traces we would hand it, played here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from strata.simulate.analytic import StepModel
from strata.simulate.astra import chakra
from strata.simulate.astra.chakra import Node
from strata.simulate.astra.discover import AstraBackend
from strata.simulate.astra.files import ENDPOINT_DELAY_NS, GIB, Scenario
from strata.simulate.astra.lower import Aggregation, Lowered, lower
from strata.simulate.compat.groups import group_ns, path
from strata.simulate.compat.hierarchy import collective_ns
from strata.simulate.compat.network import Dimension, Path, Topology
from strata.simulate.compat.slots import play
from strata.simulate.compat.system import Algorithm, Collective, System
from strata.workload.plan import TrainingPlan


def astra_compatible_plan(
    model: StepModel, plan: TrainingPlan, *, aggregation: Aggregation | None = None
) -> tuple[float, Lowered[Scenario]]:
    """Return the seconds ASTRA-sim would report for one step of a plan, and the plan as it would see it.

    Ranks, dimensions, traces and refusals are those of the ASTRA-sim backend (`simulate.astra.lower:lower`). A
    collective starts when its last rank comes and lasts as long as alone: where messages meet it on a
    congestion-aware link, ASTRA-sim takes longer. Raises Refused, UsageError.
    """
    lowered = lower(model, plan, aggregation=aggregation)
    return max(finish_ns(lowered.scenario, lowered.backend)) * 1e-9, lowered


def finish_ns(scenario: Scenario, backend: AstraBackend) -> tuple[int, ...]:
    """Return when each rank of a scenario finishes [ns]."""
    dimensions = tuple(
        Dimension(
            Topology(dim.topology), dim.size, float(dim.bandwidth_bytes_per_s / GIB),
            round(dim.latency_s * 1e9, 6), backend,
        )
        for dim in scenario.dims
    )  # fmt: skip
    algorithms = tuple(Algorithm(dim.algorithm) for dim in scenario.dims)
    memory_gb_per_s = max(1, round(scenario.memory_bytes_per_s / 1e9))
    system = System(endpoint_delay_ns=ENDPOINT_DELAY_NS, local_memory_gb_per_s=memory_gb_per_s)

    @cache
    def lasts(kind: Collective, size_bytes: int, ranks: tuple[int, ...]) -> int:
        if len(ranks) == scenario.num_ranks:
            return collective_ns(kind, algorithms, size_bytes=size_bytes, dimensions=dimensions, system=system)
        # In a world of several dimensions a group is one ring, whatever the algorithm.
        algorithm = algorithms[0] if len(dimensions) == 1 else Algorithm.RING
        return group_ns(kind, algorithm, ranks, size_bytes=size_bytes, dimensions=dimensions, system=system)

    def sum_ns(node: Node, ranks: Sequence[int]) -> int:
        kind = chakra.ChakraCollective(int(str(node.attrs["comm_type"])))
        return lasts(Collective[kind.name], int(str(node.attrs["comm_size"])), tuple(ranks))

    def way(source: int, dest: int, size_bytes: int) -> Path:
        return path(source, dest, size_bytes, dimensions)

    return play(scenario.traces, path=way, groups=scenario.groups, collective_ns=sum_ns)
