"""The slice contract: how a fraction of a device is written into a process's environment, and read from it.

Memory is a limit on what a process and its children together hold on one device; the core share is of its time.
The quota library reads it (`slicing/native`), HAMi's variables too, so that pods written for it need no change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from strata.errors import UsageError

MEMORY: Final = "STRATA_MEMORY_LIMIT"
"""Bytes, of every device; with `_<i>` behind it, of the i-th device the process sees."""
CORES: Final = "STRATA_CORES_LIMIT"
"""Percent of every device's time, 1 to 100; with `_<i>` behind it, of the i-th."""
LEDGER: Final = "STRATA_LEDGER"
"""The file in which processes that share a limit count together."""
DEVICE_UUID: Final = "STRATA_DEVICE_UUID"
"""The one device that limits are of, as NVML names it, whatever number a process gives it."""
LEDGER_INODE: Final = "STRATA_LEDGER_INODE"
"""The number of that file, where it exists before the process does: another in its place is not taken for it."""
LIBRARY: Final = "/usr/local/strata/libstrata_quota.so"
"""Where the quota library lies in a container, and what `PRELOAD` names."""
PRELOAD: Final = "LD_PRELOAD"
PRELOAD_FILE: Final = "/etc/ld.so.preload"
"""In a pod's container, the loader's list of what every program loads, whatever its environment."""
LIMITS_FILE: Final = "/etc/strata/limits"
"""In a pod's container, these variables as lines: read where the environment has no limits."""
CONTAINER: Final = "STRATA_CONTAINER"
"""In that file, the container's name; the library does not look at it."""
SWITCH: Final = "STRATA_QUOTA"
"""`off`: the library limits nothing."""
FAIL: Final = "STRATA_QUOTA_FAIL"
"""`open` or `closed`, the default: whether what cannot be counted is granted or refused."""

_MOST_DEVICES: Final = 64


@dataclass(frozen=True, slots=True)
class QuotaLimits:
    """What a process may use: bytes, and a share of the cores in (0, 1]; None is no limit.

    device: the one it is of, by its number in the process; None is every device.
    """

    memory_bytes: int | None = None
    cores_share: float | None = None
    device: int | None = None


def limits_file(environment: Mapping[str, str], *, container: str) -> str:
    """Return the text of `LIMITS_FILE` for what `slice_environment` returned."""
    lines = {name: value for name, value in environment.items() if name != PRELOAD} | {CONTAINER: container}
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def slice_environment(limits: QuotaLimits, *, ledger: str = "", library: str = LIBRARY) -> dict[str, str]:
    """Return the variables that make the quota library keep limits; none where nothing is limited.

    Raises UsageError for a limit that is none: no bytes, or no share of the cores.
    """
    memory_bytes, cores_share, device = limits.memory_bytes, limits.cores_share, limits.device
    if device is not None and not 0 <= device < _MOST_DEVICES:
        raise UsageError(f"device {device} is not from 0 to {_MOST_DEVICES - 1}")
    if memory_bytes is not None and memory_bytes <= 0:
        raise UsageError(f"a memory limit must be positive, not {memory_bytes} bytes", hint="16Gi")
    if cores_share is not None and not 0 < cores_share <= 1:
        raise UsageError(f"{cores_share} is not a share of the cores (above 0, at most 1)", hint="0.3")
    end, env = "" if device is None else f"_{device}", dict[str, str]()
    if memory_bytes is not None:
        env[f"{MEMORY}{end}"] = str(memory_bytes)
    if cores_share is not None:
        env[f"{CORES}{end}"] = str(max(1, round(100 * cores_share)))
    if env:
        env[PRELOAD] = library
        if ledger:
            env[LEDGER] = ledger
    return env
