"""NVIDIA's error events (XIDs) as NVML pushes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from strata.cluster.agent.watch import DeviceFault

CRITICAL: Final = 0x8
"""nvmlEventTypeXidCriticalError"""

TIMEOUT: Final = 10
"""NVML_ERROR_TIMEOUT: nothing happened."""


class XidWatch:
    """The error events of all cards that have them; a card that is added later needs a new watch.

    nvml: the module, started (`nvml.load`). is_broken: a card or the driver has gone, and a new watch is due.
    Raises its NVMLError where it cannot make a set of events.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._uuids: dict[bytes, str] = {}
        self.is_broken = False
        self._events = nvml.nvmlEventSetCreate()
        for i in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(i)
                uuid = nvml.nvmlDeviceGetUUID(handle)
                nvml.nvmlDeviceRegisterEvents(handle, CRITICAL, self._events)
            except nvml.NVMLError:  # too old a card, or it is lost already
                continue
            # A handle is a pointer. A card that fell off the bus does not say any more who it is.
            self._uuids[bytes(handle)] = uuid.decode() if isinstance(uuid, bytes) else uuid

    def __len__(self) -> int:
        """Return how many cards are watched."""
        return len(self._uuids)

    def wait(self, timeout_s: float, *, clock: Callable[[], float]) -> DeviceFault | None:
        """Return the next event, None where none came in time."""
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._events, round(timeout_s * 1000))
        except self._nvml.NVMLError as error:
            if getattr(error, "value", None) == TIMEOUT:
                return None
            self.is_broken = True
            return DeviceFault(clock())
        return DeviceFault(clock(), f"xid-{event.eventData}", self._uuids.get(bytes(event.device), ""))

    def close(self) -> None:
        """Give the events back."""
        with suppress(self._nvml.NVMLError):
            self._nvml.nvmlEventSetFree(self._events)


def start(load: Callable[[], Any | None]) -> XidWatch | None:
    """Return a watch; None without a driver or a card that has events."""
    nvml = load()
    if nvml is None:
        return None
    try:
        watch = XidWatch(nvml)
    except nvml.NVMLError:
        return None
    if len(watch):
        return watch
    watch.close()
    return None
