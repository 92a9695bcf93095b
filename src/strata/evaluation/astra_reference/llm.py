"""One step of an LLM as the reference runs it: a pipeline in replicas that sum their gradients layer by layer.

A layer's all-reduce holds the communication slot, so the gradients for the stage before wait behind all of a
stage's sums: in these runs every sum of every stage is on the critical path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strata.evaluation.astra_reference.case import LlmRun
from strata.evaluation.astra_reference.pipeline_slots import warmups
from strata.simulate.astra.chakra import ChakraCollective as TraceCollective
from strata.simulate.astra.chakra import Node, NodeType, Value
from strata.simulate.compat.groups import group_ns, path
from strata.simulate.compat.hierarchy import chunks
from strata.simulate.compat.network import Dimension, Path
from strata.simulate.compat.slots import play
from strata.simulate.compat.system import Algorithm, Collective
from strata.simulate.order import StageWork, in_turn
from strata.simulate.timeline import SpanKind


def llm_step_ns(run: LlmRun, *, message_bytes: int, dimensions: Sequence[Dimension]) -> int:
    """Return when the last rank ends; rank = replica + replicas x stage."""
    groups = [tuple(_rank(run, replica, stage) for replica in range(run.replicas)) for stage in range(run.stages)]
    depth = warmups(run.order, run.stages, run.microbatches)
    traces = [
        _trace(run, replica, stage, depth[stage], message_bytes)
        for stage in range(run.stages)
        for replica in range(run.replicas)
    ]
    chunk, count = chunks(Collective.ALL_REDUCE, run.gradient_bytes, len(traces), run.system)

    def sum_ns(_node: Node, ranks: Sequence[int]) -> int:
        return count * group_ns(
            Collective.ALL_REDUCE, Algorithm.RING, ranks,
            size_bytes=chunk, dimensions=dimensions, system=run.system,
        )  # fmt: skip

    def way(source: int, dest: int, size_bytes: int) -> Path:
        return path(source, dest, size_bytes, dimensions)

    return max(play(traces, path=way, groups=groups, collective_ns=sum_ns))


def _rank(run: LlmRun, replica: int, stage: int) -> int:
    return replica + run.replicas * stage


def _trace(run: LlmRun, replica: int, stage: int, warmup: int, message_bytes: int) -> list[Node]:
    """Return a rank's nodes: receive, the layers one by one (and their sums, at the end), send."""
    nodes: list[Node] = []

    def add(
        kind: NodeType, waits: tuple[int, ...], *, us: int = 0, attrs: Mapping[str, Value] | None = None
    ) -> tuple[int]:
        nodes.append(Node(len(nodes), kind, data_deps=waits, duration_us=us, attrs=attrs or {}))
        return (nodes[-1].id,)

    def message(source: int, dest: int, work: StageWork) -> dict[str, Value]:
        return {
            "comm_src": _rank(run, replica, source),
            "comm_dst": _rank(run, replica, dest),
            "comm_size": message_bytes,
            "comm_tag": 2 * work.microbatch + (work.kind is SpanKind.FORWARD),
        }

    gradients: dict[str, Value] = {
        "comm_type": int(TraceCollective.ALL_REDUCE),
        "comm_size": run.gradient_bytes,
        "pg_name": str(stage + 1),
    }
    previous: tuple[int, ...] = ()
    for work in in_turn(warmup, run.microbatches):
        is_forward = work.kind is SpanKind.FORWARD
        step = 1 if is_forward else -1
        waits = previous
        if 0 <= stage - step < run.stages:
            waits += add(NodeType.COMM_RECV, (), attrs=message(stage - step, stage, work))
        is_summed = not is_forward and work.microbatch == run.microbatches - 1 and run.replicas > 1
        for _ in range(run.layers_per_stage):
            us = run.forward_us if is_forward else run.backward_us
            waits = previous = add(NodeType.COMP, waits, us=us)
            if is_summed:
                add(NodeType.COMM_COLL, previous, attrs=gradients)
        if 0 <= stage + step < run.stages:
            add(NodeType.COMM_SEND, previous, attrs=message(stage, stage + step, work))
    return nodes
