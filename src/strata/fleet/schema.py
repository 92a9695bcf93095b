"""Fleet files: strata's own form, and the two network files of design brief 001 as they stand.

What one value may be is said by the pydantic models, what values mean together by `relations`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from strata.decision import Trust
from strata.errors import BadFile
from strata.files import (
    Bandwidth,
    Bytes,
    Document,
    FileModel,
    Flops,
    Seconds,
    UsdPerByte,
    UsdPerHour,
    file_or_bundled,
    read_document,
)
from strata.fleet import catalogue
from strata.fleet.accelerator import Accelerator
from strata.fleet.dynamics.noise import Uniform
from strata.fleet.fleet import NETWORK_BANDWIDTH, BandwidthCurve, Domain, Fleet, Link, Pair
from strata.fleet.matrix_file import MatrixNetworkFile, domain_names, shape_faults
from strata.fleet.node_network import assumed_bandwidth_bytes_per_s
from strata.fleet.relations import pairs, relations

SEED_ACCELERATOR: Final = "A100-SXM4-80GB"
"""Seed 001 names no accelerator, only that all are alike; this one is our assumption, and graded so."""

SEED_DEVICES: Final = 8
"""Of a domain, where the brief only gives matrices: as many as in its other file."""

BUNDLED_FLEETS: Final = Path(__file__).parent / "presets"
_DEVICES_PER_NODE: Final = 8
_INTRA_LATENCY_S: Final = 5e-6
_NETWORK_LATENCY_S: Final = 10e-6

FileT = TypeVar("FileT", bound=FileModel)


MAX_DEVICES: Final = 100_000
"""Accelerators of a domain: the largest sites there are have as many; the search grows with their number."""


def _some(count: int) -> int:
    if count > MAX_DEVICES:
        text = f"{count} accelerators are more than strata plans for in a domain; the most is {MAX_DEVICES:,}"
        raise PydanticCustomError("too_many_accelerators", "{text}", {"text": text})
    if count == 0:
        raise PydanticCustomError("no_accelerators", "has no accelerators")
    if count < 0:
        raise PydanticCustomError("no_accelerators", "must be a positive number of accelerators")
    return count


Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True), AfterValidator(_some)]
PositiveBandwidth = Annotated[Bandwidth, Field(gt=0)]
PositiveFlops = Annotated[Flops, Field(gt=0)]
Latency = Annotated[Seconds, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class AcceleratorEntry(FileModel):
    """An accelerator described in the fleet file: one the catalogue lacks, or has with other figures.

    `_measured`: what benchmarks of this fleet's own devices reached.
    """

    vendor: Name
    memory: Annotated[Bytes, Field(gt=0)]
    fp16: PositiveFlops | None = None
    fp32: PositiveFlops | None = None
    fp8: PositiveFlops | None = None
    memory_bandwidth: PositiveBandwidth | None = None
    fp16_measured: PositiveFlops | None = None
    fp32_measured: PositiveFlops | None = None
    memory_bandwidth_measured: PositiveBandwidth | None = None
    trust: Trust = Trust.ASSUMED


class LocalEntry(FileModel):
    """Processes on this machine. namespace: of `ip netns`, with its address and device where it has one."""

    kind: Literal["local"]
    address: Name = "127.0.0.1"
    namespace: Name | None = None
    interface: Name | None = None


class SlurmEntry(FileModel):
    """Jobs of a Slurm cluster whose nodes see the scheduler's folder at the same path.

    conf: its slurm.conf, else what Slurm's tools find. gres: what a device is there (`gpu`, `gpu:a100`), none
    where it is a CPU. address: where rank 0 listens, else the first address of its node. options: more for sbatch.
    """

    kind: Literal["slurm"]
    conf: Name | None = None
    partition: Name | None = None
    gres: Name | None = None
    address: Name | None = None
    interface: Name | None = None
    options: list[Name] = Field(default=[])


class KubeEntry(FileModel):
    """Jobs of a Kubernetes cluster, a pod for each node of a plan.

    resource: what a device is there, none where it is a CPU. claim: PersistentVolumeClaim with the checkpoints.
    address: where clusters reach rank 0. queue: Kueue's. nodes: labels of its nodes. image: has the program.
    managed: strata's controller in the cluster places the pods, and gives them devices and their vendor's image;
    then no resource is named, and `image` only brings the program, below the profile's folder for it.
    """

    kind: Literal["kubernetes"]
    image: Name
    context: Name | None = None
    kubeconfig: Name | None = None
    namespace: Name | None = None
    resource: Name | None = None
    claim: Name | None = None
    address: Name | None = None
    interface: Name | None = None
    queue: Name | None = None
    nodes: dict[Name, str] = Field(default={})
    managed: bool = False

    @model_validator(mode="after")
    def _has_one_who_gives_devices(self) -> Self:
        if self.managed and self.resource is not None:
            text = "must be left out where the pods are managed: they get the resource of their card"
            raise PydanticCustomError("resource_of_managed", "resource {text}", {"text": text})
        return self


DriverEntry: TypeAlias = LocalEntry | SlurmEntry | KubeEntry


class DomainEntry(FileModel):
    """One domain. Bandwidths are one direction: `intra_` per device within a node, `network_` per node.

    free_gpus: of num_gpus, when somebody looked; plans may use all of them. uplink: to all other domains
    together. driver: how work is started there; without one it is only planned for.
    """

    name: Name
    accelerator: Name
    num_gpus: Count
    free_gpus: Annotated[int, Field(strict=True, ge=0)] | None = None
    gpus_per_node: Count | None = None
    intra_bandwidth: PositiveBandwidth | None = None
    intra_latency: Latency = _INTRA_LATENCY_S
    network_bandwidth: PositiveBandwidth | None = None
    network_latency: Latency = _NETWORK_LATENCY_S
    price: Annotated[UsdPerHour, Field(ge=0)] | None = None
    region: str = ""
    uplink: PositiveBandwidth | None = None
    driver: Annotated[DriverEntry, Field(discriminator="kind")] | None = None


class LinkEntry(FileModel):
    """One link: `between` two domains both ways, or from `source` to `dest` (both ways if `symmetric`).

    measured_at: when `strata fleet probe` measured it.
    """

    between: tuple[Name, Name] | None = None
    source: Name | None = None
    dest: Name | None = None
    symmetric: bool = False
    bandwidth: PositiveBandwidth
    latency: Latency | None = None
    rtt: Latency | None = None
    price: Annotated[UsdPerByte, Field(ge=0)] = 0.0
    curve: tuple[float, float, float] | None = None
    trust: Trust = Trust.ASSUMED
    measured_at: Name | None = None


class FleetFile(FileModel):
    """`kind: Fleet`."""

    api_version: Literal["strata/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["Fleet"]
    name: Name
    accelerators: dict[Name, AcceleratorEntry] = Field(default={})
    domains: Annotated[list[DomainEntry], Field(min_length=1)]
    links: list[LinkEntry] = Field(default=[])


class SeedDomain(FileModel):
    """A domain of brief 001's network file; `accelerator` is ours and optional."""

    name: Name
    num_gpus: Count
    intra_bandwidth: PositiveBandwidth
    intra_latency: Latency
    accelerator: Name = SEED_ACCELERATOR


