"""Quantities: read as people write them, kept as SI floats, written back for people.

Inside strata every quantity is a float in seconds, bytes, bytes/s, FLOP, FLOP/s or USD, and its name
carries the unit. Only the edge (files, options, tables) uses this module. A small parser of our own:
general unit libraries read `400Gbps` as gigabaud and `500m` as metres.

`Gbps`/`Gbit/s` are bits, `GB/s` are bytes; `Ki Mi Gi` are powers of 1024, `k M G` powers of 1000.
"""

from __future__ import annotations

import math
import re
from typing import Final, Literal

from strata.errors import UsageError

Dimension = Literal["bandwidth", "bytes", "time", "flops", "flop", "usd", "usd_per_hour", "usd_per_byte", "tokens"]

_PREFIX: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _scaled(bases: dict[str, float], prefixes: dict[str, float]) -> dict[str, float]:
    return {p + base: scale * size for base, size in bases.items() for p, scale in prefixes.items()}


_UNITS: Final[dict[str, dict[str, float]]] = {
    "bandwidth": {
        **_scaled({"bps": 1 / 8, "bit/s": 1 / 8, "b/s": 1 / 8, "B/s": 1.0}, _PREFIX),
        **_scaled({"bps": 1 / 8, "bit/s": 1 / 8, "B/s": 1.0}, _BINARY),
    },
    "bytes": {
        **_scaled({"B": 1.0}, _PREFIX),
        **_scaled({"B": 1.0, "": 1.0}, _BINARY),
    },
    "time": {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0,
             "d": 86400.0},
    "flops": _scaled({"FLOPS": 1.0, "FLOP/s": 1.0, "flops": 1.0, "flop/s": 1.0}, _PREFIX),
    "flop": _scaled({"FLOP": 1.0, "flop": 1.0}, _PREFIX),
    "usd": {"$": 1.0, "USD": 1.0},
    "usd_per_hour": {"$/h": 1.0, "USD/h": 1.0, "$/hour": 1.0, "USD/hour": 1.0},
    "usd_per_byte": {"$/GB": 1e-9, "USD/GB": 1e-9, "$/TB": 1e-12, "USD/TB": 1e-12, "$/GiB": 2.0**-30},
    "tokens": {"": 1.0, **_PREFIX, **_BINARY, "B": 1e9},
}  # fmt: skip

_EXAMPLE: Final[dict[str, str]] = {
    "bandwidth": "400Gbps (bits) or 50GB/s (bytes)",
    "bytes": "16Gi, 80GB or 512MiB",
    "time": "30ms, 500ns or 1h30m",
    "flops": "312TFLOPS",
    "flop": "6e21FLOP",
    "usd": "$1.20",
    "usd_per_hour": "$2.50/h",
    "usd_per_byte": "$0.02/GB",
    "tokens": "4Mi or 2T",
}

_NUMBER: Final = r"[+-]?(?:\d+(?:[_,]\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_QUANTITY: Final = re.compile(rf"\s*({_NUMBER})\s*([^\s\d]*(?:\s*tokens)?)\s*")
_DURATION: Final = re.compile(rf"({_NUMBER})\s*(ns|us|µs|ms|min|[smhd])")


def parse(text: str | float, dimension: Dimension) -> float:
    """Read a quantity into SI.

    A number without a unit is refused where its unit could be mistaken (everything but tokens, USD and
    zero); `Gb` for memory is refused because `b` is bits. Raises UsageError with an example.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise UsageError(f"{text!r} is not a quantity; write {_EXAMPLE[dimension]}")
    if isinstance(text, (int, float)):
        if dimension in ("tokens", "usd", "usd_per_hour") or text == 0:
            return _finite(float(text), text)
        raise UsageError(f"{text!r} has no unit; write {_EXAMPLE[dimension]}")
    if dimension == "time" and (total := _duration(text)) is not None:
        return total
    body = text.strip()
    dollar = body.startswith("$")
    match = _QUANTITY.fullmatch(body[1:] if dollar else body)
    if match is None:
        raise UsageError(f"cannot read {text!r}; write {_EXAMPLE[dimension]}")
    number, unit = float(match[1].replace("_", "").replace(",", "")), match[2].replace("tokens", "").strip()
    if dollar:
        unit = "$" + unit
    if unit == "" and dimension not in ("tokens", "usd", "usd_per_hour"):
        if number == 0:
            return 0.0
        raise UsageError(f"{text!r} has no unit; write {_EXAMPLE[dimension]}")
    if unit == "":
        return _finite(number, text)
    scale = _UNITS[dimension].get(unit)
    if scale is None:
        bits = " ('b' is bits; memory is counted in bytes, 'B')" if dimension == "bytes" and "b" in unit else ""
        raise UsageError(f"unit {unit!r} in {text!r} is not one of {dimension}{bits}; write {_EXAMPLE[dimension]}")
    return _finite(number * scale, text)


def _finite(value: float, text: object) -> float:
    if not math.isfinite(value):
        raise UsageError(f"{text!r} is not a finite number")
    return value


def _duration(text: str) -> float | None:
    """Read `1h30m`-like durations; None when the text is not a row of number-unit pairs."""
    body = text.replace(" ", "")
    parts = list(_DURATION.finditer(body))
    if not parts or "".join(part[0] for part in parts) != body:
        return None
    return math.fsum(float(part[1].replace(",", "")) * _UNITS["time"][part[2]] for part in parts)


_STEPS: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def _engineering(value: float, suffix: str, digits: int = 3) -> str:
    for scale, prefix in _STEPS:
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.{digits}g}{prefix}{suffix}"
    return f"{value:.{digits}g}{suffix}"


def show_bandwidth(bytes_per_s: float) -> str:
    """Write a bandwidth in bits per second, as links are sold: `5Gbps`."""
    return _engineering(bytes_per_s * 8, "bps")


def show_bytes(count: float) -> str:
    """Write a size in binary units, as memory is sold to programs: `74.5GiB`."""
    for scale, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if abs(count) >= scale:
            return f"{count / scale:.3g}{unit}" if abs(count) < 1000 * scale else f"{count / scale:.0f}{unit}"
    return f"{count:.0f}B"


def show_time(seconds: float) -> str:
    """Write a duration with three digits in its natural unit: `12.3ms`, `4.56s`, `2h05m`."""
    if not math.isfinite(seconds):
        return str(seconds)
    size = abs(seconds)
    if size >= 3600:
        minutes = round(seconds / 60)
        return f"{minutes // 60}h{minutes % 60:02d}m"
    if size >= 600:
        return f"{seconds / 60:.1f}min"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        if size >= scale:
            return f"{seconds / scale:.3g}{unit}"
    return "0s" if size == 0 else f"{seconds:.2g}s"


def show_flops(flop_per_s: float) -> str:
    """Write a compute rate: `312TFLOPS`."""
    return _engineering(flop_per_s, "FLOPS")


def show_count(value: float) -> str:
    """Write a large count: `70.6G` parameters, `1.05M` tokens."""
    return _engineering(value, "")


def show_usd(usd: float) -> str:
    """Write money with the digits that matter: `$12.30`, `$0.0041`."""
    return f"${usd:,.2f}" if abs(usd) >= 1 else f"${usd:.3g}"
