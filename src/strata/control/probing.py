"""`strata fleet probe`: every link measured once, thoroughly, and written into the fleet file with the time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from strata.clock import Clock
from strata.control.probes import Prober
from strata.control.state import LinkSeen
from strata.decision import Trust
from strata.errors import UsageError
from strata.files import read_document, read_text, write_text
from strata.fleet.fleet import Pair
from strata.fleet.relations import pairs
from strata.fleet.schema import SlurmEntry, load_drivers, load_fleet

_FIRST_BYTES: Final = 2**16
_MOST_BYTES: Final = 2**28
_ENOUGH_S: Final = 0.3
"""A transfer that takes as long has left TCP's slow start behind on all but the longest paths."""
_TIMES: Final = 3


def measure(source: Path, *, now: Clock) -> list[LinkSeen]:
    """Return the links whose ends have a network of their own; 0 bytes/s where nothing came. Raises BadFile."""
    fleet, entries = load_fleet(source), dict(load_drivers(source))
    for name, entry in entries.items():
        if isinstance(entry, SlurmEntry) and entry.conf:
            entries[name] = entry.model_copy(update={"conf": str((source.parent / entry.conf).resolve())})
    with Prober(fleet, entries, clock=now, every_s=1.0, with_jobs=True) as prober:
        ends = [pair for pair in fleet.links if prober.reaches(*pair)]
        if not ends:
            raise UsageError(
                f"{source}: no link is between two domains that have a network of their own",
                hint="driver: {kind: slurm}, or {kind: local, namespace: NAME, address: IP}, in both domains",
            )
        return [_measured(prober, pair) for pair in ends]


def _measured(prober: Prober, pair: Pair) -> LinkSeen:
    """Return the median of some transfers, long enough for the rate to be the link's, and the least latency."""
    num_bytes = _FIRST_BYTES
    while True:
        seen = prober.send(*pair, num_bytes)
        if seen.bandwidth_bytes_per_s <= 0:
            return seen
        took_s = num_bytes / seen.bandwidth_bytes_per_s
        if took_s >= _ENOUGH_S or num_bytes >= _MOST_BYTES:
            break
        num_bytes = min(_MOST_BYTES, int(num_bytes * min(8.0, max(2.0, 1.5 * _ENOUGH_S / took_s))))
    more = [seen, *(prober.send(*pair, num_bytes) for _ in range(_TIMES - 1))]
    latencies = [each.latency_s for each in more if each.latency_s is not None]
    rate = median(each.bandwidth_bytes_per_s for each in more)
    return LinkSeen(*pair, more[-1].at_s, rate, min(latencies, default=None))


def write_links(source: Path, measured: Sequence[LinkSeen]) -> None:
    """Write what was measured over what the file said; all else in it stays as it is, comments too."""
    text, document = read_text(source), read_document(source)
    came = {(seen.source, seen.dest): seen for seen in measured if seen.bandwidth_bytes_per_s > 0}
    links = [new for old in document.data.get("links", []) for new in _replaced(old, came)]
    if text.lstrip().startswith("{"):
        write_text(source, json.dumps({**document.data, "links": links}, indent=1) + "\n")
        return
    lines = "".join(f"  - {_flow(link)}\n" for link in links)
    block = re.compile(r"^links:.*\n?(?:(?![A-Za-z_\"']).*\n?)*", re.MULTILINE)
    write_text(source, block.sub(lambda _: f"links:\n{lines}", text, count=1))


def _replaced(old: Mapping[str, Any], came: Mapping[Pair, LinkSeen]) -> Iterator[dict[str, Any]]:
    """Yield the entries that stand for an old one: itself, or each direction where one was measured."""
    both = pairs(old)
    if not came.keys() & set(both):
        yield dict(old)
        return
    kept = {key: value for key, value in old.items() if key not in ("between", "source", "dest", "symmetric")}
    for source, dest in both:
        ends = {"source": source, "dest": dest}
        seen = came.get((source, dest))
        if seen is None:
            yield {**ends, **kept}
            continue
        own = {key: value for key, value in kept.items() if key not in ("latency", "rtt")}
        own["bandwidth"] = f"{seen.bandwidth_bytes_per_s / 1e6:.4g}MB/s"
        latency = {"latency": f"{seen.latency_s * 1e3:.3g}ms"} if seen.latency_s is not None else {}
        if not latency:
            latency = {key: kept[key] for key in ("latency", "rtt") if key in kept}
        at = datetime.fromtimestamp(seen.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        yield {**ends, **own, **latency, "trust": Trust.MEASURED.value, "measured_at": at}


def _flow(link: Mapping[str, Any]) -> str:
    text: str = yaml.safe_dump(
        dict(link), default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True
    )
    return text.strip()
