"""Case files as pools; the form is that of `serving_cases.json`, milliseconds there and seconds here.

A hop costs what the file's `rtt_ms` names: its neutral scorer counts the value once a hop.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from strata.errors import BadFile
from strata.files import Document, read_json
from strata.serving.planning.allocation import Performance, Pipeline, Stage, faults, score
from strata.serving.planning.pool import LayerCapacity, NodePool, PoolNode, equal_layers
from strata.serving.planning.schema import CaseEntry, CaseFile
from strata.serving.planning.schema import faults as entry_faults

MAX_FILE_BYTES = 256 * 2**20
"""Round trips of 1000 nodes alone are 8 MB."""


@dataclass(frozen=True, slots=True)
class ServingCase:
    """A pool, and the best legal plan that the file has of Parallax, by tokens/s; None where it has none."""

    id: str
    pool: NodePool
    parallax: Performance | None


def read_cases(path: str | Path) -> list[ServingCase]:
    """Read a case file. Raises UsageError for a missing file, BadFile with all faults for a bad one."""
    document = Document(str(path), {"cases": read_json(path, max_bytes=MAX_FILE_BYTES)}, {})
    entries = document.check(CaseFile).cases
    found = [fault for number, entry in enumerate(entries) for fault in entry_faults(document, number, entry)]
    if found:
        raise BadFile(found)
    return [_case(entry) for entry in entries]


def _case(entry: CaseEntry) -> ServingCase:
    nodes = [
        PoolNode(
            node.id,
            equal_layers(node.layer_ms / 1e3, entry.layers),
            node.head_ms / 1e3,
            LayerCapacity(**dict(node.capacity)),
        )
        for node in entry.nodes
    ]
    pool = NodePool.of(nodes, entry.layers, entry.batch, np.array(entry.rtt_ms) / 1e3)
    peers = [_pipelines(peer.pipelines) for peer in (entry.parallax or {}).values() if peer.pipelines]
    known = [score(pool, plan) for plan in peers if not faults(pool, plan)]
    return ServingCase(entry.id, pool, max(known, key=lambda performance: performance.tokens_per_s, default=None))


def _pipelines(rows: list[list[tuple[str, int, int]]]) -> list[Pipeline]:
    return [tuple(Stage(*stage) for stage in row) for row in rows]
