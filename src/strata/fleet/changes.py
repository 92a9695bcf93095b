"""A fleet with some values set to something else, and what is different then, as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from operator import attrgetter
from typing import Any

from strata import units
from strata.decision import Trust
from strata.errors import UsageError
from strata.fleet import catalogue
from strata.fleet.accelerator import Accelerator
from strata.fleet.fleet import NETWORK_BANDWIDTH, BandwidthCurve, Domain, Fleet, Link, Pair
from strata.fleet.node_network import assumed_bandwidth_bytes_per_s
from strata.fleet.overrides import DOMAIN, LINK, Job, JobKeys, Key, Override, noting, read_overrides

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ValueChange:
    """One value that is different now, as text for people."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}: {self.old} -> {self.new}"


def apply_settings(
    fleet: Fleet, job: Job, settings: Sequence[str], *, keys: JobKeys[Job]
) -> tuple[Fleet, Job, list[ValueChange]]:
    """Return the fleet and the job with `path=value` settings made, and what is different then.

    A value set to what it is makes no change. Raises UsageError with all that is wrong.
    """
    faults: list[str] = []
    read = read_overrides(fleet, settings, faults, job=keys)
    new_fleet, new_job = changed_fleet(fleet, read, faults), job
    of_job = [override for override in read if not override.target]
    with noting(faults, ", ".join(override.text for override in of_job)):
        new_job = keys.changed(job, {override.key: override.value for override in of_job})
    if faults:
        raise UsageError("\n".join(faults))
    return new_fleet, new_job, [*fleet_changes(fleet, new_fleet), *value_changes("job", keys.keys, job, new_job)]


def changed_fleet(fleet: Fleet, overrides: Sequence[Override], faults: list[str]) -> Fleet:
    """Return the fleet with the settings of links and domains made; those of the job are left alone.

    One that follows from another (a node larger than its domain, an interconnect that comes with the accelerator)
    is made too. Adds what is wrong to `faults`.
    """
    grouped: dict[Pair | str, list[Override]] = {}
    for override in overrides:
        if override.target:
            grouped.setdefault(override.target, []).append(override)
    domains: dict[str, Domain | None] = {domain.name: domain for domain in fleet.domains}
    links: dict[Pair, Link | None] = dict(fleet.links)
    for target, group in grouped.items():
        values = {override.key: override.value for override in group}
        with noting(faults, ", ".join(override.text for override in group)):
            if isinstance(target, tuple):
                links[target] = _link(fleet, target, values)
            else:
                domains[target] = _domain(fleet, fleet.domain(target), values)
    kept = tuple(domain for domain in domains.values() if domain is not None)
    if not kept and not faults:
        faults.append("these settings leave no domain")
    names = {domain.name for domain in kept}  # a domain takes its links with it
    new_links = {pair: link for pair, link in links.items() if link is not None and names.issuperset(pair)}
    return replace(fleet, domains=kept, links=new_links)


def fleet_changes(old: Fleet, new: Fleet) -> Iterator[ValueChange]:
    """Yield what is different between two fleets of the same domains, or fewer."""
    there = {domain.name for domain in new.domains}
    for domain in old.domains:
        if domain.name in there:
            yield from value_changes(f"domain.{domain.name}", DOMAIN, domain, new.domain(domain.name))
        else:
            yield ValueChange(f"domain.{domain.name}", f"{domain.num_devices} {domain.accelerator.name}", "none")
    for a, b in combinations([domain.name for domain in new.domains], 2):
        forth, back = (list(_link_changes(old.link(*ends), new.link(*ends))) for ends in ((a, b), (b, a)))
        one_way = [(f"link.{a}>{b}", forth), (f"link.{b}>{a}", back)]
        for path, changes in [(f"link.{a}-{b}", forth)] if forth == back else one_way:
            yield from (replace(change, path=path + change.path) for change in changes)


