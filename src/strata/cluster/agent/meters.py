"""What Prometheus is told of a node's devices and of its agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strata.fleet.acu import FIGURES, acu
from strata.fleet.fingerprint import Device, Fingerprint
from strata.net.metrics import SECONDS, Counter, Histogram, Registry, read_gauge, render

Values = dict[tuple[str, ...], float]

LABELS: Final = ("device", "index", "model", "vendor")


class AgentMetrics:
    """Counters, and gauges of the fingerprint that was shown last."""

    def __init__(self) -> None:
        self.registry = new = Registry()
        self._shown = Fingerprint("")
        self.http = Counter("strata_http_requests_total", "HTTP requests by status.", ["code"], registry=new)
        self.faults = Counter(
            "strata_agent_faults_total", "Faults seen, programs' own ones too.", ["fault"], registry=new
        )
        self.publications = Counter(
            "strata_agent_publications_total",
            "Attempts to publish, by the API server's answer.",
            ["status"],
            registry=new,
        )
        self.published_after = Histogram(
            "strata_agent_fault_published_seconds",
            "From a fault to its publication.",
            buckets=SECONDS,
            registry=new,
        )
        self.collection = Histogram(
            "strata_agent_collection_seconds", "Time to ask all tools.", buckets=SECONDS, registry=new
        )
        read_gauge(new, "strata_agent_notes", "What could not be read.", (), self._notes)
        for name, text, read in (
            ("health", "1 is well, 0 not to be used.", lambda device: device.health),
            ("temperature_celsius", "Temperature.", lambda device: device.temperature_c),
            ("power_watts", "Power drawn.", lambda device: device.power_w),
            ("memory_bytes", "Memory.", lambda device: device.memory_bytes),
            ("memory_used_bytes", "Memory in use.", lambda device: device.memory_used_bytes),
            ("utilisation_ratio", "Share of the time it is busy.", lambda device: device.utilisation),
            (
                "probe_flops",
                "FLOP/s of the newest probe.",
                lambda device: device.probe and device.probe.rate_flops,
            ),
            ("sm_clock_ratio", "Clock of its cores while busy, of the highest.", _of_load("sm_clock_share")),
            ("power_limit_ratio", "Power drawn while busy, of its limit.", _of_load("power_share")),
            ("pcie_link_ratio", "Rate of its PCIe link, of what both ends can.", _of_load("pcie_share")),
            ("pcie_sent_bytes_per_second", "Sent over PCIe.", _of_load("pcie_sent_bytes_per_s")),
            ("pcie_received_bytes_per_second", "Received over PCIe.", _of_load("pcie_received_bytes_per_s")),
        ):
            read_gauge(new, f"strata_device_{name}", text, LABELS, self._of_devices(read))
        read_gauge(
            new, "strata_device_fault", "1 for each fault a device has.", (*LABELS, "fault"), self._device_faults
        )
        read_gauge(
            new, "strata_device_acu", "In percent of an A100-80GB.", (*LABELS, "figure", "trust"), self._acu
        )

    def show(self, fingerprint: Fingerprint) -> None:
        """Let the gauges tell of this."""
        self._shown = fingerprint

    def render(self) -> str:
        """Return the page that Prometheus scrapes."""
        return render(self.registry)

    def _notes(self) -> Values:
        return {(): len(self._shown.notes)}

    def _of_devices(self, read: Callable[[Device], float | None]) -> Callable[[], Values]:
        def values() -> Values:
            readings = {_labels(device): read(device) for device in self._shown.devices}
            return {labels: value for labels, value in readings.items() if value is not None}

        return values

    def _device_faults(self) -> Values:
        return {(*_labels(device), word): 1.0 for device in self._shown.devices for word in device.faults}

    def _acu(self) -> Values:
        values: Values = {}
        for device in self._shown.devices:
            vector = acu(device.card) if device.card is not None else None
            for figure in FIGURES:
                value = getattr(vector, figure, None)
                if vector is not None and value is not None:
                    values[*_labels(device), figure, vector.trust[figure].value] = value
        return values


def _of_load(figure: str) -> Callable[[Device], float | None]:
    return lambda device: None if device.load is None else getattr(device.load, figure)


def _labels(device: Device) -> tuple[str, ...]:
    return (device.uuid, str(device.index), device.model, device.vendor)
