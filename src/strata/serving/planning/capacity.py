"""Whether a pool holds the model at all: exact, and what is missing where it does not."""

from __future__ import annotations

from strata.decision import Reason
from strata.serving.planning.pool import NodePool


def largest_pipeline(pool: NodePool) -> tuple[list[int], int]:
    """Return a pipeline of at most L nodes that holds the most layers, and how many (more than L perhaps).

    With more than L nodes it may hold fewer than the most, but never fewer than L if any pipeline does.
    """
    rooms, L = [node.capacity for node in pool.nodes], pool.num_layers
    everyone = range(len(rooms))
    best: tuple[list[int], int] = ([], 0)
    if rooms:
        alone = max(everyone, key=lambda i: rooms[i].only)
        best = [alone], rooms[alone].only
    # The two ends must differ, so one of the two best firsts goes with one of the two best lasts.
    firsts = sorted((i for i in everyone if rooms[i].first > 0), key=lambda i: rooms[i].middle - rooms[i].first)
    lasts = sorted((i for i in everyone if rooms[i].last > 0), key=lambda i: rooms[i].middle - rooms[i].last)
    inner = sorted((i for i in everyone if rooms[i].middle > 0), key=lambda i: -rooms[i].middle)
    for first in firsts[:2]:
        for last in lasts[:2]:
            if first == last or L < 2:
                continue
            between = [i for i in inner[:L] if i not in (first, last)][: L - 2]
            held = rooms[first].first + sum(rooms[i].middle for i in between) + rooms[last].last
            if held > best[1]:
                best = [first, *between, last], held
    return best


def why_not_held(pool: NodePool) -> tuple[Reason, ...]:
    """Say why a pool serves nothing; empty where it holds the model."""
    held = largest_pipeline(pool)[1]
    if held >= pool.num_layers:
        return ()
    return (Reason("layers-do-not-fit", data={"have": held, "need": pool.num_layers, "nodes": len(pool.nodes)}),)
