"""The objects of a part on Kubernetes: a ConfigMap that is its record, a Service, a Job with a pod for each node.

A pod runs the ranks of its node, and ends them when the record asks for it: so pods are not deleted to stop them,
and say afterwards what came of it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.jobs import QUEUE_NAME
from strata.cluster.api.kinds import Object, ObjectKind
from strata.cluster.api.placement_annotation import MANAGED
from strata.control.drivers.launch import RANKS, exports, filled

CONFIG_MAP: Final = ObjectKind("", "v1", "ConfigMap", "configmaps")
SERVICE: Final = ObjectKind("", "v1", "Service", "services")
DEPLOYMENT: Final = ObjectKind("apps", "v1", "Deployment", "deployments")

SCHEDULER: Final = "strata/scheduler"
"""Label of all objects of one scheduler's domain: its store and domain, hashed."""
ATTEMPT: Final = "strata/attempt"
STARTED: Final = "strata/started"
STOP: Final = "strata/stop"
REFUSED: Final = "strata/refused"
"""Annotations of the record: whose it is (its Job says so too); that its Job was made; until when it may save; why
it cannot run."""

FOLDER: Final = "/strata/part"
CHECKPOINTS: Final = "/strata/checkpoints"
STOP_KEY: Final = "stop"
MARGIN_S: Final = 60
"""What the kubelet takes to show a pod that its record changed, where it is slow."""


@dataclass(frozen=True, slots=True)
class PodForm:
    """What the fleet file says of a domain's pods. claim: of the volume with checkpoints.

    card: the domain's, where the cluster's controller gives pods their devices: then the job asks it for them.
    """

    image: str
    resource: str | None = None
    claim: str | None = None
    queue: str | None = None
    nodes: Mapping[str, str] | None = None
    card: str | None = None


def record(
    name: str, attempt: str, labels: Mapping[str, str], *, ranks_json: Mapping[str, Any],
    environments: Mapping[int, Mapping[str, str]], nodes: Sequence[Sequence[int]], steps: int, grace_s: float,
) -> Object:  # fmt: skip
    """Return the ConfigMap: rank map, scripts, the environment of each rank."""
    first, *rest = environments.values()
    shared = {key: value for key, value in first.items() if all(each.get(key) == value for each in rest)}
    cases = "\n".join(
        f"  {index}) ranks={shlex.quote(' '.join(map(str, ranks)))} ;;" for index, ranks in enumerate(nodes)
    )
    data = {
        RANKS: json.dumps(ranks_json),
        "node.sh": filled("kube_node", nodes=cases, grace=str(round(grace_s)), folder=FOLDER),
        "rank.sh": filled("kube_rank", folder=FOLDER),
        "shared": exports(shared),
        "steps": str(steps),
        **{
            f"rank-{rank}": exports({k: v for k, v in each.items() if k not in shared})
            for rank, each in environments.items()
        },
    }
    about = {"name": name, "labels": dict(labels), "annotations": {ATTEMPT: attempt}}
    return {"metadata": about, "data": data}


def service(name: str, labels: Mapping[str, str]) -> Object:
    """Return the headless Service that gives the pods names, ready or not."""
    spec = {"clusterIP": "None", "selector": {"job-name": name}, "publishNotReadyAddresses": True}
    return {"metadata": {"name": name, "labels": dict(labels)}, "spec": spec}


def job(
    name: str, labels: Mapping[str, str], form: PodForm, *, command: Sequence[str],
    nodes: Sequence[Sequence[int]], grace_s: float, attempt: str = "",
) -> Object:  # fmt: skip
    """Return the indexed Job; a pod that fails ends it, and none is made anew: the scheduler makes an attempt.

    One that the cluster's controller places is a gang: it asks for the card of the plan, and for no other.
    """
    most = max(map(len, nodes))
    asks = {form.resource: str(most)} if form.resource else {"cpu": str(most)}
    volumes: list[dict[str, Any]] = [
        {"name": "part", "configMap": {"name": name}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [{"name": "part", "mountPath": FOLDER}, {"name": "shm", "mountPath": "/dev/shm"}]
    if form.claim:
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": form.claim}})
        mounts.append({"name": "checkpoints", "mountPath": CHECKPOINTS})
    container = {
        "name": "ranks",
        "image": form.image,
        "command": ["sh", f"{FOLDER}/node.sh", *command],
        "resources": {"requests": asks, "limits": asks} if form.resource else {"requests": asks},
        "volumeMounts": mounts,
    }
    pod = {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": round(grace_s) + 15,
        "containers": [container],
        "volumes": volumes,
    }
    if form.nodes:
        pod["nodeSelector"] = dict(form.nodes)
    spec = {
        "completionMode": "Indexed",
        "completions": len(nodes),
        "parallelism": len(nodes),
        "backoffLimit": 0,
        "suspend": form.queue is not None or form.card is not None,  # until the queue or the router lets it go
        "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
    }
    own = dict(labels) | ({QUEUE_NAME: form.queue} if form.queue else {})
    annotations = {ATTEMPT: attempt} if attempt else {}
    if form.card:
        own[MANAGED] = "true"
        annotations |= {
            PREFIX + "accelerator": form.card,
            PREFIX + "devices": str(most),
            PREFIX + "substitution": "never",
            PREFIX + "code-image": form.image,
        }
    about = {"name": name, "labels": own} | ({"annotations": annotations} if annotations else {})
    return {"metadata": about, "spec": spec}


def owned(obj: Object, record: Object) -> Object:
    """Return an object that goes when the record goes."""
    of = record["metadata"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": of["name"], "uid": of["uid"]}
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}}
