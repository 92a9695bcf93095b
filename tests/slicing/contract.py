"""The slice contract as the quota library reads it, in Python: library and webhook are held against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from strata import units
from strata.errors import UsageError
from strata.fleet.slices import CORES, MEMORY, QuotaLimits

HAMI_MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
HAMI_CORES: Final = "CUDA_DEVICE_SM_LIMIT"
HAMI_OFF: Final = "CUDA_DISABLE_CONTROL"

_HAMI_UNITS: Final = {"": 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30}


def slices_from_environment(env: Mapping[str, str], *, devices: int) -> dict[int, QuotaLimits]:
    """Return the limits of the first `devices` devices: ours before HAMi's, one device's before those of all.

    Devices without a limit are left out. Raises UsageError for a limit that cannot be read: better no process than
    one without its limit.
    """
    found: dict[int, QuotaLimits] = {}
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
            found[device] = QuotaLimits(None if memory is None else int(memory), cores)
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
