"""What was found, and the fleet file of it: every figure says who said it and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final

import yaml

from strata import units
from strata.decision import Trust, worst
from strata.errors import UsageError
from strata.fleet import catalogue
from strata.tables import printable

LINK_BANDWIDTH: Final = "1Gbps"
LINK_LATENCY: Final = "10ms"
"""Of a link between domains that nobody has measured: assumed, and low, so that no plan leans on it."""

UNKNOWN_MEMORY: Final = "16GB"
"""Of a card that nobody tells more of than that it is there: what the smallest of those that train have."""


@dataclass(frozen=True, slots=True)
class Told:
    """A figure or a name, as a fleet file has it, and who said so."""

    value: str | int
    trust: Trust
    source: str


@dataclass(frozen=True, slots=True)
class Card:
    """An accelerator: its name, and keys of an inline description where the catalogue's does not hold."""

    name: Told
    inline: Mapping[str, Told] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundDomain:
    """One domain. keys: of the fleet file besides name and accelerator. driver: None where it needs a person.

    doubts: what was told in two ways, which was believed, and why.
    """

    name: str
    card: Card
    keys: Mapping[str, Told]
    driver: Mapping[str, Any] | None = None
    note: str = ""
    doubts: tuple[str, ...] = ()


def card_called(name: str, *, trust: Trust, source: str, memory: Told | None = None) -> Card:
    """Return the catalogue's card of a name, else one written inline with as much as is known of it."""
    try:
        known = catalogue.accelerator(name)
    except UsageError as error:
        why = str(error).partition(": it ")[2] or "not in the catalogue"
        own = {"vendor": Told("unknown", Trust.ASSUMED, why)}
        own["memory"] = memory or Told(UNKNOWN_MEMORY, Trust.ASSUMED, "nobody says")
        return Card(Told(name, trust, source), own)
    return Card(Told(known.name, trust, f"{source}: {name}"))


def fleet_text(name: str, domains: Sequence[FoundDomain], *, command: str, at: str) -> str:
    """Return the fleet file. at: when it was found. Raises UsageError where nothing was."""
    if not domains:
        raise UsageError("no accelerators were found", hint="--local, --slurm or --kube CONTEXT: ask elsewhere")
    return "\n".join(_lines(name, _apart(domains), command, at)) + "\n"


def slowest(cards: Sequence[Card]) -> Card:
    """Return one description of cards of one name: of each figure that is told in several ways, the least."""
    inline: dict[str, Told] = {}
    for key, figure in (item for card in cards for item in card.inline.items()):
        other = inline.setdefault(key, figure)
        dimension = _DIMENSIONS.get(key)
        if dimension and units.parse(figure.value, dimension) < units.parse(other.value, dimension):
            inline[key] = figure
    return replace(cards[0], inline=inline)


_DIMENSIONS: Final[Mapping[str, units.Dimension]] = {
    "memory": "bytes", "fp16": "flops", "fp32": "flops", "fp8": "flops", "memory_bandwidth": "bandwidth",
    "fp16_measured": "flops", "fp32_measured": "flops", "memory_bandwidth_measured": "bandwidth",
}  # fmt: skip


def _apart(domains: Sequence[FoundDomain]) -> list[FoundDomain]:
    """Return the domains with names that differ."""
    seen: dict[str, int] = {}
    made = []
    for domain in domains:
        seen[domain.name] = number = seen.get(domain.name, 0) + 1
        made.append(domain if number == 1 else replace(domain, name=f"{domain.name}-{number}"))
    return made


def _lines(name: str, domains: Sequence[FoundDomain], command: str, at: str) -> Iterator[str]:
    yield f"# Written by {command}, {at}. What is assumed is for you to correct."
    yield "apiVersion: strata/v1alpha1"
    yield "kind: Fleet"
    yield f"name: {_scalar(name)}"
    inline: dict[str, list[Card]] = {}
    for card in (domain.card for domain in domains if domain.card.inline):
        inline.setdefault(str(card.name.value), []).append(card)
    if inline:
        yield "accelerators:"
    for title, cards in inline.items():
        figures = slowest(cards).inline
        yield f"  {_scalar(title)}:"
        for key, figure in figures.items():
            yield _with_source(f"    {key}: {_scalar(figure.value)}", figure)
        yield f"    trust: {worst(*(figure.trust for figure in figures.values())).value}"
    yield "domains:"
    for domain in domains:
        yield f"  - name: {_scalar(domain.name)}"
        yield _with_source(f"    accelerator: {_scalar(domain.card.name.value)}", domain.card.name)
        for key, figure in domain.keys.items():
            yield _with_source(f"    {key}: {_scalar(figure.value)}", figure)
        if domain.driver is not None:
            yield f"    driver: {_flow(domain.driver)}"
        for note in filter(None, (domain.note, *domain.doubts)):
            yield f"    # {_comment(note)}"
    pairs = list(combinations(domains, 2))
    if pairs:
        yield "links:  # assumed: nobody measured them; strata fleet probe does"
    for a, b in pairs:
        ends = f"between: [{_scalar(a.name)}, {_scalar(b.name)}]"
        yield f"  - {{{ends}, bandwidth: {LINK_BANDWIDTH}, latency: {LINK_LATENCY}, trust: assumed}}"


def _with_source(text: str, figure: Told) -> str:
    return f"{text}  # {figure.trust.value}: {_comment(figure.source)}"


def _comment(text: str) -> str:
    return printable(" ".join(text.split()))


def _flow(mapping: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(mapping), default_flow_style=True, sort_keys=False, width=10_000)
    return text.strip()


def _scalar(value: str | int) -> str:
    """Return a value on one line, whatever letters a label or a tool put into it."""
    style = None if isinstance(value, int) or value.isprintable() else '"'
    text: str = yaml.safe_dump(value, allow_unicode=True, width=10_000, default_style=style)
    return text.removesuffix("...\n").strip()