class SeedLink(FileModel):
    """A cross-domain link of brief 001, read as both directions."""

    source: Name
    dest: Name
    bandwidth: PositiveBandwidth
    latency: Latency


class SeedTopology(FileModel):
    """The `topology` of brief 001's network file."""

    domains: Annotated[list[SeedDomain], Field(min_length=1)]
    cross_domain_links: list[SeedLink] = Field(default=[])


class SeedDynamicsEntry(FileModel):
    """The `dynamics` of brief 001's network file: i.i.d. uniform, a half-width as a fraction of the base."""

    bandwidth_fluctuation: Fraction = 0.0
    latency_jitter: Fraction = 0.0
    update_interval: Literal["per_epoch"] = "per_epoch"


class SeedNetworkFile(FileModel):
    """The network file of brief 001, section 3.1, exactly as it stands."""

    topology: SeedTopology
    dynamics: SeedDynamicsEntry | None = None


def load_fleet(source: str | Path) -> Fleet:
    """Read a fleet file, or a bundled fleet by its name where no such file exists.

    Raises BadFile with every fault, UsageError where there is neither file nor bundled fleet.
    """
    return fleet_from_document(_document(source))


def load_drivers(source: str | Path) -> dict[str, DriverEntry]:
    """Return the driver of each domain that has one. Raises as `load_fleet` does."""
    document = _document(source)
    if _is_seed_form(document) or _is_matrix_form(document):
        return {}
    file = _checked(document, FleetFile)
    return {entry.name: entry.driver for entry in file.domains if entry.driver is not None}


def load_dynamics(source: str | Path) -> tuple[Uniform, Uniform] | None:
    """Return how bandwidth and latency vary in a network file of brief 001; None where it states nothing."""
    document = _document(source)
    entry = _checked(document, SeedNetworkFile).dynamics if _is_seed_form(document) else None
    return None if entry is None else (Uniform(entry.bandwidth_fluctuation), Uniform(entry.latency_jitter))


def fleet_from_document(document: Document) -> Fleet:
    """Build a fleet from a parsed file of any of the forms. Raises BadFile with every fault."""
    if _is_matrix_form(document):
        return _matrix_fleet(document)
    if _is_seed_form(document):
        topology = _checked(document, SeedNetworkFile).topology
        # The two forms differ in what may be left out only, so a seed entry is one of ours with defaults.
        return Fleet(
            Path(document.path).stem,
            tuple(_seed_domain(entry) for entry in topology.domains),
            _links(LinkEntry.model_construct(symmetric=True, **dict(e)) for e in topology.cross_domain_links),
        )
    file = _checked(document, FleetFile)
    inline = {name: _accelerator(name, entry) for name, entry in file.accelerators.items()}
    return Fleet(file.name, tuple(_domain(entry, inline) for entry in file.domains), _links(file.links))


def _document(source: str | Path) -> Document:
    return read_document(file_or_bundled(source, BUNDLED_FLEETS, what="fleet"))