def _link_changes(old: Link | None, new: Link | None) -> Iterator[ValueChange]:
    """Yield the changes of one direction, their paths still without the link's name."""
    if old is not None and new is not None:
        yield from value_changes("", {key: LINK[key] for key in LINK if key != "rtt"}, old, new)
    elif old is not new:
        yield ValueChange("", *(_whole(link) for link in (old, new)))


def _whole(link: Link | None) -> str:
    if link is None:
        return "none"
    return f"{units.show_bandwidth(link.bandwidth_bytes_per_s)}, {units.show_time(link.latency_s)}"


def value_changes(path: str, keys: Mapping[str, Key], old: Any, new: Any) -> Iterator[ValueChange]:
    """Yield the attributes of some keys that differ between two things of a kind."""
    for name, key in keys.items():
        get = attrgetter(key.attribute)
        if get(old) != get(new):
            yield ValueChange(f"{path}.{name}", key.show(get(old)), key.show(get(new)))


def _link(fleet: Fleet, pair: Pair, values: Values) -> Link | None:
    """Return a link with some values set: assumed, and its measured curve scaled to the new bandwidth."""
    if "" in values:
        return None
    new = {LINK[key].attribute: value / 2 if key == "rtt" else value for key, value in values.items()}
    old = fleet.link(*pair)
    if old is None:
        if not {"bandwidth_bytes_per_s", "latency_s"} <= new.keys():
            raise UsageError(f"there is no link {pair[0]}>{pair[1]}; set its bandwidth and its latency to add it")
        return Link(*pair, **new)
    changed = replace(old, **new)
    if changed == old:
        return old
    curve = old.curve
    if curve is not None:
        factor = changed.bandwidth_bytes_per_s / old.bandwidth_bytes_per_s
        curve = BandwidthCurve(tuple(coefficient * factor for coefficient in curve.coefficients))
    return replace(changed, curve=curve, trust=Trust.ASSUMED)


def _domain(fleet: Fleet, old: Domain, values: Values) -> Domain | None:
    """Return a domain with some values set, and what follows from them where it was not set itself."""
    if "" in values:
        return None
    new = {DOMAIN[key].attribute: value for key, value in values.items()}
    if "accelerator" in new:
        new["accelerator"] = card = _accelerator(fleet, old, new["accelerator"])
        if "intra_bandwidth" not in values and card != old.accelerator and _is_catalogued(old):
            if card.interconnect_bytes_per_s is None and new.get("devices_per_node", old.devices_per_node) > 1:
                raise UsageError(f"the interconnect of {card.name} is not known: set intra_bandwidth too")
            network = new.get(NETWORK_BANDWIDTH, old.network_bandwidth_bytes_per_s)  # alone in its node
            new["intra_bandwidth_bytes_per_s"] = (card.interconnect_bytes_per_s or 2 * network) / 2
    changed = replace(old, **new)
    if changed.devices_per_node > changed.num_devices:
        if "gpus_per_node" in values:
            node, count = changed.devices_per_node, changed.num_devices
            raise UsageError(f"a node of {node} is more than num_gpus ({count})")
        changed = replace(changed, devices_per_node=changed.num_devices)
    if NETWORK_BANDWIDTH in new:
        return replace(changed, assumed=())
    if NETWORK_BANDWIDTH in old.assumed and old.accelerator.name != changed.accelerator.name:
        network = assumed_bandwidth_bytes_per_s(changed.accelerator, changed.devices_per_node)
        changed = replace(changed, network_bandwidth_bytes_per_s=network)
    return changed


def _accelerator(fleet: Fleet, domain: Domain, name: str) -> Accelerator:
    """Return an accelerator the fleet has, or one of the catalogue; the domain's own where that is meant."""
    known = {domain.accelerator.name: domain.accelerator for domain in fleet.domains}
    card = known.get(name) or catalogue.accelerator(name)
    return domain.accelerator if card.name == domain.accelerator.name else card


def _is_catalogued(domain: Domain) -> bool:
    """Whether the bandwidth in a node is what the catalogue says of the accelerator (of both directions)."""
    return domain.intra_bandwidth_bytes_per_s == (domain.accelerator.interconnect_bytes_per_s or 0.0) / 2
