"""A domain's part of an attempt as Kubernetes objects: the driver makes them, `strata export` writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from strata.cluster.api.kinds import Object
from strata.control.drivers import kube_objects as objects
from strata.control.drivers.kube_objects import ATTEMPT, CHECKPOINTS, FOLDER, REFUSED, PodForm
from strata.control.drivers.launch import RANKS, Workplace, launch_of, safe
from strata.control.state import Start
from strata.fleet.schema import KubeEntry


@dataclass(frozen=True, slots=True)
class KubePart:
    """What a part is in the cluster. fault: why it cannot run there, empty where it can; the record has it."""

    record: Object
    service: Object
    job: Object
    fault: str


def kube_part(
    start: Start, workplace: Workplace, entry: KubeEntry, *, name: str, labels: Mapping[str, str], namespace: str
) -> KubePart:
    """Return the objects of a part. name: theirs. namespace: of the pods, empty where those of the other domains
    are in the same."""
    launch = launch_of(start, workplace, Path(FOLDER))
    grace_s, nodes = start.spec.grace_s, launch.nodes
    environments = {
        rank: _environment(start, entry, each, address=f"{name}-0.{name}" + (namespace and f".{namespace}.svc"))
        for rank, each in launch.environments.items()
    }
    record = objects.record(
        name, start.attempt.id, labels, ranks_json=launch.ranks_json, environments=environments, nodes=nodes,
        steps=start.spec.steps, grace_s=grace_s,
    )  # fmt: skip
    fault = _fault(start, entry, launch.environments)
    if fault:
        annotations = {ATTEMPT: start.attempt.id, REFUSED: fault}
        record = {**record, "metadata": {**record["metadata"], "annotations": annotations}}
    card = next(each.accelerator.name for each in workplace.fleet.domains if each.name == start.domain)
    form = PodForm(
        entry.image, entry.resource, entry.claim, entry.queue, entry.nodes, card if entry.managed else None
    )
    job = objects.job(
        name, labels, form, command=start.spec.command, nodes=nodes, grace_s=grace_s, attempt=start.attempt.id
    )
    return KubePart(record, objects.service(name, labels), job, fault)


def _environment(start: Start, entry: KubeEntry, given: Mapping[str, str], *, address: str) -> dict[str, str]:
    own = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", **given, "STRATA_PROGRESS": "/dev/stdout"}
    own["STRATA_RANKS"] = f"{FOLDER}/{RANKS}"
    own.setdefault("MASTER_ADDR", address)
    if "STRATA_CHECKPOINTS" in own:
        own["STRATA_CHECKPOINTS"] = f"{CHECKPOINTS}/{safe(start.spec.name)}"
    if entry.interface:
        own |= {"GLOO_SOCKET_IFNAME": entry.interface, "NCCL_SOCKET_IFNAME": entry.interface}
    return own


def _fault(start: Start, entry: KubeEntry, environments: Mapping[int, Mapping[str, str]]) -> str:
    names = start.attempt.plan.domains
    if len(names) > 1 and any("MASTER_ADDR" not in each for each in environments.values()):
        return f"rank 0 is in {names[0]}, whose driver needs an `address` that other clusters reach"
    if start.spec.can_resume and not entry.claim:
        return "a job that resumes needs checkpoints that outlive its pods: `claim` in the driver"
    return ""
