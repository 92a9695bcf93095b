"""A JobSet for Kueue: one Job a domain, one Pod a node, which runs the torchrun launch files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import yaml

from strata.errors import UsageError
from strata.fleet import catalogue
from strata.fleet.vendor_resources import usual_resource
from strata.training.export import torchrun
from strata.training.export.launch import DomainNodes, LaunchFiles, domain_nodes
from strata.training.export.ranks import RankLayout
from strata.workload.script import comment, slugs

DOMAIN_LABEL: Final = "strata/domain"
"""Node label that names a domain, and the level of Kueue's Topology that keeps a Job inside it."""

CONFIG_MAP_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class _Job:
    """Consecutive nodes of a domain with as many devices each; a replicated job has one shape of Pod."""

    name: str
    nodes: DomainNodes
    first: int
    count: int
    devices: int


def render(layout: RankLayout, name: str) -> LaunchFiles:
    """Return the torchrun launch files and `jobset.yaml`. Raises UsageError where a plan has no rank map."""
    launch = torchrun.render(layout)
    (name,) = slugs([name[:20]])
    jobs = [job for nodes in domain_nodes(launch.ranks) for job in _jobs(nodes)]
    notes = (*launch.notes, *_notes(layout, launch))
    manifest = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, **_claim_of(jobs, layout)},
        "spec": {
            "suspend": True,
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "replicatedJobs": [
                _replicated(name, job, f"{name}-{jobs[0].name}-0-0.{name}", layout) for job in jobs
            ],
        },
    }
    head = comment(
        [
            "Written by strata export. Before it runs:",
            f"  kubectl create configmap {name}-launch --from-file=DIR   with DIR, the folder of this file",
            "  image          replace-me: an image with torch",
            "  queue-name     default: the LocalQueue to wait in",
            f"  {DOMAIN_LABEL}  label the nodes of each domain, and have it as a level of Kueue's Topology",
            *(f"note: {note}" for note in notes),
        ]
    )
    text = head + yaml.safe_dump(manifest, sort_keys=False, width=110)
    return LaunchFiles({"jobset.yaml": text, **launch.files}, launch.ranks, notes)


def _claim_of(jobs: Sequence[_Job], layout: RankLayout) -> dict[str, Any]:
    """Return what Kueue and, where it is there, strata's check go by: a gang's pods ask for one card alike."""
    labels = {"kueue.x-k8s.io/queue-name": "default"}
    claims = {(layout.accelerator[job.nodes.domain], job.devices) for job in jobs}
    if len(claims) > 1:
        return {"labels": labels}
    ((card, devices),) = claims
    claim = {"accelerator": card, "devices": str(devices), "substitution": "never"}
    return {
        "labels": {**labels, "ai.compute/managed": "true"},
        "annotations": {f"ai.compute/{key}": value for key, value in claim.items()},
    }


def _jobs(nodes: DomainNodes) -> Iterator[_Job]:
    first = 0
    for number, (devices, group) in enumerate(groupby(nodes.processes)):
        count = len(list(group))
        yield _Job(nodes.slug if number == 0 else f"{nodes.slug}-part{number}", nodes, first, count, devices)
        first += count


def _notes(layout: RankLayout, launch: LaunchFiles) -> Iterator[str]:
    for domain in layout.plan.domains:
        if _resource(layout.accelerator[domain]) is None:
            yield (
                f"the device plugin's resource for {layout.accelerator[domain]} ({domain}) is not known here: "
                "nvidia.com/gpu stands in its place"
            )
    size = sum(len(text.encode()) for text in launch.files.values())
    if size > CONFIG_MAP_BYTES:
        yield f"the launch files ({size} bytes) do not fit a ConfigMap: put them in the image, at /launch"


def _resource(accelerator: str) -> str | None:
    try:
        return usual_resource(catalogue.accelerator(accelerator).vendor)
    except UsageError:  # a card the fleet file describes itself
        return None


def _replicated(name: str, job: _Job, master: str, layout: RankLayout) -> dict[str, Any]:
    devices = {_resource(layout.accelerator[job.nodes.domain]) or "nvidia.com/gpu": job.devices}
    offset = {"NODE_OFFSET": job.first, "RANK_OFFSET": job.nodes.nodes[job.first][0].rank}
    environment = {"MASTER_ADDR": master, "MASTER_PORT": "29500", **offset}
    script = f"NODE_INDEX=$((NODE_OFFSET + JOB_COMPLETION_INDEX)) exec bash /launch/launch-{job.nodes.slug}.sh"
    container = {
        "name": "train",
        "image": "replace-me",
        "command": ["bash", "-c", script],
        "env": [{"name": key, "value": str(value)} for key, value in environment.items()],
        "resources": {"requests": dict(devices), "limits": dict(devices)},
        "volumeMounts": [{"name": "launch", "mountPath": "/launch"}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": DOMAIN_LABEL}},
        "spec": {
            "restartPolicy": "Never",
            "nodeSelector": {DOMAIN_LABEL: job.nodes.slug},
            "containers": [container],
            "volumes": [
                {"name": "launch", "configMap": {"name": f"{name}-launch"}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
            ],
        },
    }
    return {
        "name": job.name,
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": job.count,
                "completions": job.count,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": pod,
            }
        },
    }
