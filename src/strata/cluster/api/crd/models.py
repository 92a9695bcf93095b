"""What the objects of our API group hold; the definitions given to the API server are made from this.

A field that is not there is absent, never null. Rules the API server checks itself (CEL) stand beside what they
are of; a figure that is not finite never gets past these models.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from strata.cluster.api.profile_schema import (
    NO_TREE_FOR_PODS,
    NOT_FOR_PODS,
    HostPath,
    MountEntry,
    Name,
    ProfileFields,
)
from strata.cluster.scheduling.claim import Substitution, TopologyWish
from strata.decision import Trust
from strata.files import FileModel
from strata.fleet.acu import Norm

MOST_DEVICES: Final = 128
MOST_NOTES: Final = 64
MOST_NODES: Final = 1000
MOST_HELD: Final = 512
LONGEST: Final = 1024
LONGEST_WORD: Final = 253
LONGEST_MESSAGE: Final = 32_768


def camel(name: str) -> str:
    """Return `memory_bytes` or `gang-size` as the API server's fields are written: `memoryBytes`, `gangSize`."""
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def _extensions(**extensions: Any) -> dict[str, Any]:
    return {f"x-kubernetes-{key.replace('_', '-')}": value for key, value in extensions.items()}


def _rules(*rules: tuple[str, str]) -> dict[str, Any]:
    return _extensions(validations=[{"rule": rule, "message": message} for rule, message in rules])


def _map_by(key: str) -> dict[str, Any]:
    return _extensions(list_type="map", list_map_keys=[key])


_OURS: Final = ConfigDict(alias_generator=camel, populate_by_name=False, use_attribute_docstrings=True)


class _Written(FileModel):
    """What agents and controllers write: older ones read it as well, and leave out what they do not know."""

    model_config = ConfigDict(extra="ignore", **_OURS)


Word = Annotated[str, Field(max_length=LONGEST_WORD)]
Sentence = Annotated[str, Field(max_length=LONGEST)]
Amount = Annotated[int, Field(ge=0, le=2**60)]
Figure = Annotated[float, Field(ge=0)]
Grade = Literal["measured", "calibrated", "analytic", "assumed"]
Moment = Annotated[
    str,
    Field(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})$",
        json_schema_extra={"format": "date-time"},
    ),
]
assert set(Grade.__args__) == set(Trust), "grades are those of Trust"  # type: ignore[attr-defined]


class Condition(_Written):
    """A condition, as everywhere in Kubernetes."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[
        str, Field(min_length=1, max_length=LONGEST, pattern=r"^[A-Za-z](?:[A-Za-z0-9_,:]*[A-Za-z0-9_])?$")
    ]
    message: Annotated[str, Field(max_length=LONGEST_MESSAGE)]
    last_transition_time: Moment
    observed_generation: Annotated[int, Field(ge=0)] | None = None


Conditions = Annotated[list[Condition], Field(max_length=16, json_schema_extra=_map_by("type"))]


# ComputeNode


class Worth(_Written):
    """One figure of a card in percent of an A100-80GB, and how it is known."""

    # The least is for whoever divides by it; an API server cuts it to 0 for whole numbers, and takes a 0.
    value: Annotated[float, Field(ge=1e-3, le=1e6)]
    trust: Grade


class AcuStatus(_Written):
    """What a card is worth, in abstract compute units; a figure nobody knows is absent."""

    fp16: Worth | None = None
    fp32: Worth | None = None
    memory: Worth | None = None
    memory_bandwidth: Worth | None = None
    link_bandwidth: Worth | None = None


class ProbeStatus(_Written):
    """What a short benchmark made a device do while it was idle; slow devices are found by it."""

    at: Moment
    rate_flops: Figure
    """FLOP/s of FP16 matrix products."""
    power_w: Figure | None = None
    """Drawn meanwhile."""


class LoadStatus(_Written):
    """What a device showed while it was busy; shares are of 1."""

    readings: Annotated[int, Field(ge=1)]
    """So far, since its agent started: a larger number is news."""
    sm_clock_share: Figure | None = None
    """Of the highest clock."""
    median_sm_clock_share: Figure | None = None
    """Of five minutes: a card that keeps a lower clock is worth less."""
    power_share: Figure | None = None
    """Of its limit."""
    pcie_share: Figure | None = None
    """Of what both ends of its link can do."""
    pcie_sent_bytes_per_s: Figure | None = None
    pcie_received_bytes_per_s: Figure | None = None
    throttled: Annotated[list[Word], Field(max_length=MOST_NOTES)] = Field(default=[])
    """Why its clock was lower than it might be."""


class DeviceStatus(_Written):
    """One accelerator. Its place in the list is its number in placements."""

    index: Annotated[int, Field(ge=-1, le=1 << 20)]
    """The number the vendor's tool gives it."""
    uuid: Annotated[str, Field(min_length=1, max_length=253)]
    model: Word
    vendor: Word
    memory_bytes: Amount
    memory_used_bytes: Amount | None = None
    acu: AcuStatus | None = None
    """Absent for a card that is not in the catalogue and was not measured."""
    health: Annotated[float, Field(ge=0, le=1)] = 1.0
    """1 is well, 0 not to be used."""
    faults: Annotated[list[Word], Field(max_length=MOST_NOTES)] = Field(default=[])
    board: Word = ""
    """Devices with the same word are dies of one board."""
    bus_id: Word = ""
    numa_node: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    temperature_c: float | None = None
    power_w: Figure | None = None
    utilisation: Figure | None = None
    """As a share of 1."""
    probe: ProbeStatus | None = None
    load: LoadStatus | None = None


