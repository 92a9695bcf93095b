"""Which layers each chunk of a pipeline holds, where stages interleave."""

from __future__ import annotations

from strata.workload.plan import Pipeline


def chunk_layers(pipeline: Pipeline, virtual_stages: int) -> tuple[tuple[range, ...], ...]:
    """Return the layers of each chunk of each stage, [S][v].

    The model runs through all stages once a chunk (arXiv 2104.04473 §2.2), so a stage's layers lie in v places.
    A plan says only how many a stage has; its transformer layers are shared out evenly. The first chunk of the
    first stage has the embedding too and the last of the last stage the head, so these get no layer left over.
    """
    counts = [stage.num_layers for stage in pipeline.stages]
    counts[0] -= 1
    counts[-1] -= 1
    sizes = [
        [count // virtual_stages + (c < count % virtual_stages) for c in range(virtual_stages)] for count in counts
    ]
    sizes[0].reverse()
    sizes[0][0] += 1
    sizes[-1][-1] += 1
    chunks: list[list[range]] = [[] for _ in counts]
    first = 0
    for c in range(virtual_stages):
        for s, size in enumerate(sizes):
            chunks[s].append(range(first, first + size[c]))
            first += size[c]
    return tuple(map(tuple, chunks))
