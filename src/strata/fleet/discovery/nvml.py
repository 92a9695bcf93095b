"""NVIDIA cards through NVML (`nvidia-ml-py`), which says more than `nvidia-smi` and cannot be misread.

`read` takes the module, so tests give their own. A question a card does not answer leaves its figure out;
a card that answers nothing is there with health 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from strata.fleet.discovery.observation import BadOutput, Found, card_of
from strata.fleet.fingerprint import Device
from strata.fleet.health import DeviceReading
from strata.fleet.local import pci_address

TOOL: Final = "NVML"
VENDOR: Final = "NVIDIA"

P2P_READ: Final = 0
"""Not `pynvml.NVML_P2P_CAPS_INDEX_READ`: a trailing comma makes that the tuple `(0,)`, which ctypes refuses."""

P2P_NVLINK: Final = 2
P2P_OK: Final = 0
MAX_LINKS: Final = 36
REMOTE_SWITCH: Final = 2
ANCESTORS: Final = {0: "pix", 10: "pix", 20: "pxb", 30: "phb", 40: "node", 50: "sys"}
THROTTLES: Final = {
    0x4: "power-cap",
    0x8: "hw-slowdown",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "power-brake",
}


SM: Final = 1
"""NVML_CLOCK_SM: the clock of the cores."""
SENT: Final = 0
RECEIVED: Final = 1
"""NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES; each is counted for 20 ms."""
LINK_ERRORS: Final = (0, 1, 2, 3)
"""NVML_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC_FLIT, _CRC_DATA."""


def read(nvml: Any, *, now_s: float) -> Found:
    """Read all cards, their links and their counters. Raises BadOutput where NVML does not even count them."""
    ask = _asker(nvml)
    count = ask(nvml.nvmlDeviceGetCount)
    if count is None:
        raise BadOutput(TOOL, 0, "a number of devices")
    handles = [ask(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
    devices = tuple(_device(nvml, ask, i, handle) for i, handle in enumerate(handles))
    there = {i: handle for i, handle in enumerate(handles) if handle is not None}
    joined = _nvlinked(nvml, ask, there, devices)
    links, peers = {}, []
    for i, handle in there.items():
        for j, other in there.items():
            if i < j:
                level = ask(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, other)
                by_nvlink = ask(nvml.nvmlDeviceGetP2PStatus, handle, other, P2P_NVLINK)
                if (i, j) in joined or by_nvlink == P2P_OK:
                    links[i, j] = "nvlink"
                elif level in ANCESTORS:
                    links[i, j] = ANCESTORS[level]
                peers.append(ask(nvml.nvmlDeviceGetP2PStatus, handle, other, P2P_READ))
    return Found(
        TOOL,
        _text(ask(nvml.nvmlSystemGetDriverVersion)),
        devices,
        links,
        {i: _reading(nvml, ask, handle, now_s) for i, handle in there.items()},
        can_p2p=None if not peers or None in peers else all(status == P2P_OK for status in peers),
    )


Ask = Callable[..., Any]


def _asker(nvml: Any) -> Ask:
    def ask(question: Callable[..., Any] | None, *args: Any) -> Any:
        if question is None:  # an older library has no such function
            return None
        try:
            return question(*args)
        except nvml.NVMLError:  # not supported by this card, no permission, or the card is lost
            return None

    return ask


def _device(nvml: Any, ask: Ask, index: int, handle: Any) -> Device:
    memory = _memory(nvml, ask, handle) if handle is not None else None
    name = _text(ask(nvml.nvmlDeviceGetName, handle)) if handle is not None else ""
    if memory is None or not name:
        return Device(index, "", name or "unknown", VENDOR, 0.0, health=0.0, faults=("lost",))
    card = card_of(name, float(memory.total))
    usage = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    power = ask(nvml.nvmlDeviceGetPowerUsage, handle)
    pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
    numa = ask(getattr(nvml, "nvmlDeviceGetNumaNodeId", None), handle)
    return Device(
        index=index,
        uuid=_text(ask(nvml.nvmlDeviceGetUUID, handle)),
        model=card.name if card is not None else name,
        vendor=VENDOR,
        memory_bytes=float(memory.total),
        card=card,
        memory_used_bytes=float(memory.used),
        bus_id=_text(pci.busId) if pci is not None else "",
        numa_node=numa if isinstance(numa, int) and numa >= 0 else None,
        utilisation=usage.gpu / 100 if usage is not None else None,
        temperature_c=_number(ask(nvml.nvmlDeviceGetTemperature, handle, 0)),
        power_w=power / 1000 if power is not None else None,
    )


def _memory(nvml: Any, ask: Ask, handle: Any) -> Any:
    """Return total and used bytes, as nvidia-smi: what the driver keeps (615 MiB of an idle H200) is not used."""
    question, v2 = nvml.nvmlDeviceGetMemoryInfo, getattr(nvml, "nvmlMemory_v2", None)
    return ask(question, handle, v2) or ask(question, handle)


def _nvlinked(nvml: Any, ask: Ask, handles: dict[int, Any], devices: tuple[Device, ...]) -> set[tuple[int, int]]:
    """Return the pairs an active NVLink joins: directly, or both to a switch (NVSwitch joins all to all)."""
    by_address = {pci_address(devices[i].bus_id): i for i in handles if devices[i].bus_id}
    switched: set[int] = set()
    pairs: set[tuple[int, int]] = set()
    for i, handle in handles.items():
        for link in range(MAX_LINKS):
            if ask(nvml.nvmlDeviceGetNvLinkState, handle, link) != 1:
                continue
            if ask(getattr(nvml, "nvmlDeviceGetNvLinkRemoteDeviceType", None), handle, link) == REMOTE_SWITCH:
                switched.add(i)
                continue
            remote = ask(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            j = by_address.get(pci_address(_text(remote.busId))) if remote is not None else None
            if j is not None and j != i:
                pairs.add((min(i, j), max(i, j)))
    return pairs | {(i, j) for i in switched for j in switched if i < j}


def _reading(nvml: Any, ask: Ask, handle: Any, now_s: float) -> DeviceReading:
    remapped = ask(getattr(nvml, "nvmlDeviceGetRemappedRows", None), handle)
    reasons = ask(getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None), handle)
    if reasons is None:  # its name before driver 535
        reasons = ask(getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None), handle)
    processes = ask(getattr(nvml, "nvmlDeviceGetComputeRunningProcesses", None), handle)
    usage = ask(nvml.nvmlDeviceGetUtilizationRates, handle)
    states = [ask(nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(MAX_LINKS)]
    links = [link for link, state in enumerate(states) if state == 1]
    reading = DeviceReading(
        at_s=now_s,
        ecc_corrected=ask(nvml.nvmlDeviceGetTotalEccErrors, handle, 0, 0),
        ecc_uncorrected=ask(nvml.nvmlDeviceGetTotalEccErrors, handle, 1, 0),
        is_remap_pending=bool(remapped and remapped[2]),
        has_remap_failed=bool(remapped and remapped[3]),
        throttled=frozenset(word for bit, word in THROTTLES.items() if (reasons or 0) & bit),
        pcie_replays=ask(nvml.nvmlDeviceGetPcieReplayCounter, handle),
        temperature_c=_number(ask(nvml.nvmlDeviceGetTemperature, handle, 0)),
        processes=None if processes is None else len(processes),
        utilisation=None if usage is None else usage.gpu / 100,
        nvlinks=None if set(states) == {None} else len(links),
        nvlink_errors=_link_errors(nvml, ask, handle, links),
    )
    # An idle one is not asked: counting its traffic takes 40 ms.
    return _loaded(reading, nvml, ask, handle) if usage is not None and usage.gpu else reading


def _loaded(reading: DeviceReading, nvml: Any, ask: Ask, handle: Any) -> DeviceReading:
    """Return a reading with how the device does its work."""

    def of(name: str, *args: int) -> float | None:
        return _number(ask(getattr(nvml, name, None), handle, *args))

    lanes = _share(of("nvmlDeviceGetCurrPcieLinkWidth"), of("nvmlDeviceGetMaxPcieLinkWidth"))
    now, most = of("nvmlDeviceGetCurrPcieLinkGeneration"), of("nvmlDeviceGetMaxPcieLinkGeneration")
    # Each generation has twice the rate of the one before.
    rate = None if now is None or most is None else 2.0 ** (now - most)
    sent, received = (of("nvmlDeviceGetPcieThroughput", which) for which in (SENT, RECEIVED))
    return replace(
        reading,
        sm_clock_share=_share(of("nvmlDeviceGetClockInfo", SM), of("nvmlDeviceGetMaxClockInfo", SM)),
        power_share=_share(of("nvmlDeviceGetPowerUsage"), of("nvmlDeviceGetEnforcedPowerLimit")),
        pcie_share=None if lanes is None or rate is None else lanes * rate,
        pcie_sent_bytes_per_s=None if sent is None else sent * 1024,
        pcie_received_bytes_per_s=None if received is None else received * 1024,
    )


def _share(value: float | None, most: float | None) -> float | None:
    return None if value is None or not most else value / most


def _link_errors(nvml: Any, ask: Ask, handle: Any, links: list[int]) -> int | None:
    """Return the errors of all NVLinks that are up; None where the card does not count them so."""
    question = getattr(nvml, "nvmlDeviceGetNvLinkErrorCounter", None)
    counts = [ask(question, handle, link, kind) for link in links for kind in LINK_ERRORS]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _text(value: Any) -> str:
    # Releases before 12 returned bytes.
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
