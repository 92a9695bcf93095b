"""The layered graph: servers joined where one ends and another has the next layer, as matrices by boundary.

A server may be entered inside its range, and is then used from there to its end. N servers in canonical order
(by range, then name); at boundary b the U servers that end there meet the S that hold layer b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.serving.layout import Layout, StageServer

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where layer `layer` begins. `next` [S] hold it, `share` [S] of their layers are then used; `before` [U]
    end there (none at layer 0); `start` is where its S x U hops, of `shape`, begin among the graph's edges.
    """

    layer: int
    next: Ints | slice
    share: Floats
    before: Ints | slice
    start: int
    shape: tuple[int, int]

    def hops(self, edges: Floats) -> Floats:
        """Return the hops of this boundary [S, U] out of those of the graph."""
        return edges[self.start : self.start + self.shape[0] * self.shape[1]].reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Graph:
    """`boundaries` from the last to layer 0, and the servers `next` at each; `edges` [2, E]: fixed and per-token
    seconds of every hop.

    closing_s [T, H]: one token from each of the T `tails` to each of the H `heads`, which hold layer 0.
    after, place: of each server, the index of the boundary at its end (-1 for a tail) and its column there; of a
    tail its row in `closing_s`. widest: KV tokens of the roomiest path.
    """

    servers: tuple[StageServer, ...]
    boundaries: tuple[Boundary, ...]
    edges: Floats
    heads: tuple[int, ...]
    next: tuple[tuple[int, ...], ...]
    tails: Ints
    closing_s: Floats
    after: tuple[int, ...]
    place: tuple[int, ...]
    widest: int


def graph_of(layout: Layout) -> Graph:
    """Return a layout's graph; O(U x S) hops are looked up at every boundary, once a layout."""
    servers = tuple(sorted(layout.servers, key=lambda one: (one.first, one.end, one.node_id)))
    layers = sorted({one.end for one in servers if one.end < layout.num_layers} | {0}, reverse=True)
    boundaries, hops, start, after_each = [], list[tuple[float, float]](), 0, []
    widest = {layout.num_layers: 2**62}
    for layer in layers:
        after = [i for i, one in enumerate(servers) if one.first <= layer < one.end]
        before = [i for i, one in enumerate(servers) if one.end == layer] if layer else []
        share = [(servers[i].end - layer) / (servers[i].end - servers[i].first) for i in after]
        after_each.append(tuple(after))
        shape = (len(after), len(before))
        boundaries.append(Boundary(layer, _at(after), np.array(share), _at(before), start, shape))
        hops += [layout.hop(servers[u].node_id, servers[v].node_id) for v in after for u in before]
        start = len(hops)
        room = [min(servers[i].kv_tokens, widest.get(servers[i].end, 0)) for i in after]
        widest[layer] = max(room, default=0)
    tails = [i for i, one in enumerate(servers) if one.end == layout.num_layers]
    heads = [i for i, one in enumerate(servers) if one.first == 0]
    order = {layer: number for number, layer in enumerate(layers)}
    closing = [[layout.hop(servers[t].node_id, servers[h].node_id).at(1) for h in heads] for t in tails]
    return Graph(
        servers,
        tuple(boundaries),
        np.array(hops).reshape(-1, 2).T.copy(),
        tuple(heads),
        tuple(after_each),
        np.array(tails, dtype=np.intp),
        np.array(closing).reshape(len(tails), len(heads)),
        tuple(order.get(one.end, -1) for one in servers),
        tuple([one.end for one in servers[:i]].count(one.end) for i, one in enumerate(servers)),
        widest[0],
    )


def _at(indices: list[int]) -> Ints | slice:
    """Return indices for reading an array; neighbours as a slice, which is read several times faster."""
    if indices and indices[-1] - indices[0] == len(indices) - 1:
        return slice(indices[0], indices[-1] + 1)
    return np.array(indices, dtype=np.intp)
