"""The slice contract: how a fraction of a device is written into a process's environment, and read from it.

Memory is a limit on what a process and its children together hold on one device; the core share is of its time.
HAMi's variables mean the same and are understood, so that pods written for it need no change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from strata import units
from strata.errors import UsageError

MEMORY: Final = "STRATA_MEMORY_LIMIT"
"""Bytes, of every device; with `_<i>` behind it, of the i-th device the process sees."""
CORES: Final = "STRATA_CORES_LIMIT"
"""Percent of every device's time, 1 to 100; with `_<i>` behind it, of the i-th."""
LEDGER: Final = "STRATA_LEDGER"
"""The file in which processes that share a limit count together."""
LIBRARY: Final = "/usr/local/strata/libstrata_quota.so"
"""Where the quota library lies in a container, and what `PRELOAD` names."""
PRELOAD: Final = "LD_PRELOAD"
SWITCH: Final = "STRATA_QUOTA"
"""`off`: the library limits nothing."""
FAIL: Final = "STRATA_QUOTA_FAIL"
"""`open` or `closed`, the default: whether what cannot be counted is granted or refused."""

HAMI_MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
HAMI_CORES: Final = "CUDA_DEVICE_SM_LIMIT"
HAMI_OFF: Final = "CUDA_DISABLE_CONTROL"

_HAMI_UNITS: Final = {"": 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30}
_MOST_DEVICES: Final = 64


@dataclass(frozen=True, slots=True)
class Slice:
    """What a process may use of one device. memory_bytes, cores_share (in (0, 1]): None is no limit."""

    memory_bytes: int | None = None
    cores_share: float | None = None


def slice_environment(
    slices: Mapping[int, Slice] | Slice, *, ledger: str = "", library: str = LIBRARY
) -> dict[str, str]:
    """Return the variables that make the quota library keep limits.

    slices: by the device's number in the process, or one for every device. Raises UsageError for a limit that is
    none: no bytes, or no share of the cores.
    """
    env: dict[str, str] = {}
    by_device = {None: slices} if isinstance(slices, Slice) else {**slices}
    for device, one in by_device.items():
        if device is not None and not 0 <= device < _MOST_DEVICES:
            raise UsageError(f"device {device} is not from 0 to {_MOST_DEVICES - 1}")
        end = "" if device is None else f"_{device}"
        if one.memory_bytes is not None:
            if one.memory_bytes <= 0:
                raise UsageError(f"a limit of {one.memory_bytes} bytes leaves nothing", hint="16Gi")
            env[f"{MEMORY}{end}"] = str(one.memory_bytes)
        if one.cores_share is not None:
            if not 0 < one.cores_share <= 1:
                raise UsageError(f"{one.cores_share} is no share of the cores", hint="0.3")
            env[f"{CORES}{end}"] = str(max(1, round(100 * one.cores_share)))
    if env:
        env[PRELOAD] = library
        if ledger:
            env[LEDGER] = ledger
    return env


def slices_from_environment(env: Mapping[str, str], *, devices: int) -> dict[int, Slice]:
    """Return the limits of the first `devices` devices: ours before HAMi's, one device's before those of all.

    Devices without a limit are left out. Raises UsageError for a limit that cannot be read: better no process than
    one without its limit.
    """
    found: dict[int, Slice] = {}
    is_hami_on = env.get(HAMI_OFF, "").lower() not in ("true", "1")
    for device in range(devices):
        memory = _first(env, (f"{MEMORY}_{device}", MEMORY), _memory)
        cores = _first(env, (f"{CORES}_{device}", CORES), _cores)
        if is_hami_on:
            if memory is None:
                memory = _first(env, (f"{HAMI_MEMORY}_{device}", HAMI_MEMORY), _hami_memory)
            if cores is None:
                cores = _first(env, (f"{HAMI_CORES}_{device}", HAMI_CORES), _cores)
        if memory is not None or cores is not None:
            found[device] = Slice(None if memory is None else int(memory), cores)
    return found


def _first(env: Mapping[str, str], names: tuple[str, ...], read: Callable[[str], float | None]) -> float | None:
    for name in names:
        if text := env.get(name, "").strip():
            try:
                return read(text)
            except UsageError as error:
                raise UsageError(f"{name}: {error}", hint="16Gi for memory, 30 for cores") from None
    return None


def _memory(text: str) -> float | None:
    amount = float(text) if re.fullmatch(r"[0-9]{1,18}", text) else units.parse(text, "bytes")
    if amount <= 0:
        raise UsageError(f"{text!r} leaves nothing")
    return amount


def _hami_memory(text: str) -> float | None:
    match = re.fullmatch(r"([0-9]{1,15})([kmgKMG]?)", text)
    if match is None:
        raise UsageError(f"{text!r} is no amount of memory")
    # HAMi writes 0 where there is no limit.
    return int(match[1]) * _HAMI_UNITS[match[2].lower()] or None


def _cores(text: str) -> float | None:
    if not re.fullmatch(r"[0-9]{1,3}", text) or int(text) > 100:
        raise UsageError(f"{text!r} is no percentage")
    # 0 and 100 are no limit, in HAMi's reading too.
    return int(text) / 100 if 0 < int(text) < 100 else None
