"""Which domains can work on one job together: ranks must reach each other, and share their checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from strata.decision import Reason
from strata.fleet.fleet import Pair
from strata.fleet.schema import DriverEntry, KubeEntry, LocalEntry, SlurmEntry


def apart(entries: Mapping[str, DriverEntry]) -> dict[Pair, Reason]:
    """Return the pairs of domains whose drivers cannot meet, either domain first, with why."""
    reasons: dict[Pair, Reason] = {}
    for (a, first), (b, second) in combinations(entries.items(), 2):
        if why := _why(a, first, b, second):
            reasons[a, b] = reasons[b, a] = Reason("domains-cannot-meet", "", {"a": a, "b": b, "why": why})
    return reasons


def _why(a: str, first: DriverEntry, b: str, second: DriverEntry) -> str:
    match first, second:
        case (KubeEntry(), LocalEntry() | SlurmEntry()) | (LocalEntry() | SlurmEntry(), KubeEntry()):
            return "pods have neither the checkpoints nor the network of ranks that other drivers start"
        case (SlurmEntry(), SlurmEntry()):
            return ""  # rank 0 tells the address of its node in the folder that all of them see
        case (LocalEntry(namespace=here), LocalEntry(namespace=there)) if here == there:
            return ""
    closed = [name for name, entry in ((a, first), (b, second)) if not _is_reached(entry.address)]
    return f"no `address` leads to {' or '.join(closed)} from elsewhere" if closed else ""


def _is_reached(address: str | None) -> bool:
    """Whether an address leads to its domain from other networks: no loopback does."""
    return address is not None and address not in ("localhost", "::1") and not address.startswith("127.")
