"""`strata gpus`: the accelerator catalogue, one accelerator in full, and how many cards a need takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import click

from strata.cli.output import emit, output_option
from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet.accelerator import Accelerator
from strata.fleet.acu import FIGURES, REACHED, AcuVector, Cards, Figure, Need, acu, parse_need, rank
from strata.fleet.catalogue import accelerator, accelerators
from strata.tables import Line, Shown, rows

_KEYS: Final[dict[Figure, str]] = {
    "fp16": "fp16_flops",
    "fp32": "fp32_flops",
    "memory": "memory_bytes",
    "memory_bandwidth": "memory_bandwidth_bytes_per_s",
    "link_bandwidth": "link_bandwidth_bytes_per_s",
}
_FACTS: Final = (
    *("fp16_flops", "fp32_flops", "memory_bandwidth_bytes_per_s", "interconnect", "interconnect_bytes_per_s"),
    *("fp16_flops_measured", "fp32_flops_measured", "memory_bandwidth_measured_bytes_per_s"),
)
_ACU_NOTE: Final = (
    "1 ACU = 1 % of an A100-80GB's measured dense FP16 = 2.515 TFLOPS (FlagPerf, A100-40GB, the same die).\n"
    f"~ nominal x {REACHED['fp16']:.3f}, the share an A100 reaches: assumed.  m measured, no nominal figure."
)


@click.command()
@click.argument("name", required=False)
@click.option(
    "--need", "need_text", metavar="TEXT", help='Cards for "100TFLOPS fp16, 160GB memory, 2TB/s bandwidth".'
)
@click.option("--vendor", help="Only this vendor's cards.")
@output_option
def gpus(name: str | None, need_text: str | None, vendor: str | None, output: str) -> None:
    """List accelerators, show NAME in full, or count the cards a need takes.

    \b
    strata gpus
    strata gpus h100_sxm
    strata gpus --need "100TFLOPS fp16, 160GB memory"
    """
    chosen = _of_vendor(accelerators() if name is None else (accelerator(name),), vendor)
    if need_text is not None:
        need = parse_need(need_text)
        answers = rank(need, chosen)
        emit(_need_data(need, answers), output, _show_need(answers))
    elif name is not None:
        emit(_data(chosen[0]), output, _show_one(chosen[0]))
    else:
        emit([_data(card) for card in chosen], output, _show_all(chosen))


def _of_vendor(cards: Sequence[Accelerator], vendor: str | None) -> Sequence[Accelerator]:
    if vendor is None:
        return cards
    kept = [card for card in cards if card.vendor.casefold() == vendor.casefold()]
    if not kept:
        vendors = ", ".join(dict.fromkeys(card.vendor for card in cards))
        raise UsageError(f"no card here is of vendor {vendor!r} (there are: {vendors})")
    return kept


def _data(card: Accelerator) -> dict[str, Any]:
    vector = acu(card)
    return {
        **{key: getattr(card, key) for key in ("name", "vendor")},
        "memory_bytes": card.memory_bytes or None,
        **{key: getattr(card, key) for key in _FACTS},
        "trust": card.trust.value,
        "acu": {figure: getattr(vector, figure) for figure in FIGURES},
        "acu_trust": {figure: trust.value for figure, trust in vector.trust.items()},
        "source": card.source,
        "aliases": list(card.aliases),
    }


def _need_data(need: Need, answers: Sequence[Cards]) -> dict[str, Any]:
    best = _best(answers)
    return {
        "need": {_KEYS[figure]: amount for figure, amount in need.amounts.items()},
        "cards": [
            {
                "name": answer.accelerator.name,
                "vendor": answer.accelerator.vendor,
                "count": answer.count,
                "best_of_vendor": answer in best,
                "bound_by": answer.bound_by,
                "cards_by_figure": dict(answer.ratios),
                "spare_share": dict(answer.spare),
                "trust": answer.trust.value,
                "missing": list(answer.missing),
            }
            for answer in answers
        ],
    }


def _best(answers: Sequence[Cards]) -> list[Cards]:
    first: dict[str, Cards] = {}
    for answer in answers:
        if answer.count is not None:
            first.setdefault(answer.accelerator.vendor, answer)
    return list(first.values())


def _show_all(cards: Sequence[Accelerator]) -> Shown:
    body = [
        (
            card.name,
            card.vendor,
            _or_unknown(card.memory_bytes / 2**30),
            _nominal_or_measured(card.fp16_flops, card.fp16_flops_measured, 1e12),
            _nominal_or_measured(
                card.memory_bandwidth_bytes_per_s, card.memory_bandwidth_measured_bytes_per_s, 1e9
            ),
            _acu(acu(card), "fp16"),
            card.trust.value,
        )
        for card in cards
    ]
    headers = ("name", "vendor", "GiB", "fp16 TFLOPS", "mem GB/s", "ACU", "trust")
    yield rows(headers, body, right=(2, 3, 4, 5))
    yield Line(f"\n{_ACU_NOTE}", is_whole=True)


def _show_one(card: Accelerator) -> Shown:
    vector = acu(card)
    rates: tuple[tuple[Figure, str, float | None, float | None], ...] = (
        ("fp16", "TFLOPS", card.fp16_flops, card.fp16_flops_measured),
        ("fp32", "TFLOPS", card.fp32_flops, card.fp32_flops_measured),
        ("memory", "GiB", card.memory_bytes, None),
        (
            "memory_bandwidth",
            "GB/s",
            card.memory_bandwidth_bytes_per_s,
            card.memory_bandwidth_measured_bytes_per_s,
        ),
        ("link_bandwidth", "GB/s", card.interconnect_bytes_per_s, None),
    )
    scale = {"TFLOPS": 1e12, "GiB": 2**30, "GB/s": 1e9}
    body = [
        (
            figure.replace("_", " "),
            unit,
            _or_unknown((nominal or 0) / scale[unit]),
            _or_unknown((measured or 0) / scale[unit]),
            _acu(vector, figure),
            vector.trust[figure].value if figure in vector.trust else "unknown",
        )
        for figure, unit, nominal, measured in rates
    ]
    yield Line(f"{card.name} ({card.vendor}), figures {card.trust.value}", style="bold")
    yield rows(("figure", "unit", "nominal", "measured", "ACU", "ACU trust"), body, right=(2, 3, 4))
    yield f"\nlink     {card.interconnect}, both directions together"
    yield Line(f"source   {card.source}", is_whole=True)
    yield Line(f"aliases  {', '.join(card.aliases) or 'none'}", is_whole=True)


def _show_need(answers: Sequence[Cards]) -> Shown:
    best = _best(answers)
    body = [
        (
            "*" if answer in best else "",
            "?" if answer.count is None else f"{answer.count:,}",
            answer.accelerator.name,
            answer.accelerator.vendor,
            (answer.bound_by or "").replace("_", " "),
            f"unknown: {', '.join(missing.split()[-1] for missing in answer.missing).replace('_', ' ')}"
            if answer.missing
            else answer.trust.value,
        )
        for answer in answers
    ]
    yield rows(("", "cards", "name", "vendor", "bound by", "trust"), body, right=(1,))
    yield "\n* best of its vendor: fewest cards. Rates: measured, else what an A100 reaches."


def _or_unknown(value: float) -> str:
    return f"{value:.5g}" if value else "-"


def _nominal_or_measured(nominal: float | None, measured: float | None, scale: float) -> str:
    if nominal is None and measured is not None:
        return f"{measured / scale:.5g}m"
    return _or_unknown((nominal or 0.0) / scale)


def _acu(vector: AcuVector, figure: Figure) -> str:
    value: float | None = getattr(vector, figure)
    if value is None:
        return "-"
    return f"{'~' if vector.trust[figure] is Trust.ASSUMED else ''}{value:.0f}"