class LinkStatus(_Written):
    """The fastest link of two devices, by their places in the list, the smaller first."""

    a: Annotated[int, Field(ge=0, lt=MOST_DEVICES)]
    b: Annotated[int, Field(ge=0, lt=MOST_DEVICES)]
    kind: Word = ""
    """Such as nvlink, hccs, pix or sys."""
    bytes_per_s: Annotated[float, Field(ge=1)] | None = None
    """One direction, where it was measured."""


class PortStatus(_Written):
    """A port that sends to other nodes by RDMA."""

    card: Word
    """As the kernel calls it, such as mlx5_0."""
    port: Annotated[int, Field(ge=1, le=255)]
    fabric: Word
    """infiniband, roce-v2, roce-v1 or ethernet."""
    is_active: bool = False
    rate_bytes_per_s: Figure = 0.0
    """One direction, as negotiated."""
    subnet: Word = ""
    """The prefix of an InfiniBand subnet."""
    bus_id: Word = ""
    numa_node: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    distance: Literal["pix", "pxb", "phb", "node", "sys", ""] = ""
    """Of the accelerator that is nearest, in the words of links."""


class HeldStatus(_Written):
    """What a pod holds of a resource that a device plugin gives, by the kubelet's PodResources."""

    pod: Sentence
    """Its namespace and name, with a slash."""
    resource: Word
    ids: Annotated[list[Word], Field(max_length=MOST_HELD)]
    """As the plugin calls the devices."""


class SummaryStatus(_Written):
    """For people who list nodes; never read back."""

    devices: Annotated[int, Field(ge=0)] = 0
    model: Sentence = ""
    acu: Figure | None = None
    """FP16 of all devices together, 100 is one A100."""
    health: Annotated[float, Field(ge=0, le=1)] | None = None
    """Of the device that is worst off."""


