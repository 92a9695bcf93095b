"""The layered graph: servers joined where one ends and another has the next layer, as matrices by boundary.

A server may be entered inside its range, and is then used from there to its end. N servers in canonical order
(by range, then name); at boundary b the U servers that end there meet the S that hold layer b.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from strata.arrays import Floats
from strata.serving.layout import Layout, StageServer

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
    servers = tuple(sorted(layout.servers, key=lambda server: (server.first, server.end, server.node_id)))
    names = [server.node_id for server in servers]
    layers = sorted({server.end for server in servers if server.end < layout.num_layers} | {0}, reverse=True)
    boundaries, hops, start, after_each = [], [np.zeros((2, 0))], 0, []
    widest = {layout.num_layers: 2**62}
    for layer in layers:
        after = [i for i, server in enumerate(servers) if server.first <= layer < server.end]
        before = [i for i, server in enumerate(servers) if server.end == layer] if layer else []
        share = [(servers[i].end - layer) / (servers[i].end - servers[i].first) for i in after]
        after_each.append(tuple(after))
        shape = (len(after), len(before))
        boundaries.append(Boundary(layer, _at(after), np.array(share), _at(before), start, shape))
        table = layout.lines([names[u] for u in before], [names[v] for v in after])
        hops.append(table.transpose(0, 2, 1).reshape(2, -1))
        start += len(after) * len(before)
        room = [min(servers[i].kv_tokens, widest.get(servers[i].end, 0)) for i in after]
        widest[layer] = max(room, default=0)
    tails = [i for i, server in enumerate(servers) if server.end == layout.num_layers]
    heads = [i for i, server in enumerate(servers) if server.first == 0]
    order = {layer: number for number, layer in enumerate(layers)}
    place, ending = [], Counter[int]()
    for server in servers:
        place.append(ending[server.end])
        ending[server.end] += 1
    closing_s = layout.lines([names[t] for t in tails], [names[h] for h in heads]).sum(axis=0)
    return Graph(
        servers,
        tuple(boundaries),
        np.concatenate(hops, axis=1),
        tuple(heads),
        tuple(after_each),
        np.array(tails, dtype=np.intp),
        closing_s,
        tuple(order.get(server.end, -1) for server in servers),
        tuple(place),
        widest[0],
    )


def _at(indices: list[int]) -> Ints | slice:
    """Return indices for reading an array; neighbours as a slice, which is read several times faster."""
    if indices and indices[-1] - indices[0] == len(indices) - 1:
        return slice(indices[0], indices[-1] + 1)
    return np.array(indices, dtype=np.intp)
