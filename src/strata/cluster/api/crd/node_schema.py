"""ComputeNode as the API server holds it: what the agent of a node found there."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from strata.cluster.api.crd.fields import (
    MOST_DEVICES,
    MOST_HELD,
    MOST_NOTES,
    OURS,
    Amount,
    Conditions,
    Figure,
    Grade,
    Moment,
    Sentence,
    Word,
    Written,
    cel_rules,
    map_by,
)
from strata.files import FileModel


class Worth(Written):
    """One figure of a card in percent of an A100-80GB, and how it is known."""

    # The least is for whoever divides by it; an API server cuts it to 0 for whole numbers, and takes a 0.
    value: Annotated[float, Field(ge=1e-3, le=1e6)]
    trust: Grade


class AcuStatus(Written):
    """What a card is worth, in abstract compute units; a figure nobody knows is absent."""

    fp16: Worth | None = None
    fp32: Worth | None = None
    memory: Worth | None = None
    memory_bandwidth: Worth | None = None
    link_bandwidth: Worth | None = None


class ProbeStatus(Written):
    """What a short benchmark made a device do while it was idle; slow devices are found by it."""

    at: Moment
    rate_flops: Figure
    """FLOP/s of FP16 matrix products."""
    power_w: Figure | None = None
    """Drawn meanwhile."""


class LoadStatus(Written):
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


class DeviceStatus(Written):
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


class LinkStatus(Written):
    """The fastest link of two devices, by their places in the list, the smaller first."""

    a: Annotated[int, Field(ge=0, lt=MOST_DEVICES)]
    b: Annotated[int, Field(ge=0, lt=MOST_DEVICES)]
    kind: Word = ""
    """Such as nvlink, hccs, pix or sys."""
    bytes_per_s: Annotated[float, Field(ge=1)] | None = None
    """One direction, where it was measured."""


class PortStatus(Written):
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


class HeldStatus(Written):
    """What a pod holds of a resource that a device plugin gives, by the kubelet's PodResources."""

    pod: Sentence
    """Its namespace and name, with a slash."""
    resource: Word
    ids: Annotated[list[Word], Field(max_length=MOST_HELD)]
    """As the plugin calls the devices."""


class SummaryStatus(Written):
    """For people who list nodes; never read back."""

    devices: Annotated[int, Field(ge=0)] = 0
    model: Sentence = ""
    acu: Figure | None = None
    """FP16 of all devices together, 100 is one A100."""
    health: Annotated[float, Field(ge=0, le=1)] | None = None
    """Of the device that is worst off."""


class NodeStatus(Written):
    """What the agent of a node found there."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
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
    devices: Annotated[list[DeviceStatus], Field(max_length=MOST_DEVICES, json_schema_extra=map_by("uuid"))] = (
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


class ComputeNode(Written):
    """The object as it is read: what Kubernetes adds to any object does not count."""

    status: NodeStatus


class NodeSpec(FileModel):
    """Nothing is asked of a node; what it has is in its status."""

    model_config = OURS
