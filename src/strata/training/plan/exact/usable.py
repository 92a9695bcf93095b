"""Which domains of a fleet a job may use, and why it may not use the others."""

from __future__ import annotations

from typing import Final

from strata.decision import Reason
from strata.errors import UsageError
from strata.fleet.catalogue import card_named
from strata.fleet.fleet import Domain, Fleet
from strata.names import did_you_mean, first_of
from strata.simulate.compute import peak_flops
from strata.workload.job import TrainingJob

MOST_PAIRS_NAMED: Final = 3
MOST_NAMED: Final = 8


def missing_links(fleet: Fleet) -> list[Reason]:
    """Return which pairs cannot be neighbours in a pipeline; of many, how many and MOST_PAIRS_NAMED of them."""
    names = [domain.name for domain in fleet.domains]
    missing = [
        (a, b)
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        # A pair that is missing both ways is named once.
        if i != j and (a, b) not in fleet.links and (i < j or (b, a) in fleet.links)
    ]
    if len(missing) <= MOST_PAIRS_NAMED:
        return [Reason("link-missing", "", {"source": a, "dest": b}) for a, b in missing]
    named = first_of([f"{a}-{b}" for a, b in missing], MOST_PAIRS_NAMED)
    return [Reason("links-missing", "", {"count": len(missing), "pairs": named})]


def check_names(fleet: Fleet, job: TrainingJob) -> None:
    """Raise UsageError where a job names a domain that the fleet does not have, or has figures of a card that
    nobody knows by that name: either would count for nothing."""
    names, cards = [d.name for d in fleet.domains], {d.accelerator.name for d in fleet.domains}
    stages = [name for name, _ in job.pins.stages or ()]
    home = [] if job.home is None else [job.home]
    spoken = {"parallel.stages": stages, "limits.domains": sorted(job.limits.domains or ()), "home": home}
    for key, some in spoken.items():
        for name in some:
            if name not in names:
                raise UsageError(
                    f"{key}: no domain {name!r} in {fleet.name}{did_you_mean(name, names)}",
                    hint=f"known: {first_of(names, MOST_NAMED)}",
                )
    timed = [] if job.profile is None else [("profile", card) for card, _, _ in job.profile.times]
    for key, name in [*(("calibration", card) for card in job.calibration), *timed]:
        known = card_named(name)
        if name not in cards and (known is None or known.name != name):
            hint = f"write {known.name}" if known else f"of this fleet: {first_of(sorted(cards), MOST_NAMED)}"
            raise UsageError(f"{key}: no accelerator has the name {name!r}", hint=hint)


def unusable(domain: Domain, job: TrainingJob) -> Reason | None:
    """Return why a domain cannot or may not take part, None where it may."""
    name = domain.name
    if domain.num_devices <= 0:
        return Reason("no-accelerators", name, {"domain": name})
    if job.limits.domains is not None and name not in job.limits.domains:
        return Reason("domain-not-allowed", name, {"domain": name})
    if job.pins.tensor is not None and job.pins.tensor > domain.devices_per_node:
        return Reason("node-too-small", name, {"ranks": job.pins.tensor, "devices": domain.devices_per_node})
    stages, ranks = job.pins.stages_in(name), job.pins.tensor or 1
    if stages == 0:
        return Reason("no-stages-asked", name, {"domain": name})
    if stages is not None and stages * ranks > domain.num_devices:
        return Reason("devices-short", name, {"used": stages * ranks, "have": domain.num_devices})
    measured = job.profile is not None and any(card == domain.accelerator.name for card, _, _ in job.profile.times)
    if not measured and peak_flops(domain, job) is None:
        figure = f"{job.precision} FLOPS"
        return Reason("figure-missing", name, {"figure": figure, "accelerator": domain.accelerator.name})
    return None
