"""A pipeline as ASTRA-sim runs its trace: one compute slot and one communication slot a rank.

A send holds its rank's only communication slot until it is *delivered*, latency included, so the sends of a
rank never overlap: on a 30 ms WAN that is most of the difference to our own model (docs/fidelity.md).
Receives need no slot. Ready nodes start in the order of their ids.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from strata.errors import UsageError
from strata.simulate.compat.network import Backend, Dimension, Topology

Wire = tuple[str | int, ...]


class Link(NamedTuple):
    """One FIFO server on a message's way: who shares it, how long one message keeps it, when it arrives."""

    wire: Wire
    busy_ns: int
    arrival_ns: int


class Work(NamedTuple):
    """One compute node of a rank: the forward or the backward of a microbatch."""

    is_forward: bool
    microbatch: int


Path = tuple[Link, ...]


@dataclass(slots=True)
class _Rank:
    work: list[Work]
    done: int = 0
    is_computing: bool = False
    is_sending: bool = False
    arrived: set[Work] = field(default_factory=set)
    outbox: deque[Work] = field(default_factory=deque)


def stage_order(microbatches: int, warmup: int) -> Iterator[Work]:
    """Yield a stage's work: `warmup` forwards, then a forward and a backward in turn, then what is left."""
    warmup = min(warmup, microbatches)
    for m in range(warmup):
        yield Work(True, m)
    for m in range(microbatches):
        if warmup + m < microbatches:
            yield Work(True, warmup + m)
        yield Work(False, m)


def warmups(order: str | Sequence[int], stages: int, microbatches: int) -> list[int]:
    """Return the forwards of each stage before its first backward. Raises UsageError on another order."""
    if order == "gpipe":
        return [microbatches] * stages
    if order == "1f1b":
        return [min(stages - stage - 1, microbatches) for stage in range(stages)]
    if isinstance(order, str) or len(order) != stages:
        raise UsageError(f"order {order!r} is neither gpipe, 1f1b nor one warm-up for each of {stages} stages")
    return list(order)


def neighbour_paths(dimension: Dimension, size_bytes: int) -> tuple[list[Path], list[Path]]:
    """Return the ways of activations and of gradients over each cut, where rank = stage on one dimension."""

    def path(source: int, dest: int) -> Path:
        if dimension.backend is Backend.UNAWARE:
            return (Link((source, dest), 0, dimension.send_ns(size_bytes)),)
        link = dimension.busy_ns(size_bytes), dimension.link_ns(size_bytes)
        if dimension.topology is Topology.SWITCH:
            return (Link((source, "switch"), *link), Link(("switch", dest), *link))
        return (Link((source, dest), *link),)

    cuts = range(dimension.npus - 1)
    return [path(cut, cut + 1) for cut in cuts], [path(cut + 1, cut) for cut in cuts]


def pipeline_ns(
    forward_ns: Sequence[int],
    backward_ns: Sequence[int],
    there: Sequence[Path],
    back: Sequence[Path],
    *,
    microbatches: int,
    warmup: Sequence[int],
) -> int:
    """Return when the last rank ends. Per stage [S], per cut [S-1]: activations `there`, gradients `back`.

    Raises UsageError where a warm-up makes stages wait for each other for ever: ASTRA-sim ends without a word.
    """
    stages = len(forward_ns)
    ranks = [_Rank(list(stage_order(microbatches, each))) for each in warmup]
    events: list[tuple[int, int, int, Work, Path | None]] = []  # time, tie-break, rank, work, links still ahead
    free_at: dict[Wire, int] = {}
    serial = count()
    end = 0

    def push(time: int, rank: int, work: Work, path: Path | None) -> None:
        heapq.heappush(events, (time, next(serial), rank, work, path))

    def travel(now: int, rank: int, work: Work, path: Path) -> None:
        link, rest = path[0], path[1:]
        start = max(now, free_at.get(link.wire, 0))
        free_at[link.wire] = start + link.busy_ns
        push(start + link.arrival_ns, rank, work, rest)

    def issue(now: int, rank: int) -> None:
        state = ranks[rank]
        if not state.is_sending and state.outbox:  # before the compute: a send has the lower id
            work = state.outbox.popleft()
            state.is_sending = True
            travel(now, rank, work, there[rank] if work.is_forward else back[rank - 1])
        if not state.is_computing and state.done < len(state.work):
            work = state.work[state.done]
            is_first = rank == (0 if work.is_forward else stages - 1)
            if is_first or work in state.arrived:
                state.is_computing = True
                push(now + (forward_ns if work.is_forward else backward_ns)[rank], rank, work, None)

    for rank in range(stages):
        issue(0, rank)
    while events:
        end, _, rank, work, path = heapq.heappop(events)
        state = ranks[rank]
        if path:
            travel(end, rank, work, path)
        elif path is None:
            state.is_computing, state.done = False, state.done + 1
            if rank != (stages - 1 if work.is_forward else 0):
                state.outbox.append(work)
            issue(end, rank)
        else:
            state.is_sending = False
            issue(end, rank)
            dest = rank + 1 if work.is_forward else rank - 1
            ranks[dest].arrived.add(work)
            issue(end, dest)
    stuck = [rank for rank, state in enumerate(ranks) if state.done < len(state.work)]
    if stuck:
        raise UsageError(f"stages {stuck} wait for each other for ever; ASTRA-sim would end in silence (rc 0)")
    return end


def astra_compatible_step(
    *,
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    message_bytes: Sequence[float],
    bandwidth_bytes_per_s: Sequence[float],
    latency_s: Sequence[float],
    microbatches: int,
    order: str | Sequence[int] = "1f1b",
) -> float:
    """Return the seconds ASTRA-sim would report for one pipeline step, every cut one link each way.

    forward_s, backward_s [S], one microbatch on one stage; message_bytes, bandwidth_bytes_per_s, latency_s
    [S-1], one message over one cut. order: gpipe, 1f1b, or the forwards before the first backward of each
    stage [S]. Computes are rounded to whole microseconds (a trace can say no less; 0 lasts 1 ns), messages
    are truncated to whole nanoseconds. Only the pipeline: no gradient sum, no update. Unlike network.yml,
    every cut may have its own bandwidth and latency.
    """

    def path(name: str, cut: int) -> Path:
        # Seconds in binary: without the 1e-6 ns, 0.0011 s would be truncated to 1,099,999 ns.
        serial_ns = message_bytes[cut] / bandwidth_bytes_per_s[cut] * 1e9 + 1e-6
        return (Link((name, cut), int(serial_ns), int(latency_s[cut] * 1e9 + serial_ns)),)

    stages, cuts = len(forward_s), range(len(message_bytes))
    found = pipeline_ns(
        [compute_ns(each) for each in forward_s],
        [compute_ns(each) for each in backward_s],
        [path("there", cut) for cut in cuts],
        [path("back", cut) for cut in cuts],
        microbatches=microbatches,
        warmup=warmups(order, stages, microbatches),
    )
    return found * 1e-9


def compute_ns(duration_s: float) -> int:
    """Return the length of a compute node whose trace says `duration_s` in whole microseconds."""
    return round(duration_s * 1e6) * 1000 or 1
