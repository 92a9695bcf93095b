"""What pods request of a node besides its devices.

As kube-scheduler's filters NodeResourcesFit and NodePorts count: what is allocatable, less what pods on the node
request, whatever they use.

References
----------
kubernetes/kubernetes pkg/scheduler/framework/plugins/{noderesources/fit.go,nodeports/node_ports.go} (1.36).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from strata import units

UNLIMITED: Final = 2**60
"""Of each resource, on a node of which nobody knows what is allocatable."""

_BYTES: Final = ("memory", "ephemeral-storage", "hugepages-")


@dataclass(frozen=True, slots=True)
class PodRequests:
    """Of one pod, or of some together.

    amounts: of each resource, as kube-scheduler counts: thousandths of a CPU, bytes, else pieces; `pods` of a pod
    is 1. ports: of the host, as `TCP/8080`, whatever the address: each is one pod's.
    """

    amounts: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[str] = frozenset()

    def plus(self, other: PodRequests) -> PodRequests:
        """Return the sum."""
        return sum_of((self, other))

    def minus(self, other: PodRequests) -> PodRequests:
        """Return what is left when what was added is taken away."""
        lessened = {name: amount - other.amounts.get(name, 0) for name, amount in self.amounts.items()}
        return PodRequests(lessened, self.ports - other.ports)

    def most(self, other: PodRequests) -> PodRequests:
        """Return the larger of each: what suffices for either."""
        names = {**self.amounts, **other.amounts}
        larger = {name: max(self.amounts.get(name, 0), other.amounts.get(name, 0)) for name in names}
        return PodRequests(larger, self.ports | other.ports)


NOTHING: Final = PodRequests()


def sum_of(some: Iterable[PodRequests]) -> PodRequests:
    """Return what some pods request together."""
    amounts: dict[str, int] = {}
    ports: set[str] = set()
    for requests in some:
        ports |= requests.ports
        for name, amount in requests.amounts.items():
            amounts[name] = amounts.get(name, 0) + amount
    return PodRequests(amounts, frozenset(ports))


def show_amount(name: str, amount: int) -> str:
    """Return an amount of a resource as people write it."""
    if name == "cpu":
        return f"{amount / 1000:g}"
    return units.show_bytes(amount) if name.startswith(_BYTES) else str(amount)
