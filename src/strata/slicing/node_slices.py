"""The slices of a node as metrics: its pods' and, for who may see them, those of `strata run`.

A pod's ledger lies in a volume of its own (an emptyDir), and beside it, in one that the kubelet writes, the pod's
name, its namespace and its container (`cluster.admission`). So neither the API server nor a driver is asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from strata.errors import UsageError
from strata.fleet.ledger import DeviceUse, read_ledger
from strata.fleet.slices import CONTAINER
from strata.net.metrics import Registry, Values, read_counter, read_gauge
from strata.slicing.ledger_directory import visible_ledgers

MOST_SLICES: Final = 4096
_LEDGER: Final = "volumes/kubernetes.io~empty-dir/strata-ledger/quota.ledger"
_TOLD: Final = "volumes/kubernetes.io~downward-api/strata-limits"
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_MOST_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """A ledger and whose it is: a pod's container, or the slice of a `strata run`, with that name alone."""

    path: Path
    name: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""


def find_slices(pods: Path, environment: Mapping[str, str], *, user: int) -> Iterator[NodeSlice]:
    """Yield the slices of a node, `MOST_SLICES` at most: its pods', then those that a user may see.

    What a pod's owner could have written where a name belongs, and is none, is left empty.
    """
    slices = [
        *(_of_pod(path) for path in sorted(pods.glob(f"*/{_LEDGER}"))),
        *(NodeSlice(path, path.stem) for path in visible_ledgers(environment, user=user)),
    ]
    yield from slices[:MOST_SLICES]


def _of_pod(ledger: Path) -> NodeSlice:
    names = ledger.parents[3] / _TOLD
    lines = _text(names / "limits").splitlines()
    container = next((line.partition("=")[2] for line in lines if line.startswith(f"{CONTAINER}=")), "")
    return NodeSlice(
        ledger,
        namespace=_label(_text(names / "namespace")),
        pod=_label(_text(names / "pod")),
        container=_label(container),
    )


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _label(text: str) -> str:
    return text.strip() if _LABEL.fullmatch(text.strip()) else ""


_LABELS: Final = ("namespace", "pod", "container", "slice", "device")


class NodeSliceMetrics:
    """The registry; ledgers are read when it is asked."""

    def __init__(self, pods: Path, *, environment: Mapping[str, str] = os.environ, user: int) -> None:
        self.registry = Registry()
        self.unreadable = 0
        self._find = partial(find_slices, pods, environment, user=user)
        self._gauge("used_bytes", "Memory that a slice's living processes hold.", lambda use: use.used_bytes)
        self._gauge("limit_bytes", "What a slice may hold of the device.", lambda use: use.limit_bytes)
        self._gauge("cores_share", "The share of the device's time a slice may have.", lambda use: use.cores_share)
        self._gauge("processes", "Living processes of a slice.", lambda use: len(use.processes))
        self._gauge(
            "context_bytes",
            "What each process is charged for its context of the device.",
            lambda use: use.context_bytes if use.context_trust else None,
        )
        read_counter(
            self.registry,
            "strata_slice_refused_total",
            "Requests for memory that did not fit into the slice.",
            _LABELS,
            lambda: self._read(lambda use: use.refused),
        )
        read_gauge(
            self.registry,
            "strata_slices_unreadable",
            "Ledgers of this node that are none, or of another version.",
            (),
            lambda: {(): float(self._count_unreadable())},
        )

    def _gauge(self, name: str, text: str, value: Callable[[DeviceUse], float | None]) -> None:
        read_gauge(self.registry, f"strata_slice_{name}", text, _LABELS, lambda: self._read(value))

    def _uses(self) -> Iterator[tuple[NodeSlice, DeviceUse | None]]:
        for each in self._find():
            try:
                for use in read_ledger(each.path, name=each.name):
                    yield each, use
            except UsageError:
                if each.path.exists():  # not one that has just ended
                    yield each, None

    def _read(self, value: Callable[[DeviceUse], float | None]) -> Values:
        values: dict[tuple[str, ...], float] = {}
        for each, use in self._uses():
            if use is None or (figure := value(use)) is None:
                continue
            device = "" if use.device is None else str(use.device)
            values[each.namespace, each.pod, each.container, each.name, device] = float(figure)
        return values

    def _count_unreadable(self) -> int:
        return len([use for _, use in self._uses() if use is None])
