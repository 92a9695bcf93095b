"""What was found, and the fleet file of it: every figure says who said it and how far it can be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final

import yaml

from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet import catalogue

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
    """An accelerator: its name, and keys of an inline description where the catalogue does not have it."""

    name: Told
    inline: Mapping[str, Told] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundDomain:
    """One domain. keys: of the fleet file besides name and accelerator. driver: None where it needs a person."""

    name: str
    card: Card
    keys: Mapping[str, Told]
    driver: Mapping[str, Any] | None = None
    note: str = ""


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


def _apart(domains: Sequence[FoundDomain]) -> list[FoundDomain]:
    """Return the domains with names that differ."""
    seen: dict[str, int] = {}
    made = []
    for domain in domains:
        seen[domain.name] = number = seen.get(domain.name, 0) + 1
        name = domain.name if number == 1 else f"{domain.name}-{number}"
        made.append(FoundDomain(name, domain.card, domain.keys, domain.driver, domain.note))
    return made


def _lines(name: str, domains: Sequence[FoundDomain], command: str, at: str) -> Iterator[str]:
    yield f"# Written by {command}, {at}. What is assumed is for you to correct."
    yield "apiVersion: strata/v1alpha1"
    yield "kind: Fleet"
    yield f"name: {_scalar(name)}"
    inline = {domain.card.name.value: domain.card for domain in domains if domain.card.inline}
    if inline:
        yield "accelerators:"
    for card in inline.values():
        worst = [figure.trust for figure in card.inline.values()]
        trust = Trust.ASSUMED if Trust.ASSUMED in worst else Trust.MEASURED
        yield f"  {_scalar(card.name.value)}:"
        for key, figure in card.inline.items():
            yield _with_source(f"    {key}: {_scalar(figure.value)}", figure)
        yield f"    trust: {trust.value}"
    yield "domains:"
    for domain in domains:
        yield f"  - name: {_scalar(domain.name)}"
        yield _with_source(f"    accelerator: {_scalar(domain.card.name.value)}", domain.card.name)
        for key, figure in domain.keys.items():
            yield _with_source(f"    {key}: {_scalar(figure.value)}", figure)
        if domain.driver is not None:
            yield f"    driver: {_flow(domain.driver)}"
        if domain.note:
            yield f"    # {domain.note}"
    pairs = list(combinations(domains, 2))
    if pairs:
        yield "links:  # assumed: nobody measured them; strata fleet probe does"
    for a, b in pairs:
        ends = f"between: [{_scalar(a.name)}, {_scalar(b.name)}]"
        yield f"  - {{{ends}, bandwidth: {LINK_BANDWIDTH}, latency: {LINK_LATENCY}, trust: assumed}}"


def _with_source(text: str, figure: Told) -> str:
    source = " ".join(figure.source.split())
    return f"{text}  # {figure.trust.value}: {source}"


def _flow(mapping: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(dict(mapping), default_flow_style=True, sort_keys=False, width=10_000)
    return text.strip()


def _scalar(value: str | int) -> str:
    text: str = yaml.safe_dump(value, allow_unicode=True, width=10_000)
    return text.removesuffix("...\n").strip()
