"""The inner shapes that a search tries on a fleet: no two that mean the same there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from strata.fleet.fleet import Fleet
from strata.training.plan.exact.config import ParallelConfig
from strata.training.plan.exact.room import num_microbatches, slots
from strata.training.plan.exact.splitting import Splitting
from strata.workload.job import ContextExchange, Recompute, TrainingJob

LARGEST_MICROBATCH: Final = 16
TENSOR_PARALLEL: Final = (1, 2, 4, 8)
"""Sizes searched. Tensor parallelism stays inside a node; larger microbatches only cost memory and bubble."""

CAPS: Final = (1, 2, 4, 8)
"""Stages per domain a plan may be held to, beside "as many as there are devices": fewer devices cost less."""

MOST_DEGREES_TRIED: Final = 24


@dataclass(frozen=True)
class ConfigSpace:
    """What a job may be given on the domains of a fleet, in `modes` of recomputation.

    `num_like_layers`: so many layers of the model are alike, on which even splits depend.
    """

    fleet: Fleet
    job: TrainingJob
    splitting: Splitting
    modes: tuple[Recompute, ...]
    num_like_layers: int

    @property
    def microbatch_sizes(self) -> tuple[int, ...]:
        """The microbatches searched: the one that the job fixes, or all up to LARGEST_MICROBATCH."""
        fixed = self.job.pins.microbatch
        return tuple(range(1, min(LARGEST_MICROBATCH, self.job.global_batch) + 1)) if fixed is None else (fixed,)

    def _pipeline_sizes(self, data_parallel: int) -> list[int]:
        """Return the microbatches worth trying for one pipeline: powers of two, and what its share is made of.

        Of a share that others leave a rest of, the last microbatch is short; one step is no better for it.
        """
        share = -(-self.job.global_batch // data_parallel)
        return [
            size
            for size in self.microbatch_sizes
            if size <= share and (not share % size or not size & (size - 1) or self.job.pins.microbatch)
        ]

    @cached_property
    def configs(self) -> tuple[ParallelConfig, ...]:
        """All inner shapes worth trying for pipelines that work off the batch: no two that mean the same on this
        fleet.

        Copies that save no microbatch have less to do and more to sum gradients with: the least that need no more
        microbatches are tried, too.
        """
        configs: dict[ParallelConfig, None] = {}
        for shape in self.shapes:
            for size in self._pipeline_sizes(shape.data_parallel):
                config = shape.of_size(size)
                configs[config] = None
                count = num_microbatches(self.job, config)
                copies = -(-self.job.global_batch // (size * count))
                is_other = copies != shape.data_parallel and self.job.pins.data is None
                if is_other and not copies * shape.context_parallel % shape.expert_parallel:
                    configs[shape.of_size(size, data_parallel=copies)] = None
        return tuple(configs)

    @cached_property
    def shapes(self) -> tuple[ParallelConfig, ...]:
        """All inner shapes for microbatches of one sample, those that share the batch with others included.

        Where the job fixes the copies of the model, fewer of them are listed too: several pipelines share them.
        """
        configs, pins = [], self.job.pins
        heads, batch = self.job.num_heads, self.job.global_batch
        widest = max((domain.devices_per_node for domain in self.fleet.domains), default=1)
        for ranks in TENSOR_PARALLEL if pins.tensor is None else (pins.tensor,):
            if ranks > widest or not self.job.divides(ranks):
                continue
            for context, exchange in self._context_ways(heads // ranks):
                # Where stages are fixed a domain has room for copies of all of its own.
                rooms = [
                    slots(domain, ranks, context) // (pins.stages_in(domain.name) or 1)
                    for domain in self.fleet.domains
                ]
                for data_parallel in _data_parallel_degrees(rooms, batch, pins.data):
                    most = max(count // data_parallel for count in rooms)
                    caps = sorted(
                        {min(cap, most) for cap in (*CAPS, len(self.job.layers), *self._even_depths(most))}
                    )
                    if pins.stages is not None:
                        caps = [max(count for _, count in pins.stages)]
                    elif pins.pipeline is not None:
                        caps = list(range(1, min(pins.pipeline, most) + 1))
                    copies = data_parallel * context
                    configs += [
                        ParallelConfig(1, ranks, data_parallel, cap, recompute, context, exchange, experts)
                        for cap in caps
                        for recompute in self.modes
                        for experts in self.splitting.expert_degrees
                        if not copies % experts
                    ]
        return tuple(configs)

    def _even_depths(self, most: int) -> tuple[int, int]:
        """Return the stages there is room for, and the fewest whose fullest has no more of the like layers."""
        count = self.num_like_layers
        return most, -(-count // -(-count // max(1, most)))

    def _context_ways(self, heads: int) -> list[tuple[int, ContextExchange]]:
        """Return the pieces of a sequence and their exchange, for so many heads of a tensor rank."""
        return [
            (pieces, exchange)
            for pieces in self.splitting.context_degrees
            for exchange in (ContextExchange if pieces > 1 else (ContextExchange.RING,))
            if exchange is ContextExchange.RING or not heads % pieces
        ]


def _data_parallel_degrees(slots: list[int], batch: int, fixed: int | None) -> list[int]:
    """Return the data-parallel degrees worth trying: powers of two, and those that use a domain up.

    Where the copies are fixed, all degrees that may add up to them, as far as there are not too many.
    """
    most = min(max(slots, default=0), batch, fixed or batch)
    if fixed is not None and most <= MOST_DEGREES_TRIED:
        return list(range(1, most + 1))
    degrees = {1 << k for k in range(most.bit_length()) if 1 << k <= most}
    degrees |= {
        count // parts for count in set(slots) for parts in (1, 2, 3, 4, 6, 8) if 0 < count // parts <= most
    }
    if fixed is not None and most > 0:
        degrees.add(most)
    if len(degrees) <= MOST_DEGREES_TRIED:
        return sorted(degrees)
    every = sorted(degrees)
    picks = np.unique(np.linspace(0, len(every) - 1, MOST_DEGREES_TRIED).round().astype(int))
    return [every[i] for i in picks]
