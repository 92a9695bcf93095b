"""Quantities: read as people write them, kept as SI floats, written back for people.

Inside strata every quantity is a float in seconds, bytes, bytes/s, FLOP, FLOP/s or USD, and its name
carries the unit. Only the edge (files, options, tables) uses this module. A small parser of our own:
general unit libraries read `400Gbps` as gigabaud and `500m` as metres.

`Gbps`/`Gbit/s` are bits, `GB/s` are bytes; `Ki Mi Gi` are powers of 1024, `k M G` powers of 1000.
"""

from __future__ import annotations

import math
import re
import reprlib
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
    "time": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0},
    "flops": _scaled({"FLOPS": 1.0, "FLOP/s": 1.0, "flops": 1.0, "flop/s": 1.0}, _PREFIX),
    "flop": _scaled({"FLOP": 1.0, "flop": 1.0}, _PREFIX),
    "usd": {"$": 1.0, "USD": 1.0},
    "usd_per_hour": {"$/h": 1.0, "USD/h": 1.0, "$/hour": 1.0, "USD/hour": 1.0},
    "usd_per_byte": {
        f"{currency}/{per}": 1 / size
        for currency in ("$", "USD")
        for per, size in (("GB", 1e9), ("TB", 1e12), ("GiB", 2.0**30), ("TiB", 2.0**40))
    },
    "tokens": _scaled({"": 1.0, "tokens": 1.0}, _PREFIX | _BINARY | {"B": 1e9}),
}  # fmt: skip

EXAMPLE: Final[dict[str, str]] = {
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

_BARE: Final = ("tokens", "usd")
"""The dimensions whose numbers need no unit: there is only one it could be."""

_MAX_LENGTH: Final = 64
# A comma groups thousands and nothing else: `1,5s` means 1.5 s to many, so it must not be read as 15 s.
_DIGITS: Final = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)"
_NUMBER: Final = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_QUANTITY: Final = re.compile(rf"([+-]?)(\$?)\s*({_NUMBER})\s*([^\s0-9]*(?:\s+tokens)?)")
_PART: Final = re.compile(rf"({_NUMBER})\s*(ns|us|ms|min|[smhd])\s*")
_DURATION: Final = re.compile(rf"([+-]?)((?:{_PART.pattern})+)")


def parse(text: str | float, dimension: Dimension) -> float:
    """Read a quantity into SI.

    A number without a unit is refused where its unit could be mistaken (everything but tokens, USD and
    zero); `Gb` for memory is refused because `b` is bits. A minus is read: what may be negative is for the
    caller to say. Raises UsageError with an example.
    """
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise UsageError(f"{reprlib.repr(text)} is not a quantity; write {EXAMPLE[dimension]}")
    try:
        value = _read(text, dimension) if isinstance(text, str) else _with_unit(float(text), "", text, dimension)
    except OverflowError:  # an integer of hundreds of digits
        value = math.inf
    if not math.isfinite(value):
        raise UsageError(f"{reprlib.repr(text)} is not a finite number")
    return value + 0.0  # -0 becomes 0


def parse_share(text: str) -> float:
    """Read `8%` or `0.08` as 0.08. Raises UsageError for what is not a number."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise UsageError(f"{text!r} is not a share; write 8% or 0.08") from None


def _read(text: str, dimension: Dimension) -> float:
    body = text.strip().replace("µ", "u").replace("μ", "u")  # micro sign, Greek mu
    if len(body) <= _MAX_LENGTH:
        if dimension == "time" and (duration := _DURATION.fullmatch(body)):
            parts = [_number(part[1]) * _UNITS["time"][part[2]] for part in _PART.finditer(duration[2])]
            return float(duration[1] + "1") * math.fsum(parts)
        if quantity := _QUANTITY.fullmatch(body):
            sign, dollar, number, unit = quantity.groups()
            return _with_unit(float(sign + "1") * _number(number), dollar + "".join(unit.split()), text, dimension)
    raise UsageError(f"cannot read {reprlib.repr(text)}; write {EXAMPLE[dimension]}")


def _number(text: str) -> float:
    return float(text.replace("_", "").replace(",", ""))


def _with_unit(number: float, unit: str, text: str | float, dimension: Dimension) -> float:
    if unit == "" and (dimension in _BARE or number == 0):
        return number
    if unit == "":
        raise UsageError(f"{reprlib.repr(text)} has no unit; write {EXAMPLE[dimension]}")
    scale = _UNITS[dimension].get(unit)
    if scale is None:
        bits = " ('b' is bits; memory is counted in bytes, 'B')" if dimension == "bytes" and "b" in unit else ""
        raise UsageError(
            f"unit {unit!r} in {reprlib.repr(text)} is not one of {dimension}{bits}; write {EXAMPLE[dimension]}"
        )
    return number * scale


_STEPS: Final = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def _engineering(value: float, suffix: str) -> str:
    for scale, prefix in _STEPS:
        # 999.5 has four digits once rounded to three, so it belongs to the next step.
        if scale * 0.9995 <= abs(value) < scale * 999.5:
            return f"{value / scale:.3g}{prefix}{suffix}"
    return f"{value:.3g}{suffix}"


def show_bandwidth(bytes_per_s: float) -> str:
    """Write a bandwidth in bits per second, as links are sold: `5Gbps`."""
    return _engineering(bytes_per_s * 8, "bps")


def show_bytes(count: float) -> str:
    """Write a size in binary units, as memory is sold to programs: `74.5GiB`."""
    for scale, unit in ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if abs(count) >= scale:
            return f"{count / scale:.3g}{unit}" if abs(count) < 999.5 * scale else f"{count / scale:.0f}{unit}"
    return f"{count:.0f}B"


def show_time(seconds: float) -> str:
    """Write a duration with three digits in its natural unit: `12.3ms`, `4.56s`, `2h05m`."""
    if seconds < 0:
        return f"-{show_time(-seconds)}"
    if not math.isfinite(seconds):
        return str(seconds)
    # Each bound is where the rounded figure would read 1000 of its own unit, or 60 minutes.
    for scale, bound, unit in ((1e-9, 999.5, "ns"), (1e-6, 999.5, "us"), (1e-3, 999.5, "ms"), (1.0, 599.5, "s")):
        if seconds < scale * bound:
            return f"{seconds / scale:.3g}{unit}" if seconds else "0s"
    if seconds < 3597:
        return f"{seconds / 60:.1f}min"
    minutes = round(seconds / 60)
    return f"{minutes // 60}h{minutes % 60:02d}m"


def show_flops(flop_per_s: float) -> str:
    """Write a compute rate: `312TFLOPS`."""
    return _engineering(flop_per_s, "FLOPS")


def show_count(value: float) -> str:
    """Write a large count: `70.6B` parameters, `1.05M` tokens."""
    text = _engineering(value, "")
    return f"{text[:-1]}B" if text.endswith("G") else text  # billions, as models are named


def show_usd(usd: float) -> str:
    """Write money with the digits that matter: `$12.30`, `$0.0041`."""
    sign = "-" if usd < 0 else ""
    return f"{sign}${abs(usd):,.2f}" if abs(usd) >= 0.9995 else f"{sign}${abs(usd):.3g}"
