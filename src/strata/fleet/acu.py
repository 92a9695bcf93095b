"""ACU, the Abstract Compute Unit: what one accelerator is worth in another.

1 ACU = 1 % of an A100-80GB's measured dense FP16. The only public measurement of an A100 we have is of the
40 GB card, which is the same die: 251.5 TFLOPS, FlagPerf base/benchmarks, NVIDIA A100. So 1 ACU = 2.515 TFLOPS.

One number cannot say what a card is worth: an Ascend 910B3 measures 125 % of an A100 in FP16 and 435 % in FP32,
a BI-V150 78 % in FP16 and 34 % in memory bandwidth. So the unit is a vector, and the one who asks names the norm.

Measured figures compare with measured ones. Where a card has only a nominal rate, it is taken to reach the
share of it that the A100 reaches (`REACHED`): an assumption, and marked as one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

from strata import units
from strata.decision import Trust, worst
from strata.errors import UsageError
from strata.fleet.accelerator import Accelerator
from strata.fleet.catalogue import accelerator, card_named

Figure = Literal["fp16", "fp32", "memory", "memory_bandwidth", "link_bandwidth"]
"""A component of the vector. Rates in FLOP/s, memory in bytes, bandwidths in bytes/s."""

Norm = Literal["compute", "memory", "bandwidth", "all"]

FIGURES: Final[tuple[Figure, ...]] = get_args(Figure)
NORMS: Final[Mapping[Norm, tuple[Figure, ...]]] = {
    "compute": ("fp16",),
    "memory": ("memory",),
    "bandwidth": ("memory_bandwidth",),
    "all": ("fp16", "memory", "memory_bandwidth"),
}
"""Which figures a profile looks at; `all` takes the one that asks for most cards."""

REFERENCE: Final = "A100-SXM4-80GB"
REACHED: Final[Mapping[Figure, float]] = {
    "fp16": 251.5 / 312,
    "fp32": 19.05 / 19.5,
    "memory_bandwidth": 1328 / 1555,
}
"""Measured over nominal of the A100-SXM4-40GB (FlagPerf base/benchmarks, NVIDIA A100)."""

# Shares such as 8 * 80 / 80 must not need a ninth card for the last bit of a float.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class AcuVector:
    """An accelerator in percent of an A100-80GB, None where the figure is unknown; `trust` has the known ones."""

    fp16: float | None
    fp32: float | None
    memory: float | None
    memory_bandwidth: float | None
    link_bandwidth: float | None
    trust: Mapping[Figure, Trust]


@dataclass(frozen=True, slots=True)
class Need:
    """What a job asks for in total, in SI units, and how far those amounts can be believed."""

    amounts: Mapping[Figure, float]
    trust: Trust = Trust.MEASURED


@dataclass(frozen=True, slots=True)
class Cards:
    """How many cards of one kind meet a need.

    count: None where a figure the need asks about is unknown; `missing` then names it, card first.
    bound_by: the figure that asks for most cards.
    ratios: cards each figure asks for, before rounding up.
    """

    accelerator: Accelerator
    count: int | None
    bound_by: Figure | None = None
    ratios: Mapping[Figure, float] = field(default_factory=dict)
    trust: Trust = Trust.ASSUMED
    missing: tuple[str, ...] = ()

    @property
    def spare(self) -> Mapping[Figure, float]:
        """What is left over of each figure, as a share of what `count` cards have."""
        return (
            {} if self.count is None else {f: max(0.0, 1 - ratio / self.count) for f, ratio in self.ratios.items()}
        )


def deliverable(card: Accelerator, figure: Figure) -> tuple[float, Trust] | None:
    """Return what a card can be expected to deliver, and how that is known; None where it is not.

    Measured if somebody measured it, else nominal times `REACHED` (memory and links: nominal).
    """
    nominal, measured = _nominal_and_measured(card, figure)
    if measured is not None:
        return measured, Trust.MEASURED
    if nominal is None:
        return None
    if figure not in REACHED:
        return nominal, card.trust
    # The ratio was measured on the reference's own die; for any other card it is a guess.
    trust = Trust.CALIBRATED if card.name == REFERENCE else Trust.ASSUMED
    return nominal * REACHED[figure], trust


def _nominal_and_measured(card: Accelerator, figure: Figure) -> tuple[float | None, float | None]:
    return {
        "fp16": (card.fp16_flops, card.fp16_flops_measured),
        "fp32": (card.fp32_flops, card.fp32_flops_measured),
        "memory": (card.memory_bytes or None, None),
        "memory_bandwidth": (card.memory_bandwidth_bytes_per_s, card.memory_bandwidth_measured_bytes_per_s),
        "link_bandwidth": (card.interconnect_bytes_per_s, None),
    }[figure]


def against_its_kind(card: Accelerator, figure: Figure) -> float:
    """Return the share of nominal that a card was measured at, over that of the catalogue's card of its name.

    1 where either is not known, as for every card that is the catalogue's own.
    """
    usual, (nominal, measured) = card_named(card.name), _nominal_and_measured(card, figure)
    if usual is None or usual is card or not nominal or measured is None:
        return 1.0
    delivered, on_paper = deliverable(usual, figure), _nominal_and_measured(usual, figure)[0]
    return measured / nominal / (delivered[0] / on_paper) if delivered and on_paper else 1.0


def at_clock(card: Accelerator, share: float) -> Accelerator:
    """Return a card that keeps a share of its highest clock under load: it does no more than that of nominal.

    Rates on paper are at the highest clock, and what a core does in a cycle is fixed; a card that was measured at
    less, or is expected to reach less, stays as it is.
    """

    def bound(figure: Figure, nominal: float | None, measured: float | None) -> float | None:
        known = deliverable(card, figure)
        is_above = nominal is not None and known is not None and known[0] > nominal * share
        return nominal * share if nominal is not None and is_above else measured

    fp16 = bound("fp16", card.fp16_flops, card.fp16_flops_measured)
    fp32 = bound("fp32", card.fp32_flops, card.fp32_flops_measured)
    if (fp16, fp32) == (card.fp16_flops_measured, card.fp32_flops_measured):
        return card
    return replace(card, fp16_flops_measured=fp16, fp32_flops_measured=fp32)


def acu(card: Accelerator) -> AcuVector:
    """Return what a card is worth, in percent of an A100-80GB."""
    unit = accelerator(REFERENCE)
    values: dict[Figure, float | None] = {}
    trust: dict[Figure, Trust] = {}
    for figure in FIGURES:
        known, reference = deliverable(card, figure), deliverable(unit, figure)
        assert reference is not None, "the reference card has every figure"
        values[figure] = None if known is None else 100 * known[0] / reference[0]
        if known is not None:
            trust[figure] = known[1]
    return AcuVector(**values, trust=trust)


def exchange(have: Accelerator, want: Accelerator, *, count: int = 1, norm: Norm = "compute") -> Cards:
    """Return how many `want` cards replace `count` cards of `have`, by the figures of `norm`."""
    known, missing = _known(have, NORMS[norm])
    if missing:
        return Cards(want, None, missing=missing)
    amounts = {figure: count * amount for figure, (amount, _) in known.items()}
    return cards(Need(amounts, worst(*(trust for _, trust in known.values()))), want)


def cards(need: Need, card: Accelerator) -> Cards:
    """Return how many cards of one kind meet a need, and which figure decided."""
    known, missing = _known(card, need.amounts)
    ratios = {figure: need.amounts[figure] / amount for figure, (amount, _) in known.items()}
    if missing:
        return Cards(card, None, ratios=ratios, missing=missing)
    bound_by = max(ratios, key=lambda figure: ratios[figure])
    count = max(1, math.ceil(ratios[bound_by] * (1 - _ROUNDING)))
    return Cards(card, count, bound_by, ratios, worst(need.trust, *(trust for _, trust in known.values())))


def _known(
    card: Accelerator, figures: Iterable[Figure]
) -> tuple[dict[Figure, tuple[float, Trust]], tuple[str, ...]]:
    """Return what a card delivers of each figure, and the names of the figures nobody knows of it."""
    delivered = {figure: deliverable(card, figure) for figure in figures}
    missing = tuple(f"{card.name} {figure}" for figure, value in delivered.items() if value is None)
    return {figure: value for figure, value in delivered.items() if value is not None}, missing


def rank(need: Need, candidates: Iterable[Accelerator]) -> list[Cards]:
    """Return the answer of every card, vendors by their best card and each vendor's best card first.

    Best is fewest cards, then least left over of the figure that decided. Cards with an unknown figure come last.
    """

    def order(answer: Cards) -> tuple[float, float, str]:
        if answer.count is None or answer.bound_by is None:
            return (math.inf, 0.0, answer.accelerator.name)
        return (answer.count, -answer.ratios[answer.bound_by], answer.accelerator.name)

    answers = sorted((cards(need, card) for card in candidates), key=order)
    best: dict[str, tuple[float, float, str]] = {}
    for answer in answers:
        best.setdefault(answer.accelerator.vendor, order(answer))
    return sorted(
        answers, key=lambda answer: (answer.count is None, best[answer.accelerator.vendor], order(answer))
    )


_WORDS: Final[Mapping[str, Figure]] = {
    "fp16": "fp16",
    "bf16": "fp16",
    "fp32": "fp32",
    "memory": "memory",
    "bandwidth": "memory_bandwidth",
    "memory bandwidth": "memory_bandwidth",
    "link bandwidth": "link_bandwidth",
}
_DIMENSIONS: Final[Mapping[Figure, units.Dimension]] = {
    "fp16": "flops",
    "fp32": "flops",
    "memory": "bytes",
    "memory_bandwidth": "bandwidth",
    "link_bandwidth": "bandwidth",
}
_ITEM: Final = re.compile(r"(\S+(?:\s+[A-Za-z/]+)??)\s+(" + "|".join(sorted(_WORDS, key=len, reverse=True)) + ")")
_EXAMPLE: Final = '"100TFLOPS fp16, 160GB memory, 2TB/s bandwidth"'


def parse_need(text: str) -> Need:
    """Read `100TFLOPS fp16, 160GB memory`: quantities with what they are of, comma separated.

    Raises UsageError for an unknown figure, a unit that does not suit it, a repetition, or nothing asked.
    """
    amounts: dict[Figure, float] = {}
    for item in text.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise UsageError(
                f"cannot read {item.strip()!r} as a need (figures: {', '.join(_WORDS)})", hint=_EXAMPLE
            )
        figure = _WORDS[match[2]]
        amount = units.parse(match[1], _DIMENSIONS[figure])
        if amount <= 0:
            raise UsageError(f"{item.strip()!r} is not a positive amount", hint=_EXAMPLE)
        if figure in amounts:
            raise UsageError(f"{figure} is given twice in {text!r}", hint=_EXAMPLE)
        amounts[figure] = amount
    return Need(amounts)
