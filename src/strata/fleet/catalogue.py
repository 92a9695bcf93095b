"""The accelerators strata knows, restated in `accelerators.csv`, each row with its source.

Empty cells are figures that are unknown or disputed. `trust` grades the published columns by the worst of
them; the `_measured` columns were read off real devices. Interconnect figures sum both directions. FP8 rates are
the vendors' dense figures, those of GPUs from memory: twice the 16-bit rate of every GPU that has them. `bf16` is
"no" where there are no units for it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache

from strata.bundled import bundled_text
from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet.accelerator import Accelerator
from strata.names import closest


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Return all accelerators, in the order of the file (by vendor)."""
    text = bundled_text("strata.fleet", "accelerators.csv")
    return tuple(_accelerator(row) for row in csv.DictReader(text.splitlines()))


def accelerator(name: str) -> Accelerator:
    """Return an accelerator by name or alias: as NVML, Kubernetes labels, HAMi or people write it.

    Case, spaces, `_`, `-` and a leading "NVIDIA" do not count. A name that fits several cards, such as
    `Ascend910B` without its SKU, is an error: their figures differ by a third. A bare `A100` is the 40 GB
    card, as SkyPilot has it. Raises UsageError.
    """
    key = _key(name)
    if (card := _by_key().get(key)) is not None:
        return card
    # A beginning that only one card shares is still refused: the card that is meant may be none of ours.
    candidates = dict.fromkeys(card.name for other, card in _by_key().items() if key and other.startswith(key))
    if len(candidates) > 1:
        raise UsageError(
            f"accelerator {name!r} is ambiguous: it may be {', '.join(candidates)}",
            hint="name one of them",
        )
    close = closest(key, _by_key())
    meant = f" (did you mean {_by_key()[close].name!r}?)" if close else ""
    raise UsageError(
        f"no accelerator {name!r} in the catalogue{meant}",
        hint="`strata gpus` lists them; an accelerator can be given inline in a fleet file with trust: assumed",
    )


def card_named(name: str) -> Accelerator | None:
    """Return what `accelerator` does, None where that is nothing, or might be several."""
    return _by_key().get(_key(name))


def _key(name: str) -> str:
    return name.casefold().translate(str.maketrans("", "", " \t_-")).removeprefix("nvidia")


@cache
def _by_key() -> Mapping[str, Accelerator]:
    return {_key(name): card for card in accelerators() for name in (card.name, *card.aliases)}


def _accelerator(row: Mapping[str, str]) -> Accelerator:
    def figure(column: str, scale: float) -> float | None:
        return float(row[column]) * scale if row[column] else None

    return Accelerator(
        name=row["name"],
        vendor=row["vendor"],
        memory_bytes=figure("memory_gib", 2**30) or 0.0,
        fp16_flops=figure("fp16_tflops", 1e12),
        fp32_flops=figure("fp32_tflops", 1e12),
        fp8_flops=figure("fp8_tflops", 1e12),
        has_bf16=row["bf16"] != "no",
        memory_bandwidth_bytes_per_s=figure("memory_gb_per_s", 1e9),
        interconnect=row["interconnect"],
        interconnect_bytes_per_s=figure("interconnect_gb_per_s", 1e9),
        fp16_flops_measured=figure("fp16_tflops_measured", 1e12),
        fp32_flops_measured=figure("fp32_tflops_measured", 1e12),
        memory_bandwidth_measured_bytes_per_s=figure("memory_gb_per_s_measured", 1e9),
        trust=Trust(row["trust"]),
        source=row["source"],
        aliases=tuple(alias for alias in row["aliases"].split(";") if alias),
    )
