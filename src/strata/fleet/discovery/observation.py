"""What one tool says of a machine, and the catalogue's view of the cards it names.

Every parser returns `Found` or raises `BadOutput`: a table that cannot be read in full is not read in part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from strata.decision import Trust
from strata.errors import StrataError
from strata.fleet.accelerator import Accelerator
from strata.fleet.catalogue import card_named
from strata.fleet.fingerprint import Device
from strata.fleet.health import DeviceReading

MIB: Final = 2.0**20

FITS: Final = (0.85, 1.15)
"""Memory a tool shows over the catalogue's: drivers keep some for themselves, vendors count GB or GiB."""

_FIGURES: Final = (
    "memory_bytes", "fp16_flops", "fp32_flops", "fp8_flops", "memory_bandwidth_bytes_per_s",
    "interconnect_bytes_per_s", "fp16_flops_measured", "fp32_flops_measured",
    "memory_bandwidth_measured_bytes_per_s",
)  # fmt: skip

DUAL_DIE: Final = frozenset({"Ascend910C", "MLU370-X8"})
"""Boards the tools show as two devices; of the MLU370-X8 that is inferred from its rows of half its memory."""


class BadOutput(StrataError):
    """A tool wrote something its parser does not know. `line` counts from 1; 0: the whole output."""

    exit_code = 5

    def __init__(self, tool: str, line: int, expected: str, got: str = "") -> None:
        where = f"{tool}: line {line}" if line else tool
        shown = f", not {got.strip()[:80]!r}" if got.strip() else ""
        super().__init__(f"{where}: expected {expected}{shown}", hint=f"run `{tool}` on the node and look at it")
        self.tool, self.line, self.expected = tool, line, expected


@dataclass(frozen=True, slots=True)
class Found:
    """Devices as one tool counts them.

    links: by the devices' own `index`, smaller first. readings: counters by `index`, as far as the tool has them.
    can_p2p: None where the tool does not tell. Devices without a uuid of their own have "".
    """

    tool: str
    driver: str = ""
    devices: tuple[Device, ...] = ()
    links: Mapping[tuple[int, int], str] = field(default_factory=dict)
    readings: Mapping[int, DeviceReading] = field(default_factory=dict)
    can_p2p: bool | None = None

    def __post_init__(self) -> None:
        """Raise BadOutput where a number stands twice: nobody knows which device is meant by it."""
        indices = [device.index for device in self.devices]
        if len(set(indices)) != len(indices):
            raise BadOutput(self.tool, 0, "every device once", f"numbers {indices}")


def card_of(name: str, memory_bytes: float) -> Accelerator | None:
    """Return the catalogue's card of a tool's name, None where it has none or its memory is another card's.

    A device with half of the memory of a board of two dies is one of them. Half of any other card is a slice
    of it, about whose speed nothing is known.
    """
    card = card_named(name)
    if card is None:
        return None
    if card.memory_bytes <= 0 or memory_bytes <= 0 or FITS[0] <= memory_bytes / card.memory_bytes <= FITS[1]:
        return card
    is_half = FITS[0] <= 2 * memory_bytes / card.memory_bytes <= FITS[1]
    return die_of(card) if is_half and card.name in DUAL_DIE else None


def die_of(card: Accelerator) -> Accelerator:
    """Return one die of a board of two: the catalogue's, else half of each figure, which is an assumption."""
    if (die := card_named(f"{card.name}-die")) is not None:
        return die
    figures = {name: getattr(card, name) for name in _FIGURES}
    halves: dict[str, Any] = {name: figure and figure / 2 for name, figure in figures.items()}
    source = f"half of {card.name}"
    return replace(card, name=f"{card.name}-die", trust=Trust.ASSUMED, source=source, aliases=(), **halves)
