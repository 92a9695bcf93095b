"""What a cluster has, as one vector of ACU: in total, in use, free, by domain, vendor and node.

Of a device in part use, memory counts by its bytes and everything else by the share of its cores. What is free of
a device that is unwell, that its device plugin does not offer, or whose node is closed, is out: nobody can have it
now.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from strata.cluster.scheduling.index import MIN_HEALTH
from strata.cluster.scheduling.snapshot import NodeState
from strata.decision import Trust, worst
from strata.fleet.accelerator import Accelerator
from strata.fleet.acu import FIGURES, AcuVector, Figure, acu

DOMAIN_LABELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
"""Labels of a node that say where it stands; the first it has counts."""
DOMAIN: Final = "default"
"""Where nodes stand that do not say."""

Amounts = Mapping[Figure, float]


@dataclass(frozen=True, slots=True)
class DeviceCapacity:
    """One device: where it is, whether all of it can be had now, and its ACU; unknown figures are absent."""

    domain: str
    vendor: str
    node: str
    model: str
    is_free: bool
    used: Amounts
    free: Amounts
    out: Amounts
    trust: Mapping[Figure, Trust]


@dataclass(frozen=True, slots=True)
class Summary:
    """Some devices together. unknown: of how many devices a figure is not known; they count as nothing in it."""

    name: str
    devices: int
    models: tuple[str, ...]
    total: Amounts
    used: Amounts
    free: Amounts
    out: Amounts
    trust: Mapping[Figure, Trust]
    unknown: Mapping[Figure, int]


def parts(nodes: Iterable[NodeState]) -> tuple[DeviceCapacity, ...]:
    """Return every device of some nodes."""
    return tuple(part for node in nodes for part in _parts(node))


def by(some: Sequence[DeviceCapacity], key: Callable[[DeviceCapacity], str]) -> tuple[Summary, ...]:
    """Return the sums of devices with the same key, by its order."""
    groups: dict[str, list[DeviceCapacity]] = {}
    for part in some:
        groups.setdefault(key(part), []).append(part)
    return tuple(summary(name, groups[name]) for name in sorted(groups))


def summary(name: str, some: Sequence[DeviceCapacity]) -> Summary:
    """Return the sums of some devices."""
    used, free, out = (_sums([getattr(part, what) for part in some]) for what in ("used", "free", "out"))
    return Summary(
        name,
        len(some),
        tuple(sorted({part.model for part in some})),
        _sums([used, free, out]),
        used,
        free,
        out,
        {f: worst(*trusts) for f in FIGURES if (trusts := [part.trust[f] for part in some if f in part.trust])},
        {f: count for f in FIGURES if (count := sum(f not in part.trust for part in some))},
    )


def _sums(some: Sequence[Amounts]) -> Amounts:
    return {figure: math.fsum(amounts.get(figure, 0.0) for amounts in some) for figure in FIGURES}


def _parts(node: NodeState) -> Iterator[DeviceCapacity]:
    domain = next((node.labels[key] for key in DOMAIN_LABELS if node.labels.get(key)), DOMAIN)
    for number, (device, free_bytes, free_share) in enumerate(
        zip(node.fingerprint.devices, node.free_bytes, node.free_share, strict=True)
    ):
        vector = None if device.card is None else _acu(device.card)
        is_withheld = number in node.withheld
        cores = 1.0 if is_withheld else _share(free_share)
        memory = _share(free_bytes / device.memory_bytes) if device.memory_bytes > 0 and not is_withheld else cores
        is_out = is_withheld or not (node.is_schedulable and device.health >= MIN_HEALTH)
        trust = {} if vector is None else vector.trust
        whole = {figure: getattr(vector, figure) for figure in trust}
        free = {figure: amount * (memory if figure == "memory" else cores) for figure, amount in whole.items()}
        used = {figure: amount - free[figure] for figure, amount in whole.items()}
        left: tuple[Amounts, Amounts] = ({}, free) if is_out else (free, {})
        is_free = not is_out and cores == memory == 1.0
        yield DeviceCapacity(domain, device.vendor, node.name, device.model, is_free, used, *left, trust)


def _share(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


@cache
def _acu(card: Accelerator) -> AcuVector:
    return acu(card)
