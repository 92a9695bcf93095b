"""Settings of a what-if, `path=value`: what each is about, and its value, read exactly as the files read it.

link.A-B.KEY (both directions) or link.A>B.KEY, domain.NAME.KEY, job.KEY. Names may hold `-` and `.`, so a path
is matched against the names the fleet has, never split at its dots. What may be set of a job is the caller's: a
training job and a serving job have keys of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, Final, Generic, TypeVar

from strata import units
from strata.errors import BadFile, UsageError
from strata.files import Document, FileModel
from strata.fleet.fleet import Fleet, Pair
from strata.fleet.schema import DomainEntry, LinkEntry
from strata.names import closest

Job = TypeVar("Job")


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that can be set: the attribute it ends in, how people read it, the entry that checks its value.

    rest: what the entry must hold beside the one value that is checked with it. is_text: digits are a name, not a
    number. is_map: written a:2,b:6. may_be_none: `none` takes the value away. check: raises UsageError for what
    the entry alone cannot see, of the value as written and the names of all domains.
    """

    attribute: str
    show: Callable[[Any], str]
    entry: type[FileModel]
    rest: Mapping[str, Any] = field(default_factory=dict)
    is_text: bool = False
    is_list: bool = False
    is_map: bool = False
    may_be_none: bool = False
    check: Callable[[Any, Sequence[str]], None] | None = None


@dataclass(frozen=True, slots=True)
class JobKeys(Generic[Job]):
    """What may be set of a job; fixed: keys of its file that everything else was computed from.

    sections: of the file, whose keys may be written with them or without (`demand.prompt`, `prompt`).
    changed: the job with values set, by key; raises UsageError for those that do not go together.
    """

    keys: Mapping[str, Key]
    fixed: Sequence[str]
    changed: Callable[[Job, Mapping[str, Any]], Job]
    sections: Sequence[str]


@dataclass(frozen=True, slots=True)
class Override:
    """One setting, read. `target` is a directed pair, a domain or "" (the job); `key` "" takes it away.

    `value` is what the file's entry makes of the text: SI numbers, names.
    """

    text: str
    target: Pair | str
    key: str
    value: Any = None


