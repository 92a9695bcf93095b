"""How many stages a domain has room for, and how many microbatches a pipeline works through."""

from __future__ import annotations

from strata.fleet.fleet import Domain
from strata.training.plan.exact.config import ParallelConfig
from strata.workload.job import TrainingJob


def ranks_of(domain: Domain, tensor_parallel: int) -> int:
    """Return the tensor-parallel degree in a domain: the one asked for, as far as a node allows."""
    if tensor_parallel <= domain.devices_per_node:
        return tensor_parallel
    # A power of two divides the heads wherever a larger one does; what a node of 6 has left over stays idle.
    return 1 << domain.devices_per_node.bit_length() - 1


def slots(domain: Domain, tensor_parallel: int, context_parallel: int = 1) -> int:
    """Return how many stages a domain has room for, all copies together.

    Pieces of a sequence lie in one node or fill nodes: none where their number does neither.
    """
    inside = domain.devices_per_node // ranks_of(domain, tensor_parallel)
    if max(inside, context_parallel) % min(inside, context_parallel):
        return 0
    return domain.num_nodes * inside // context_parallel


def num_microbatches(job: TrainingJob, config: ParallelConfig) -> int:
    """Return the microbatches each copy works through when one pipeline does the whole batch."""
    return -(-job.global_batch // (config.microbatch_size * config.data_parallel))
