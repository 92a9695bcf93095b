"""A pipeline alone, as ASTRA-sim runs its trace: its stages' order of work, played with one slot a rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strata.errors import UsageError
from strata.simulate.astra.chakra import Node, NodeType, Value
from strata.simulate.compat.network import Path
from strata.simulate.compat.slots import play
from strata.simulate.order import StageWork, in_turn
from strata.simulate.timeline import SpanKind


def warmups(order: str | Sequence[int], stages: int, microbatches: int) -> list[int]:
    """Return the forwards of each stage before its first backward. Raises UsageError on another order."""
    if order == "gpipe":
        return [microbatches] * stages
    if order == "1f1b":
        return [min(stages - stage - 1, microbatches) for stage in range(stages)]
    if isinstance(order, str) or len(order) != stages:
        raise UsageError(f"order {order!r} is neither gpipe, 1f1b nor one warm-up for each of {stages} stages")
    return list(order)


def pipeline_ns(
    forward_us: Sequence[int],
    backward_us: Sequence[int],
    path: Callable[[int, int], Path],
    *,
    microbatches: int,
    warmup: Sequence[int],
) -> int:
    """Return when the last rank ends; rank = stage. path: the links from one rank to a neighbour.

    forward_us, backward_us, warmup [S]: compute of one microbatch, a trace can say whole microseconds only (0
    lasts 1 ns). Raises UsageError where a warm-up makes stages wait for each other for ever.
    """
    stages = len(forward_us)
    traces = [
        _trace(rank, stages, in_turn(warmup[rank], microbatches), forward_us[rank], backward_us[rank])
        for rank in range(stages)
    ]

    def on_wire(source: int, dest: int, _size: int) -> Path:
        return path(source, dest)

    return max(play(traces, path=on_wire, groups=(), collective_ns=lambda *_: 0))


def _trace(rank: int, stages: int, work: Sequence[StageWork], forward_us: int, backward_us: int) -> list[Node]:
    """Return a stage's nodes: for each piece of work receive, compute, send; a receive waits for nothing."""
    nodes: list[Node] = []
    previous: tuple[int, ...] = ()

    def message(source: int, dest: int, item: StageWork) -> dict[str, Value]:
        return {
            "comm_src": source,
            "comm_dst": dest,
            "comm_size": 1,
            "comm_tag": 2 * item.microbatch + (item.kind is SpanKind.FORWARD),
        }

    for item in work:
        is_forward = item.kind is SpanKind.FORWARD
        step = 1 if is_forward else -1
        waits = previous
        if 0 <= rank - step < stages:
            waits = (*previous, len(nodes))
            nodes.append(Node(len(nodes), NodeType.COMM_RECV, attrs=message(rank - step, rank, item)))
        previous = (len(nodes),)
        duration_us = forward_us if is_forward else backward_us
        nodes.append(Node(len(nodes), NodeType.COMP, data_deps=waits, duration_us=duration_us))
        if 0 <= rank + step < stages:
            attrs = message(rank, rank + step, item)
            nodes.append(Node(len(nodes), NodeType.COMM_SEND, data_deps=previous, attrs=attrs))
    return nodes
