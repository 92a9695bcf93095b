"""A training plan as manifests, a file a domain; what writing a plan to serve shares with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.kinds import JOB, Object, ObjectKind
from strata.control.drivers.kube_objects import CONFIG_MAP, FOLDER, SERVICE
from strata.control.drivers.kube_part import kube_part
from strata.control.drivers.launch import Workplace
from strata.control.state import Attempt, JobSpec, Part, Start
from strata.errors import UsageError
from strata.fleet.fleet import Fleet
from strata.fleet.schema import DriverEntry, KubeEntry
from strata.training.export import torchrun
from strata.training.export.kueue import CONFIG_MAP_BYTES, DOMAIN_LABEL
from strata.training.export.launch import LaunchFiles
from strata.training.export.ranks import RankLayout, rank_map
from strata.training.plan.planfile import SavedPlan
from strata.workload.job import TrainingJob
from strata.workload.job_entries import RunEntry
from strata.workload.script import comment, slugs

UNKNOWN: Final = "replace-me"
IMAGE: Final = f"{UNKNOWN}:latest"

STAND_IN: Final = RunEntry(command=("python", f"{FOLDER}/train.py"), steps=10)
"""Where the job file does not say what to run: the small model of `--to torchrun`."""


class _Dumper(yaml.SafeDumper):
    """Scripts as lines."""


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar(_STRING, text, style="|" if "\n" in text else None)
)
_STRING: Final = "tag:yaml.org,2002:str"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a domain's part goes. name: of its objects."""

    domain: str
    slug: str
    name: str
    entry: KubeEntry

    @property
    def cluster(self) -> tuple[str | None, ...]:
        """What tells the cluster, and the namespace in it, from another."""
        return self.entry.kubeconfig, self.entry.context, self.entry.namespace


def manifests(
    saved: SavedPlan, fleet: Fleet, training: TrainingJob, *, drivers: Mapping[str, DriverEntry],
    run: RunEntry | None,
) -> LaunchFiles:  # fmt: skip
    """Return a file for each domain of a plan; one without a Kubernetes driver gets its devices from strata's
    controller. Raises UsageError for what has no rank map, or none that a ConfigMap holds."""
    layout = RankLayout.of(saved)
    (job,) = slugs([saved.job.name[:20]])
    places = places_of(
        {each.name: each.accelerator for each in saved.domains}, saved.plan.domains, job=job, drivers=drivers
    )
    stand_in = {} if run else torchrun.render(layout).files
    beside = {name: text for name, text in stand_in.items() if name.endswith(".py")}
    run = run or STAND_IN
    keeps = run.resume and all(place.entry.claim for place in places)
    spec = JobSpec(
        saved.job.name, training, run.steps, command=run.command, grace_s=run.grace, can_resume=keeps,
        save_every=run.save_every or 0,
    )  # fmt: skip
    parts = {place.domain: Part() for place in places}
    attempt = Attempt(f"{job}-1", saved.job.name, 1, saved.plan, 0.0, 0, parts)
    ranks = rank_map(layout)
    first = next(place for place in places if place.domain == ranks.ranks[0].domain)
    is_one_cluster = len({place.cluster for place in places}) == 1
    address = first.entry.address or (f"{first.name}-0.{first.name}" if is_one_cluster else UNKNOWN)
    workplace = Workplace(Path(job), fleet, dict.fromkeys(saved.plan.domains, address))
    notes = []
    if address == UNKNOWN:
        notes.append(f"MASTER_ADDR is {UNKNOWN}: {first.domain} needs an address that the other clusters reach")
    if run.resume and not keeps:
        notes.append("checkpoints are not kept: that takes a `claim` in the driver of each domain")
    files = {}
    for place in places:
        part = kube_part(
            Start(place.domain, attempt, spec), workplace, place.entry, name=place.name,
            labels={"app.kubernetes.io/name": job, "app.kubernetes.io/managed-by": "strata"}, namespace="",
        )  # fmt: skip
        assert not part.fault, part.fault
        record = {**part.record, "data": {**part.record["data"], **beside}}
        if beside and place.entry.image == IMAGE:  # nothing of an image is needed but the card's own
            part.job["metadata"].get("annotations", {}).pop(PREFIX + "code-image", None)
        size = sum(len(text.encode()) for text in record["data"].values())
        if size > CONFIG_MAP_BYTES:
            problem = f"{place.domain}: the rank map and what it runs ({size} bytes) do not fit a ConfigMap"
            raise UsageError(problem, hint="strata export --to torchrun, and the folder in the image")
        objects = ((CONFIG_MAP, record), (SERVICE, part.service), (JOB, part.job))
        head = comment(_head(place, notes, needs_image=place.entry.image == IMAGE and not beside))
        files[f"{place.slug}.yaml"] = head + documents(objects, place.entry.namespace)
    return LaunchFiles(files, ranks, tuple(notes))


def places_of(
    cards: Mapping[str, str], domains: Sequence[str], *, job: str, drivers: Mapping[str, DriverEntry]
) -> list[Place]:
    """Return where the parts of a job go in the clusters of its domains. cards: of each domain."""
    places = []
    for domain, slug in zip(domains, slugs(domains), strict=True):
        entry = drivers.get(domain)
        if not isinstance(entry, KubeEntry):
            entry = KubeEntry(kind="kubernetes", image=IMAGE, managed=True)
        places.append(Place(domain, slug, f"{job}-{slug}", entry))
    same = Counter((place.cluster, cards[place.domain]) for place in places)
    # The card leads to the domain, but where two domains of a cluster have the same.
    return [
        replace(place, entry=place.entry.model_copy(update={"nodes": {DOMAIN_LABEL: place.slug}}))
        if not place.entry.nodes and same[place.cluster, cards[place.domain]] > 1
        else place
        for place in places
    ]


def documents(objects: Iterable[tuple[ObjectKind, Object]], namespace: str | None) -> str:
    """Return objects as one file, in a namespace where it is given."""
    own = {"namespace": namespace} if namespace else {}
    whole = (
        {"apiVersion": kind.api_version, "kind": kind.kind, **obj, "metadata": {**obj["metadata"], **own}}
        for kind, obj in objects
    )
    return yaml.dump_all(whole, Dumper=_Dumper, sort_keys=False, width=110)


def _head(place: Place, notes: list[str], *, needs_image: bool) -> Iterator[str]:
    context = f" --context {place.entry.context}" if place.entry.context else ""
    yield f"Written by strata export: the part of {place.domain}, as the scheduler's driver would make it."
    yield f"  kubectl{context} apply --server-side -f {place.slug}.yaml"
    if needs_image:
        yield f"  {IMAGE}  an image with the program, in the job's code-image; the card's own image runs it"
    if DOMAIN_LABEL in place.entry.nodes:
        yield f"  {DOMAIN_LABEL} labels the nodes of each domain: another one here has the same card"
    yield from (f"note: {note}" for note in notes)