class NodeStatus(_Written):
    """What the agent of a node found there."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            (
                "!has(self.links) || "
                "self.links.all(l, l.a < l.b && has(self.devices) && l.b < size(self.devices))",
                "a link joins two devices of the list, the smaller place first",
            )
        ),
    )

    observed_at: Moment
    agent_version: Word = ""
    driver: Sentence = ""
    tool: Sentence = ""
    """Which vendors' tools were asked."""
    notes: Annotated[list[Sentence], Field(max_length=MOST_NOTES)] = Field(default=[])
    """What could not be read, and why."""
    can_p2p: bool = True
    """Whether devices reach each other's memory."""
    trust: Grade = "measured"
    devices: Annotated[list[DeviceStatus], Field(max_length=MOST_DEVICES, json_schema_extra=_map_by("uuid"))] = (
        Field(default=[])
    )
    links: Annotated[list[LinkStatus], Field(max_length=MOST_DEVICES * (MOST_DEVICES - 1) // 2)] = Field(
        default=[]
    )
    held: Annotated[list[HeldStatus], Field(max_length=MOST_HELD)] = Field(default=[])
    ports: Annotated[list[PortStatus], Field(max_length=MOST_DEVICES)] = Field(default=[])
    rdma_group: Word = ""
    """Nodes with the same word reach each other by RDMA; labels of the node go before it."""
    rack: Word = ""
    summary: SummaryStatus | None = None
    conditions: Conditions = Field(default=[])


class ComputeNode(_Written):
    """The object as it is read: what Kubernetes adds to any object does not count."""

    status: NodeStatus


class NodeSpec(FileModel):
    """Nothing is asked of a node; what it has is in its status."""

    model_config = _OURS


# RuntimeProfile

_TREES: Final = "|".join(path.removeprefix("/") for path in NO_TREE_FOR_PODS)
_ALONE: Final = "|".join(path.removeprefix("/") for path in NOT_FOR_PODS)


class MountSpec(MountEntry):
    """A path of the host in the container; read only unless said otherwise."""

    model_config = _OURS

    host_path: Annotated[
        HostPath,
        Field(
            json_schema_extra=_rules(
                (
                    f"!self.matches('^/(({_ALONE})/?|({_TREES})(/.*)?)$')",
                    "this path of the host is not for pods",
                )
            )
        ),
    ]


class RuntimeProfileSpec(ProfileFields):
    """What a pod needs to run on some accelerators of one vendor, and what the webhook injects."""

    model_config = _OURS

    mounts: Annotated[list[MountSpec], Field(max_length=32, json_schema_extra=_map_by("name"))] = Field(default=[])  # type: ignore[assignment]


class ProfileMeta(_Written):
    """What is read of a profile's metadata."""

    name: Name


class RuntimeProfileObject(_Written):
    """The object as it is read."""

    metadata: ProfileMeta
    spec: RuntimeProfileSpec


# ComputeClaim


class ClaimSpec(FileModel):
    """What a gang of like pods asks for, in the words of the annotations; amounts are of each pod."""

    model_config = ConfigDict(
        json_schema_extra=_rules(
            ("!(has(self.acu) && has(self.tflopsFp16))", "acu and tflopsFp16 say the same; give one of them"),
            (
                "!(has(self.fractional) && self.fractional || has(self.cores)) || has(self.vram)",
                "a fraction needs vram, its share of the device's memory",
            ),
            (
                "!(has(self.fractional) && self.fractional || has(self.cores)) "
                "|| !has(self.devices) || self.devices == 1",
                "a fraction is of one device",
            ),
            (
                "!has(self.cores) || !has(self.fractional) || self.fractional",
                "cores are for fractions, and fractional is false",
            ),
            (
                "!has(self.cores) || !(has(self.acu) || has(self.tflopsFp16))",
                "acu and tflopsFp16 ask for cores as well; give one of them",
            ),
            (
                "!has(self.topology) || self.topology != 'require' || has(self.within)",
                "topology require needs within: node, rdma or rack",
            ),
            (
                "!has(self.topology) || self.topology != 'none' || !has(self.within)",
                "within contradicts topology none",
            ),
        ),
        **_OURS,
    )

    vram: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Memory of each pod, of all its devices together: 16Gi."""
    acu: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    """Compute of each pod, 100 is one A100."""
    tflops_fp16: Annotated[float, Field(gt=0, lt=1e9)] | None = None
    devices: Annotated[int, Field(ge=1, le=64)] | None = None
    """Devices of each pod, where the job counts them itself."""
    accelerator: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """The card the job was written for."""
    norm: Norm | None = None
    """What cards are exchanged by."""
    substitution: Substitution | None = None
    """Whether other cards may stand in."""
    fractional: bool | None = None
    """Part of one device: vram of it, and acu, tflopsFp16 or cores."""
    cores: Annotated[float, Field(gt=0, le=100)] | None = None
    """Percent of one device's cores, for a fraction."""
    gang_size: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Pods placed together or not at all."""
    topology: TopologyWish | None = None
    within: Literal["node", "rdma", "rack"] | None = None
    """How near the gang must be."""
    framework: Literal["pytorch", "paddle", "mindspore", "vllm"] | None = None
    profile: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    priority: Annotated[int, Field(gt=-(10**9), lt=10**9)] | None = None


class ReasonStatus(_Written):
    """One reason: a stable token, what it is about, and the sentence."""

    token: Word
    subject: Word = ""
    message: Annotated[str, Field(max_length=LONGEST_MESSAGE)]


class DecisionStatus(_Written):
    """Why the gang goes where it goes, or nowhere."""

    reasons: Annotated[list[ReasonStatus], Field(max_length=64)] = Field(default=[])
    trust: Grade
    inputs_digest: Word


class NodeVerdict(_Written):
    """Why a node was not chosen."""

    node: Word
    reason: Word
    message: Annotated[str, Field(max_length=LONGEST_MESSAGE)]


class ClaimStatus(_Written):
    """What was decided."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    conditions: Conditions = Field(default=[])
    profile: Word | None = None
    model: Word | None = None
    devices: Annotated[int, Field(ge=1)] | None = None
    """Of all pods together."""
    placement: Annotated[str, Field(max_length=200_000)] | None = None
    """As in the annotation of that name."""
    decision: DecisionStatus | None = None
    nodes: Annotated[list[NodeVerdict], Field(max_length=MOST_NODES)] = Field(default=[])
    nodes_omitted: Annotated[int, Field(ge=0)] | None = None
    """How many more nodes there were."""


class ComputeClaim(_Written):
    """The object as it is read."""

    spec: ClaimSpec
