"""Machines for tests."""

from __future__ import annotations

from strata.host.machine.cpus import Cpu, Cpus


def simple(number: int, *, nodes: int = 1, smt: bool = False) -> Cpus:
    """Return a machine of `number` like CPUs, one cache a node; with `smt` two neighbours share a core."""
    per_node = max(1, number // nodes)
    return Cpus(
        tuple(
            Cpu(
                cpu,
                min(cpu // per_node, nodes - 1),
                min(cpu // per_node, nodes - 1),
                (cpu - cpu % 2, cpu - cpu % 2 + 1) if smt else (cpu,),
            )
            for cpu in range(number)
        )
    )
