"""What a domain tells the global level about itself, and the fleet that the global level plans on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strata.fleet.accelerator import Accelerator
from strata.fleet.fleet import Fleet
from strata.training.hi_ppo.domain_state import DomainState
from strata.training.hi_ppo.local_agent import LocalDecision
from strata.training.hi_ppo.placement import node_groups
from strata.workload.job import TrainingJob


@dataclass(frozen=True, slots=True)
class Capacity:
    """One domain as delivered.

    usable_devices: that answer and have their memory, in groups that a node holds whole. free_devices: of
    those, the ones this job does not use. speed: of a device against nominal, what stragglers cost after the
    local agent did what it could. queue: jobs that wait there.
    """

    domain: str
    usable_devices: int
    free_devices: int
    lost_devices: int
    speed: float
    queue: int = 0


def capacity(
    domain_state: DomainState, answer: LocalDecision | None, *, job: TrainingJob, ranks: int = 1, queue: int = 0
) -> Capacity:
    """Return what a domain delivers. ranks: devices a group takes; without a binding the mean speed counts."""
    headroom = 1 - job.limits.memory_headroom
    usable = (domain_state.speed > 0) & (
        domain_state.free_memory_bytes >= headroom * domain_state.domain.accelerator.memory_bytes
    )
    count = node_groups(domain_state, usable, ranks).size
    speed, used = float(domain_state.speed[usable].mean()) if usable.any() else 0.0, 0
    if answer is not None and answer.binding is not None:
        used = len(answer.binding.used)
        ranks = max(answer.binding.degrees)
        count = max(used, node_groups(domain_state, usable, ranks).size)
        # A step on fewer devices takes longer, which does not make the devices slow.
        speed = min(1.0, answer.throughput * answer.planned_devices / used)
    return Capacity(
        domain=domain_state.domain.name,
        usable_devices=count,
        free_devices=count - used,
        lost_devices=int(domain_state.is_lost.sum()),
        speed=speed,
        queue=queue,
    )


def delivered(fleet: Fleet, offered: Mapping[str, Capacity]) -> Fleet:
    """Return the fleet with as many devices, and as fast, as its domains deliver; one without any is left out.

    Layer times that were measured are of nominal devices: a job with a profile sees fewer devices, not slower.
    """
    kept = fleet.only(name for name, item in offered.items() if item.usable_devices > 0)
    return replace(
        kept,
        domains=tuple(
            replace(
                domain,
                num_devices=offered[domain.name].usable_devices,
                devices_per_node=min(domain.devices_per_node, offered[domain.name].usable_devices),
                accelerator=_slower(domain.accelerator, offered[domain.name].speed),
            )
            for domain in kept.domains
        ),
    )


def _slower(card: Accelerator, speed: float) -> Accelerator:
    def slowed(flops: float | None) -> float | None:
        return None if flops is None else flops * speed

    return replace(
        card,
        fp16_flops=slowed(card.fp16_flops),
        fp32_flops=slowed(card.fp32_flops),
        fp8_flops=slowed(card.fp8_flops),
    )
