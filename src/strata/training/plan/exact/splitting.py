"""Into how many pieces a search cuts sequences, and over how many devices it spreads experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strata.fleet.fleet import Fleet
from strata.simulate.memory import FIXED_BYTES
from strata.workload.job import TrainingJob

LEAST_PIECE_TOKENS: Final = 1024
"""Of one piece of a sequence: in smaller ones kernels take their launch, not their work."""

DEVICES_PER_SEQUENCE: Final = 2
"""Up to so many devices for each sequence of a step, pipelines have microbatches enough (see `Splitting`)."""

WIDEST: Final = 8
"""Tensor parallel devices that whole sequences must fit."""


@dataclass(frozen=True)
class Splitting:
    """The degrees of context and expert parallelism that a search tries: 1, and others where they may help.

    Pieces of sequences instead of more copies, on the same devices, save a pipeline at most its bubble and, where
    whole sequences leave no room for activations, their recomputation: c pieces make M microbatches cM, each a
    c-th of the work (docs/cost-model.md §8, B9). With D devices, B sequences a step and t tensor ranks there are
    D/(Bt) stages to a microbatch of one sequence, which is the bubble's share. So pieces are tried where D is more
    than DEVICES_PER_SEQUENCE times B, and where the activations of one sequence, none of them computed again, do
    not fit the tensor ranks of a node. Experts of a mixture are spread over every divisor of their number.
    """

    context_degrees: tuple[int, ...]
    expert_degrees: tuple[int, ...]

    @classmethod
    def of(cls, fleet: Fleet, job: TrainingJob) -> Splitting:
        """Return the degrees of a job on a fleet."""
        pins = job.pins
        return cls(
            _context_degrees(fleet, job) if pins.context is None else (pins.context,),
            _expert_degrees(fleet, job) if pins.expert is None else (pins.expert,),
        )

    @property
    def is_any(self) -> bool:
        """Whether anything but whole sequences and all experts is tried."""
        return max(self.context_degrees) * max(self.expert_degrees) > 1


def _context_degrees(fleet: Fleet, job: TrainingJob) -> tuple[int, ...]:
    devices = sum(domain.num_devices for domain in fleet.domains)
    if devices <= DEVICES_PER_SEQUENCE * job.global_batch and sequences_fit(fleet, job):
        return (1,)
    most = min(_largest(fleet), job.sequence_length // LEAST_PIECE_TOKENS)
    return (1, *(1 << k for k in range(1, most.bit_length()) if not job.sequence_length % (1 << k)))


def sequences_fit(fleet: Fleet, job: TrainingJob) -> bool:
    """Whether the activations of a whole sequence fit the tensor ranks of some domain's node."""
    kept, headroom = float(job.layers.activation_bytes.sum()), 1 - job.limits.memory_headroom
    return any(
        kept <= min(WIDEST, domain.devices_per_node) * (domain.accelerator.memory_bytes * headroom - FIXED_BYTES)
        for domain in fleet.domains
    )


def _expert_degrees(fleet: Fleet, job: TrainingJob) -> tuple[int, ...]:
    if job.spec is None or job.spec.experts is None:
        return (1,)
    count = job.spec.experts.num_experts
    return tuple(ranks for ranks in range(1, min(count, _largest(fleet)) + 1) if not count % ranks)


def _largest(fleet: Fleet) -> int:
    return max((domain.num_devices for domain in fleet.domains), default=1)
