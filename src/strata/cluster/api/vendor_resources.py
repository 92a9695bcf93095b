"""How a pod counts devices that was written for one vendor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from strata.cluster.api.kinds import Object
from strata.fleet.vendor_resources import is_accelerator


class Counted(NamedTuple):
    """What a container asks of a vendor's device plugin. where: the container; `spec.` path."""

    where: str
    container: str
    resource: str
    amount: str


def counted(pod: Object) -> Iterator[Counted]:
    """Yield what a pod's containers ask of vendors' device plugins; amounts of none are left out."""
    spec = pod.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(kind) or ()):
            resources = container.get("resources") or {}
            amounts: dict[str, Any] = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
            for resource, amount in amounts.items():
                if is_accelerator(resource) and str(amount) != "0":
                    yield Counted(f"spec.{kind}[{number}]", str(container.get("name")), resource, str(amount))
