"""What the values of a fleet file must mean together: names, pairs of domains, one latency a link.

Works on the raw document, next to the pydantic models and not after them, so that both kinds of fault are
reported at once. A shape it does not know is passed over: that is the models' to report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strata.errors import Fault, UsageError
from strata.files import Document
from strata.fleet import catalogue
from strata.fleet.fleet import Pair
from strata.names import closest

Place = tuple[str | int, ...]


def relations(document: Document, *, seed: bool) -> Iterator[Fault]:
    """Yield what is wrong between the values of a fleet file, or of seed 001's network file."""
    domains = list(_entries(document, ("topology", "domains") if seed else ("domains",)))
    links = list(_entries(document, ("topology", "cross_domain_links") if seed else ("links",)))
    inline = {} if seed or not isinstance(document.data, Mapping) else document.data.get("accelerators")
    names: list[str] = []
    for where, domain in domains:
        yield from _domain_faults(document, where, domain, inline=inline if isinstance(inline, Mapping) else {})
        if isinstance(name := domain.get("name"), str):
            if name in names:
                yield document.fault((*where, "name"), f"domain {name!r} is given twice")
            names.append(name)
    seen: dict[Pair, int] = {}
    for where, link in links:
        yield from _link_faults(document, where, link, names=names)
        for pair in pairs({**link, "symmetric": True} if seed else link):
            if pair in seen and pair[0] != pair[1]:
                first = f"line {seen[pair]}"
                yield document.fault(where, f"link {pair[0]} -> {pair[1]} is given twice (first on {first})")
                break
            seen[pair] = document.fault(where, "").line


def _entries(document: Document, where: Place) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    entries = document.data
    for key in where:
        entries = entries.get(key) if isinstance(entries, Mapping) else None
    for index, entry in enumerate(entries if isinstance(entries, list) else []):
        if isinstance(entry, Mapping):
            yield (*where, index), entry


def _domain_faults(
    document: Document, where: Place, domain: Mapping[str, Any], *, inline: Mapping[str, Any]
) -> Iterator[Fault]:
    count, per_node, name = domain.get("num_gpus"), domain.get("gpus_per_node"), domain.get("accelerator")
    if isinstance(count, int) and isinstance(per_node, int) and 0 < count < per_node:
        yield document.fault((*where, "gpus_per_node"), f"a node of {per_node} is more than num_gpus ({count})")
    free = domain.get("free_gpus")
    if isinstance(count, int) and isinstance(free, int) and free > count > 0:
        yield document.fault((*where, "free_gpus"), f"{free} free are more than num_gpus ({count})")
    if not isinstance(name, str):
        return
    card = catalogue.card_named(name)
    if card is None and name not in inline:
        try:
            catalogue.accelerator(name)
        except UsageError as error:
            message = f"{error}; {error.hint}" if error.hint else str(error)
            yield document.fault((*where, "accelerator"), message)
            return
    is_alone = per_node == 1 or (per_node is None and count == 1)  # in its node
    is_unknown = card is None or card.interconnect_bytes_per_s is None
    if is_unknown and not is_alone and domain.get("intra_bandwidth") is None:
        yield document.fault(where, f"the interconnect of {name} is not known: give intra_bandwidth")


def _link_faults(
    document: Document, where: Place, link: Mapping[str, Any], *, names: Sequence[str]
) -> Iterator[Fault]:
    given = {key for key, value in link.items() if value is not None}
    if given & {"between", "source", "dest"} not in ({"between"}, {"source", "dest"}):
        yield document.fault(where, "needs its two ends: either between: [a, b], or source: a and dest: b")
    if len(given & {"latency", "rtt"}) != 1:
        yield document.fault(where, "needs exactly one of latency (one-way) and rtt (halved)")
    for source, dest in pairs(link)[:1]:
        if source == dest:
            yield document.fault(where, f"links {source!r} to itself")
        for end in dict.fromkeys((source, dest)):
            if end not in names:
                close = closest(end, names)
                meant = f"did you mean {close!r}?" if close else f"known: {', '.join(names)}"
                key = next((key for key in ("source", "dest") if link.get(key) == end), "between")
                yield document.fault((*where, key), f"no domain is named {end!r} ({meant})")


def pairs(link: Mapping[str, Any]) -> list[Pair]:
    """Return the directed pairs a link stands for; none where its ends are not two names."""
    ends = link.get("between") or (link.get("source"), link.get("dest"))
    match tuple(ends) if isinstance(ends, (list, tuple)) else ():
        case (str(source), str(dest)) if link.get("between") or link.get("symmetric"):
            return [(source, dest), (dest, source)]
        case (str(source), str(dest)):
            return [(source, dest)]
    return []