def or_none(show: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return how a value is shown that may be none."""
    return lambda value: "none" if value is None or value == () else show(value)


def each(values: Iterable[Any]) -> str:
    """Return how a list is shown."""
    return ",".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


_LINK_REST: Final = {"bandwidth": "1Gbps"}
_DOMAIN_REST: Final = {"name": "-", "accelerator": "-", "num_gpus": 1}

LINK: Final = {
    "bandwidth": Key("bandwidth_bytes_per_s", units.show_bandwidth, LinkEntry, _LINK_REST),
    "latency": Key("latency_s", units.show_time, LinkEntry, _LINK_REST),
    "rtt": Key("latency_s", units.show_time, LinkEntry, _LINK_REST),
    "price": Key("price_usd_per_byte", lambda usd: f"{units.show_usd(usd * 1e9)}/GB", LinkEntry, _LINK_REST),
}
DOMAIN: Final = {
    "accelerator": Key("accelerator", lambda card: str(card.name), DomainEntry, _DOMAIN_REST, is_text=True),
    "num_gpus": Key("num_devices", str, DomainEntry, _DOMAIN_REST),
    "gpus_per_node": Key("devices_per_node", str, DomainEntry, _DOMAIN_REST),
    "price": Key("price_usd_per_device_hour", or_none(lambda usd: f"{units.show_usd(usd)}/h"), DomainEntry,
                 _DOMAIN_REST, may_be_none=True),
    "intra_bandwidth": Key("intra_bandwidth_bytes_per_s", units.show_bandwidth, DomainEntry, _DOMAIN_REST),
    "network_bandwidth": Key("network_bandwidth_bytes_per_s", units.show_bandwidth, DomainEntry,
                             _DOMAIN_REST),
    "uplink": Key("uplink_bytes_per_s", or_none(units.show_bandwidth), DomainEntry, _DOMAIN_REST,
                  may_be_none=True),
}  # fmt: skip

_SHOWN: Final = 8
"""Known names listed where none is close: beyond this nobody reads them."""


@contextmanager
def noting(faults: list[str], setting: str) -> Iterator[None]:
    """Note a UsageError as a fault of this setting, and go on."""
    try:
        yield
    except UsageError as error:
        fault = f"{setting}: {error}" + (f" ({error.hint})" if error.hint else "")
        if fault not in faults:  # a link both ways has its fault twice
            faults.append(fault)


def read_overrides(
    fleet: Fleet, overrides: Sequence[str], faults: list[str], *, job: JobKeys[Any]
) -> list[Override]:
    """Return the settings that can be read, a link both ways as two, and add what is wrong to `faults`."""
    overrides_by_key: dict[tuple[Pair | str, str], Override] = {}
    for text in overrides:
        with noting(faults, text):
            for override in _read(text, fleet, job):
                attribute = (
                    LINK[override.key].attribute
                    if isinstance(override.target, tuple) and override.key
                    else override.key
                )
                taken = overrides_by_key.setdefault((override.target, attribute), override)
                if taken is not override:
                    raise UsageError(f"sets again what {taken.text} sets")
    for override in overrides_by_key.values():
        ends = override.target if isinstance(override.target, tuple) else ()
        for place in (*ends, *([override.target] if override.key else [])):
            if (place, "") in overrides_by_key:
                with noting(faults, override.text):
                    raise UsageError(f"{overrides_by_key[place, ''].text} takes that away")
    return list(overrides_by_key.values())


def _read(text: str, fleet: Fleet, job: JobKeys[Any]) -> list[Override]:
    path, equals, value = (part.strip() for part in text.partition("="))
    kind, _, rest = path.partition(".")
    if not (equals and value):
        links = (f"link.{name}.bandwidth=1Gbps" for name in _link_names(fleet))
        example = next(links, f"domain.{fleet.domains[0].name}.num_gpus=8")
        raise UsageError(f"has no value; write path=value, for example {example}")
    kinds: dict[str, Mapping[str, Key]] = {"link": LINK, "domain": DOMAIN, "job": job.keys}
    if kind not in kinds:
        raise UsageError(f"a path starts with link, domain or job{meant(kind, kinds, rest=False)}")
    if kind == "job":
        rest = rest.rpartition(".")[2] if rest.rpartition(".")[0] in job.sections else rest
        if rest in job.fixed:
            raise UsageError(f"{rest!r} is what the layer table was computed from: edit the job file instead")
        return [Override(text, "", rest, _value(_key(rest, job.keys), rest, value, fleet))]
    names = _link_names(fleet) if kind == "link" else [domain.name for domain in fleet.domains]
    name, key = _split(rest, names, kind, kinds[kind])
    targets = _directions(fleet, name) if kind == "link" else [name]
    if not key:
        if value != "none":
            raise UsageError(f"only `none` can stand here; or set one of {', '.join(kinds[kind])}")
        return [Override(text, target, "") for target in targets]
    read = _value(_key(key, kinds[kind]), key, value, fleet)
    return [Override(text, target, key, read) for target in targets]


def _link_names(fleet: Fleet) -> list[str]:
    """Return how links may be called, those that are there first."""
    pairs = permutations([domain.name for domain in fleet.domains], 2)
    ordered = sorted(pairs, key=lambda pair: pair not in fleet.links)
    return [f"{a}{sign}{b}" for sign in "->" for a, b in ordered]


def _directions(fleet: Fleet, name: str) -> list[Pair]:
    """Return the directions a link's name stands for: those there are, or both of a link that is not there yet."""
    names = [domain.name for domain in fleet.domains]
    meant = [pair for pair in permutations(names, 2) if name in ("-".join(pair), ">".join(pair))]
    if len(meant) > 1:
        meant = [pair for pair in meant if pair in fleet.links or pair[::-1] in fleet.links] or meant
    if len(meant) > 1:
        choices = " or ".join(">".join(pair) for pair in meant)
        raise UsageError(f"{name!r} is ambiguous: write {choices}, and the other direction so as well")
    pair = meant[0]
    if name != "-".join(pair):
        return [pair]
    both = [pair, (pair[1], pair[0])]
    return [pair for pair in both if pair in fleet.links] or both


def _split(body: str, names: Iterable[str], kind: str, keys: Mapping[str, Key]) -> tuple[str, str]:
    """Return the name a path starts with and the key behind it ("" for none)."""
    splits = [(name, body[len(name) + 1 :]) for name in names if body == name or body.startswith(f"{name}.")]
    known = [split for split in splits if split[1] in ("", *keys)]
    if splits:
        return max(known or splits, key=lambda split: len(split[0]))
    name, _, key = body.rpartition(".")
    if not name or not closest(key, keys):
        name = body
    wanted = "two domains are" if kind == "link" else "domain is"
    if kind == "link":
        names = [known for known in names if (">" in known) == (">" in name)]
    raise UsageError(f"no {wanted} named {name!r}{meant(name, names)}")


def _key(name: str, keys: Mapping[str, Key]) -> Key:
    if name not in keys:
        raise UsageError(f"unknown key {name!r}{meant(name, keys)}")
    return keys[name]


def meant(name: str, known: Iterable[str], *, rest: bool = True) -> str:
    """Return the known name that was meant, in brackets; without a close one the known names, with `rest`."""
    names = list(known)
    close = closest(name, names)
    more = ", ..." if len(names) > _SHOWN else ""
    if close:
        return f" (did you mean {close!r}?)"
    return f" (known: {', '.join(names[:_SHOWN])}{more})" if rest else ""


def _value(key: Key, name: str, text: str, fleet: Fleet) -> Any:
    """Return what a file's entry makes of a value. Raises UsageError in the entry's words."""
    last = name.rpartition(".")[2]
    raw: Any
    if key.may_be_none and text == "none":
        raw = None
    elif key.is_list:
        raw = [_scalar(part.strip(), key) for part in text.removeprefix("[").removesuffix("]").split(",")]
    elif key.is_map:
        pairs = [part.rpartition(":") for part in text.removeprefix("{").removesuffix("}").split(",")]
        raw = {name.strip(): _scalar(value.strip(), key) for name, _, value in pairs}
        if "" in raw or len(raw) < len(pairs):
            raise UsageError(f"{text!r} does not name each of some domains once; write a:2,b:6")
    else:
        raw = _scalar(text, key)
    if key.check is not None:
        key.check(raw, [domain.name for domain in fleet.domains])
    try:
        entry = Document("", {**key.rest, last: raw}, {}).check(key.entry)
    except BadFile as error:
        raise UsageError(error.faults[0].message) from None
    return getattr(entry, last)


def _scalar(text: str, key: Key) -> str | int:
    return int(text) if not key.is_text and re.fullmatch(r"-?[0-9]{1,18}", text) else text