def _is_matrix_form(document: Document) -> bool:
    keys = document.data if isinstance(document.data, Mapping) else {}
    return "kind" not in keys and not {"bandwidth_matrix", "latency_matrix", "num_domains"}.isdisjoint(keys)


def _is_seed_form(document: Document) -> bool:
    has_topology = isinstance(document.data, Mapping) and "topology" in document.data
    return has_topology and "kind" not in document.data and not _is_matrix_form(document)


def _matrix_fleet(document: Document) -> Fleet:
    """Return domains as in the brief's other file, eight devices each, linked as the matrices say."""
    file = _checked(document, MatrixNetworkFile)
    bandwidth, latency = file.bandwidth_matrix, file.latency_matrix
    names = domain_names(bandwidth)
    inside = [
        SeedDomain.model_construct(
            name=name, num_gpus=SEED_DEVICES, intra_bandwidth=bandwidth[i][i], intra_latency=latency[i][i],
            accelerator=SEED_ACCELERATOR,
        )
        for i, name in enumerate(names)
    ]  # fmt: skip
    links = [
        Link(source, dest, bandwidth_bytes_per_s=bandwidth[i][j], latency_s=latency[i][j])
        for i, source in enumerate(names)
        for j, dest in enumerate(names)
        if i != j
    ]
    domains = tuple(replace(_seed_domain(entry), network_latency_s=entry.intra_latency) for entry in inside)
    return Fleet(Path(document.path).stem, domains, {}).with_links(links)


def _accelerator(name: str, entry: AcceleratorEntry) -> Accelerator:
    known = catalogue.card_named(name)  # an entry says nothing of how cards are joined
    return Accelerator(
        name=name,
        vendor=entry.vendor,
        memory_bytes=entry.memory,
        fp16_flops=entry.fp16,
        fp32_flops=entry.fp32,
        fp8_flops=entry.fp8,
        memory_bandwidth_bytes_per_s=entry.memory_bandwidth,
        interconnect=known.interconnect if known else "",
        interconnect_bytes_per_s=known.interconnect_bytes_per_s if known else None,
        fp16_flops_measured=entry.fp16_measured,
        fp32_flops_measured=entry.fp32_measured,
        memory_bandwidth_measured_bytes_per_s=entry.memory_bandwidth_measured,
        trust=entry.trust,
        source="given in the fleet file",
    )


def _domain(entry: DomainEntry, inline: Mapping[str, Accelerator]) -> Domain:
    accelerator = inline.get(entry.accelerator) or catalogue.accelerator(entry.accelerator)
    node = entry.gpus_per_node or min(_DEVICES_PER_NODE, entry.num_gpus)
    network = entry.network_bandwidth or assumed_bandwidth_bytes_per_s(accelerator, node)
    # The catalogue counts both directions of an interconnect; `relations` saw to it that one of the two is known,
    # or that a device is alone in its node.
    intra = entry.intra_bandwidth or (accelerator.interconnect_bytes_per_s or 2 * network) / 2
    return Domain(
        name=entry.name,
        accelerator=accelerator,
        num_devices=entry.num_gpus,
        num_free_devices=entry.free_gpus,
        devices_per_node=node,
        intra_bandwidth_bytes_per_s=intra,
        intra_latency_s=entry.intra_latency,
        network_bandwidth_bytes_per_s=network,
        network_latency_s=entry.network_latency,
        price_usd_per_device_hour=entry.price,
        region=entry.region,
        uplink_bytes_per_s=entry.uplink,
        assumed=() if entry.network_bandwidth else (NETWORK_BANDWIDTH,),
    )


def _seed_domain(entry: SeedDomain) -> Domain:
    # The brief has one bandwidth inside a domain: it stands for the wires in a node and between nodes.
    both = {**dict(entry), "network_bandwidth": entry.intra_bandwidth}
    domain = replace(_domain(DomainEntry.model_construct(**both), {}), assumed=(NETWORK_BANDWIDTH,))
    if "accelerator" in entry.model_fields_set:
        return domain
    return replace(domain, accelerator=replace(domain.accelerator, trust=Trust.ASSUMED))


def _links(entries: Iterable[LinkEntry]) -> dict[Pair, Link]:
    return {
        (source, dest): Link(
            source,
            dest,
            bandwidth_bytes_per_s=entry.bandwidth,
            latency_s=entry.latency if entry.latency is not None else (entry.rtt or 0.0) / 2,
            price_usd_per_byte=entry.price,
            curve=BandwidthCurve(entry.curve) if entry.curve is not None else None,
            trust=entry.trust,
        )
        for entry in entries
        for source, dest in pairs(dict(entry))
    }


def _checked(document: Document, model: type[FileT]) -> FileT:
    is_matrix = model is MatrixNetworkFile
    faults = list(shape_faults(document) if is_matrix else relations(document, seed=model is SeedNetworkFile))
    try:
        file = document.check(model)
    except BadFile as error:
        faults.extend(error.faults)
    if faults:
        raise BadFile(sorted(faults, key=lambda fault: (fault.line, fault.column)))
    return file
