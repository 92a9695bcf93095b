"""NVIDIA cards through NVML, on a library of our own that behaves like pynvml, its traps included."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strata.fleet.catalogue import accelerator
from strata.fleet.discovery import nvml
from strata.fleet.discovery.observation import BadOutput
from strata.fleet.health import score

RESERVED = 615 << 20


class NVMLError(Exception):
    """What pynvml raises for everything."""


@dataclass
class Card:
    name: str | bytes = "NVIDIA H100 80GB HBM3"
    bus: str = "00000000:19:00.0"
    memory: int = 81559 * 2**20
    links: dict[int, str] = field(default_factory=dict)  # link number -> "switch" or the other's bus address
    reasons: int = 0
    ecc: dict[int, int] = field(default_factory=lambda: {0: 5, 1: 0})
    remapped: tuple[int, int, int, int] | None = (0, 0, 0, 0)
    is_lost: bool = False
    is_mute: bool = False  # answers only who it is
    usage: int = 50
    clock: tuple[int, int] = (1785, 1980)  # now and at most [MHz]
    pcie: tuple[int, int, int, int] = (5, 5, 16, 16)  # generation now and at most, lanes now and at most
    link_errors: int | None = 1
    dead_links: tuple[int, ...] = ()


@dataclass
class FakeNvml:
    """Handles are the cards themselves."""

    cards: list[Card]
    ancestor: int = 50
    peer_read: int = 0
    peer_nvlink: int = 5
    is_old: bool = False
    nvmlMemory_v2: int | None = None  # noqa: N815 - as pynvml has it
    NVMLError: type[Exception] = NVMLError
    NVML_P2P_CAPS_INDEX_READ: tuple[int, ...] = (0,)  # as pynvml 13 has it

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, i: int) -> Card:
        if self.cards[i].is_lost:
            raise NVMLError("GPU is lost")
        return self.cards[i]

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"550.90.07"

    def nvmlDeviceGetName(self, card: Card) -> str | bytes:
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Card, version: int | None = None) -> Any:
        if version is not None and self.is_old:
            raise NVMLError("Function Not Found")
        # Of the first version what the driver keeps is used, too.
        return SimpleNamespace(total=card.memory, used=2**30 if version is None else 2**30 - RESERVED)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return f"GPU-{card.bus}"

    def nvmlDeviceGetPciInfo(self, card: Card) -> Any:
        return SimpleNamespace(busId=card.bus.encode())

    def _said(self, card: Card, answer: Any) -> Any:
        if card.is_mute or answer is None:
            raise NVMLError("Not Supported")
        return answer

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        return self._said(card, SimpleNamespace(gpu=card.usage, memory=1))

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return int(self._said(card, 700_000))

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        return int(self._said(card, 60))

    def nvmlDeviceGetTotalEccErrors(self, card: Card, kind: int, counter: int) -> int:
        return int(self._said(card, card.ecc[kind]))

    def nvmlDeviceGetPcieReplayCounter(self, card: Card) -> int:
        return int(self._said(card, 7))

    def nvmlDeviceGetRemappedRows(self, card: Card) -> Any:
        return self._said(card, card.remapped)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return int(self._said(card, card.reasons))

    def nvmlDeviceGetNvLinkState(self, card: Card, link: int) -> int:
        if link not in card.links:
            raise NVMLError("Invalid Argument")
        return int(link not in card.dead_links)

    def nvmlDeviceGetNvLinkErrorCounter(self, card: Card, link: int, counter: int) -> int:
        assert link in card.links
        assert counter in range(4)
        return int(self._said(card, card.link_errors))

    def nvmlDeviceGetClockInfo(self, card: Card, clock: int) -> int:
        return int(self._said(card, card.clock[0] if clock == 1 else 2619))

    def nvmlDeviceGetMaxClockInfo(self, card: Card, clock: int) -> int:
        return int(self._said(card, card.clock[1] if clock == 1 else 2619))

    def nvmlDeviceGetEnforcedPowerLimit(self, card: Card) -> int:
        return int(self._said(card, 1_000_000))

    def nvmlDeviceGetPcieThroughput(self, card: Card, counter: int) -> int:
        return int(self._said(card, 1000 * (counter + 1)))

    def nvmlDeviceGetCurrPcieLinkGeneration(self, card: Card) -> int:
        return int(self._said(card, card.pcie[0]))

    def nvmlDeviceGetMaxPcieLinkGeneration(self, card: Card) -> int:
        return int(self._said(card, card.pcie[1]))

    def nvmlDeviceGetCurrPcieLinkWidth(self, card: Card) -> int:
        return int(self._said(card, card.pcie[2]))

    def nvmlDeviceGetMaxPcieLinkWidth(self, card: Card) -> int:
        return int(self._said(card, card.pcie[3]))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, card: Card, link: int) -> int:
        return 2 if card.links[link] == "switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, card: Card, link: int) -> Any:
        return SimpleNamespace(busId=card.links[link])

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Card, other: Card) -> int:
        return self.ancestor

    def nvmlDeviceGetP2PStatus(self, one: Card, other: Card, index: int) -> int:
        if not isinstance(index, int):
            raise TypeError("an int is required")  # what ctypes does with (0,)
        return {0: self.peer_read, 2: self.peer_nvlink}[index]


def buses(*cards: Card) -> list[Card]:
    for i, card in enumerate(cards):
        card.bus = f"00000000:{0x10 + i:02X}:00.0"
    return list(cards)


def test_a_card_is_read_with_its_figures_and_counters() -> None:
    found = nvml.read(FakeNvml([Card(reasons=0x40)]), now_s=9.0)
    (device,) = found.devices
    assert (found.driver, found.tool, found.can_p2p) == ("550.90.07", "NVML", None)
    assert (device.uuid, device.card) == ("GPU-00000000:19:00.0", accelerator("H100-SXM5-80GB"))
    assert (device.power_w, device.temperature_c, device.utilisation) == (700.0, 60.0, 0.5)
    reading = found.readings[0]
    assert (reading.at_s, reading.ecc_corrected, reading.ecc_uncorrected, reading.pcie_replays) == (9.0, 5, 0, 7)
    assert reading.throttled == {"hw-thermal"}
    assert score(reading).faults == ("thermal",)


def test_cards_on_switches_are_all_joined() -> None:
    cards = buses(*(Card(links=dict.fromkeys(range(18), "switch")) for _ in range(4)))
    found = nvml.read(FakeNvml(cards), now_s=0.0)
    assert set(found.links.values()) == {"nvlink"}
    assert len(found.links) == 6
    assert found.can_p2p is True


def test_cards_joined_directly_are_joined_in_pairs_only() -> None:
    cards = buses(Card(), Card(), Card())
    cards[0].links, cards[1].links = {0: "0000:11:00.0"}, {3: "0000:10:00.0"}
    found = nvml.read(FakeNvml(cards, ancestor=30), now_s=0.0)
    assert found.links == {(0, 1): "nvlink", (0, 2): "phb", (1, 2): "phb"}


@pytest.mark.parametrize(
    ("level", "link"), [(0, "pix"), (10, "pix"), (20, "pxb"), (30, "phb"), (40, "node"), (50, "sys")]
)
def test_without_nvlink_the_common_ancestor_says_the_link(level: int, link: str) -> None:
    assert nvml.read(FakeNvml(buses(Card(), Card()), ancestor=level), now_s=0.0).links == {(0, 1): link}


def test_cards_whose_driver_forbids_peers_have_no_p2p() -> None:
    assert nvml.read(FakeNvml(buses(Card(), Card()), peer_read=3), now_s=0.0).can_p2p is False


def test_a_lost_card_is_there_and_not_to_be_used() -> None:
    found = nvml.read(FakeNvml(buses(Card(), Card(is_lost=True))), now_s=0.0)
    assert [(one.health, one.faults) for one in found.devices] == [(1.0, ()), (0.0, ("lost",))]
    assert list(found.readings) == [0]


def test_a_card_that_tells_little_has_little() -> None:
    found = nvml.read(FakeNvml([Card(name=b"NVIDIA Unheard Of", is_mute=True)]), now_s=0.0)
    (device,) = found.devices
    assert (device.model, device.card, device.power_w) == ("NVIDIA Unheard Of", None, None)
    assert found.readings[0].ecc_uncorrected is None


def test_rows_that_could_not_be_remapped_end_a_cards_use() -> None:
    found = nvml.read(FakeNvml([Card(remapped=(0, 1, 0, 1))]), now_s=0.0)
    assert score(found.readings[0]).score == 0.0


def test_a_library_that_cannot_even_count_is_an_error() -> None:
    class Broken(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:
            raise NVMLError("Uninitialized")

    with pytest.raises(BadOutput, match="NVML: expected a number of devices"):
        nvml.read(Broken([]), now_s=0.0)


@pytest.mark.real("pynvml")
def test_the_library_has_all_we_ask_it_for() -> None:
    pynvml = importlib.import_module("pynvml")
    text = Path(nvml.__file__).read_text(encoding="utf-8")
    assert [name for name in re.findall(r"\bnvml[A-Z]\w+", text) if not hasattr(pynvml, name)] == []


@pytest.mark.parametrize(("is_old", "used"), [(False, 2**30 - RESERVED), (True, 2**30)])
def test_what_the_driver_keeps_is_not_used_where_nvml_tells_it_apart(is_old: bool, used: int) -> None:
    found = nvml.read(FakeNvml([Card()], is_old=is_old, nvmlMemory_v2=33554472), now_s=0.0)
    assert found.devices[0].memory_used_bytes == used


def test_a_busy_card_is_read_with_how_it_does_its_work() -> None:
    links = {0: "switch", 1: "switch", 2: "switch"}
    card = Card(links=links, dead_links=(2,), clock=(990, 1980), pcie=(4, 5, 8, 16))
    reading = nvml.read(FakeNvml([card]), now_s=9.0).readings[0]
    assert (reading.utilisation, reading.is_busy) == (0.5, True)
    assert (reading.sm_clock_share, reading.power_share) == (0.5, 0.7)
    assert reading.pcie_share == 0.25, "half the lanes at half the rate"
    assert (reading.pcie_sent_bytes_per_s, reading.pcie_received_bytes_per_s) == (1_024_000.0, 2_048_000.0)
    assert (reading.nvlinks, reading.nvlink_errors) == (2, 8)


def test_an_idle_card_is_not_asked_how_it_works_and_a_mute_one_has_no_answers() -> None:
    idle, mute = nvml.read(FakeNvml(buses(Card(usage=0), Card(is_mute=True))), now_s=9.0).readings.values()
    for reading in (idle, mute):
        figures = (reading.sm_clock_share, reading.power_share, reading.pcie_share, reading.pcie_sent_bytes_per_s)
        assert figures == (None,) * 4
        assert (reading.nvlinks, reading.nvlink_errors, reading.is_busy) == (None, None, False)


def test_a_card_that_does_not_count_errors_of_its_links_has_none() -> None:
    reading = nvml.read(FakeNvml([Card(links={0: "switch"}, link_errors=None)]), now_s=9.0).readings[0]
    assert (reading.nvlinks, reading.nvlink_errors) == (1, None)
