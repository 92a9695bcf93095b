"""What a pod requests of its node, and what a node lets pods request: as kube-scheduler adds it up.

References
----------
kubernetes/kubernetes staging/src/k8s.io/component-helpers/resource/helpers.go (PodRequests: sidecars are added,
other init containers count where they are larger, what the pod as a whole requests counts instead, overhead is
added; a container that is being resized counts as the larger), pkg/apis/core/v1/defaults.go (a limit without a
request is one; with hostNetwork each port is the host's), apimachinery pkg/api/resource/quantity.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from math import ceil
from typing import Any, Final

from strata.cluster.api.kinds import Object
from strata.cluster.scheduling.host import NOTHING, UNLIMITED, PodRequests
from strata.fleet.vendor_resources import is_accelerator

_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?)([numkMGTPE]|[KMGTPE]i|)"
)
_SCALE: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", 1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}
_OF_PODS: Final = ("cpu", "memory", "hugepages-")
"""What a pod as a whole may request."""


def is_quantity(value: Any) -> bool:
    """Return whether the API server takes something for an amount of a resource; an absent one is 0."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = str(value) if is_number else value
    return value is None or (isinstance(text, str) and bool(_QUANTITY.fullmatch(text)) and text[:1] != "-")


@lru_cache(4096)
def amount_of(name: str, text: str) -> int:
    """Return a quantity of a resource as kube-scheduler counts it, rounded up; 0 for what is no quantity."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return 0
    value = Fraction(match[1]) * _SCALE[match[2]] * (1000 if name == "cpu" else 1)
    return max(0, min(ceil(value), UNLIMITED))


def amounts_of(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """Return quantities by resource, as numbers."""
    return {name: amount_of(name, str(text)) for name, text in (quantities or {}).items()}


def requests_of(pod: Object) -> PodRequests:
    """Return what a pod requests, its devices too; a template requests what its pods do."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    actual: dict[str, Object] = {
        str(container.get("name")): container
        for key in ("containerStatuses", "initContainerStatuses")
        for container in status.get(key) or ()
    }
    sidecars, largest, ports = NOTHING, NOTHING, list(_ports(spec, "containers"))
    for container in spec.get("initContainers") or ():
        own = _of_container(container, actual)
        if container.get("restartPolicy") == "Always":
            sidecars = sidecars.plus(own)
            own = NOTHING
        largest = largest.most(own.plus(sidecars))
    ports += _ports(spec, "initContainers")
    every = reduce(PodRequests.plus, (_of_container(c, actual) for c in spec.get("containers") or ()), sidecars)
    whole = _requested(spec.get("resources") or {})
    whole = {name: amount for name, amount in whole.items() if name.startswith(_OF_PODS)}
    overhead = PodRequests({**amounts_of(spec.get("overhead")), "pods": 1})
    return PodRequests({**every.most(largest).amounts, **whole}, frozenset(ports)).plus(overhead)


def requests_of_gang(pods: Iterable[Object]) -> PodRequests:
    """Return what suffices for any of some pods or templates, besides accelerators: those a profile counts."""
    most = reduce(PodRequests.most, map(requests_of, pods), NOTHING)
    return PodRequests({n: amount for n, amount in most.amounts.items() if not is_accelerator(n)}, most.ports)


def _of_container(container: Object, actual: Mapping[str, Object]) -> PodRequests:
    """Return what a container requests. actual: by name, what the kubelet says of those of a pod that runs."""
    requests = PodRequests(_requested(container.get("resources") or {}))
    if running := actual.get(str(container.get("name"))):
        resized = PodRequests(amounts_of((running.get("resources") or {}).get("requests")))
        requests = requests.most(resized).most(PodRequests(amounts_of(running.get("allocatedResources"))))
    return requests


def _requested(resources: Mapping[str, Any]) -> dict[str, int]:
    return amounts_of({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _ports(spec: Mapping[str, Any], key: str) -> Iterator[str]:
    """Yield the ports of the host that containers, or sidecars, of a pod have."""
    for container in spec.get(key) or ():
        if key == "containers" or container.get("restartPolicy") == "Always":
            for port in container.get("ports") or ():
                number = port.get("hostPort") or (spec.get("hostNetwork") is True and port.get("containerPort"))
                if number:
                    yield f"{port.get('protocol') or 'TCP'}/{number}"
