"""Worker clusters as level 1 knows them: which domains of a fleet each has, what they cost, how data gets there.

A MultiKueueCluster is the cluster whose context a domain's Kubernetes driver names, by that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from strata import units
from strata.cluster.api.annotations import PREFIX
from strata.errors import BadFile, Fault, UsageError
from strata.fleet.fleet import Fleet
from strata.fleet.schema import DriverEntry, KubeEntry

DATA: Final = PREFIX + "data"
"""Annotation of a job: how much data it reads, `2TB`."""
DATA_DOMAIN: Final = PREFIX + "data-domain"
"""Annotation of a job: the domain of the fleet file where that data is."""


@dataclass(frozen=True, slots=True)
class WorkerCluster:
    """A worker cluster. usd_per_device_hour: by model of card, where the fleet file says a price."""

    name: str
    domains: tuple[str, ...]
    usd_per_device_hour: Mapping[str, float]
    kubeconfig: str | None = None


@dataclass(frozen=True, slots=True)
class Data:
    """What a job reads, and in which domain that lies."""

    count_bytes: float
    domain: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """What it takes until a job's data is at a cluster."""

    seconds: float
    usd: float


HERE: Final = Arrival(0.0, 0.0)


def worker_clusters_of(fleet: Fleet, drivers: Mapping[str, DriverEntry]) -> dict[str, WorkerCluster]:
    """Return the worker clusters of a fleet, by context. Raises UsageError where it has none."""
    domains: dict[str, list[str]] = {}
    kubeconfigs: dict[str, str | None] = {}
    for name, driver in drivers.items():
        if isinstance(driver, KubeEntry) and driver.context:
            domains.setdefault(driver.context, []).append(name)
            kubeconfigs[driver.context] = driver.kubeconfig
    if not domains:
        raise UsageError(
            f"fleet {fleet.name}: no domain has a Kubernetes driver with a context",
            hint="driver: {kind: kubernetes, context: NAME-OF-THE-MULTIKUEUECLUSTER, image: ...}",
        )
    made = {}
    for context, names in domains.items():
        prices: dict[str, float] = {}
        for domain in map(fleet.domain, names):
            if domain.price_usd_per_device_hour is not None:
                prices[domain.accelerator.name] = domain.price_usd_per_device_hour
        made[context] = WorkerCluster(context, tuple(names), prices, kubeconfigs[context])
    return made


def data_of(annotations: Mapping[str, str], *, where: str) -> Data | None:
    """Return what a job says of its data, None where it says nothing. Raises BadFile."""
    size, domain = annotations.get(DATA), annotations.get(DATA_DOMAIN)
    if size is None and domain is None:
        return None
    if size is None or domain is None:
        missing = DATA if size is None else DATA_DOMAIN
        fault = Fault(where, f"is missing: {DATA} and {DATA_DOMAIN} go together", where=missing)
        raise BadFile([fault], hint=f"{DATA}: 2TB, {DATA_DOMAIN}: west")
    try:
        return Data(units.parse(size, "bytes"), domain)
    except UsageError as error:
        raise BadFile([Fault(where, str(error), where=DATA)], hint=f"{DATA}: 2TB") from None


def arrival(fleet: Fleet, cluster: WorkerCluster, data: Data | None) -> Arrival | None:
    """Return how a job's data comes to a cluster by its fastest link; None where no link is known."""
    if data is None or data.domain in cluster.domains:
        return HERE
    return min(_arrivals(fleet, cluster, data), key=lambda each: each.seconds, default=None)


def _arrivals(fleet: Fleet, cluster: WorkerCluster, data: Data) -> Iterator[Arrival]:
    for domain in cluster.domains:
        if link := fleet.link(data.domain, domain):
            seconds = link.latency_s + link.serialisation_s(data.count_bytes)
            yield Arrival(seconds, link.price_usd_per_byte * data.count_bytes)
