"""A serving plan as manifests, by the writer of training's: vLLM for each pipeline, and the gateway before them.

A pipeline on one node is a Deployment. One that spans nodes is an indexed Job for each kind of its nodes, which
strata's controller places as a gang; it does not know a LeaderWorkerSet, whose workers are all alike, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.kinds import JOB, Object, ObjectKind
from strata.control.drivers import kube_objects as objects
from strata.control.drivers.kube_objects import CONFIG_MAP, DEPLOYMENT, FOLDER, SERVICE, PodForm
from strata.control.manifests import UNKNOWN, Place, documents, places_of
from strata.errors import UsageError
from strata.fleet.schema import DriverEntry
from strata.serving.export import vllm
from strata.serving.export.launch import EngineFiles, EngineHost, Ranks, ranks_of, script_name
from strata.serving.planning.planfile import ServingPlan
from strata.workload.script import comment, slugs

GATEWAY_IMAGE: Final = "strata:latest"  # what `deploy/` runs its parts from
GRACE_S: Final = 30
EVER: Final = 2**31 - 1  # how often a pod of a Job may fail: it is to answer until it is deleted

_Made = tuple[ObjectKind, Object]


def serving_manifests(saved: ServingPlan, *, drivers: Mapping[str, DriverEntry]) -> EngineFiles:
    """Return a file for each pipeline, and the gateway's with what all share.

    Raises UsageError where the domains are in several clusters, and as `ranks_of` does.
    """
    # The devices of a pod are all it sees.
    nodes = tuple(node.model_copy(update={"first_device": None}) for node in saved.fleet.nodes)
    plan = saved.model_copy(update={"fleet": saved.fleet.model_copy(update={"nodes": nodes})})
    every, scripts, (job,) = ranks_of(plan), vllm.render(plan), slugs([plan.job.name[:20]])
    cards = {host.node.domain: host.node.accelerator for ranks in every for host in ranks.hosts}
    places = {place.domain: place for place in places_of(cards, tuple(cards), job=job, drivers=drivers)}
    if len({place.cluster for place in places.values()}) > 1:
        raise UsageError(
            f"the plan's domains ({', '.join(cards)}) are in several clusters; a gateway is in one",
            hint="plan the domains of each cluster on their own: one fleet file each",
        )
    settings = f"{job}-settings"
    notes = (f"MODEL is {UNKNOWN} in gateway.yaml: set it to where pods get {plan.job.model} from", *scripts.notes)
    files, backends = {}, []
    for ranks in every:
        name = f"{job}-{ranks.number}"
        text = {host.first_rank: scripts.files[script_name(ranks, host)] for host in ranks.hosts}
        made = list(_pipeline(ranks, text, places, labels=_labels(job, name), settings=settings))
        namespace = places[ranks.hosts[0].node.domain].entry.namespace
        files[f"pipeline-{ranks.number}.yaml"] = _head(plan, f"pipeline {ranks.number}") + documents(
            made, namespace
        )
        host = name if len(ranks.hosts) == 1 else f"{name}-0.{name}"
        backends.append(ranks.backend(f"{host}:{ranks.port(vllm.PORT)}"))
    shared = {"metadata": {"name": settings, "labels": _labels(job, settings)}, "data": {"MODEL": UNKNOWN}}
    gateway = [(CONFIG_MAP, shared), *_gateway(_labels(job, f"{job}-gateway"), backends)]
    files["gateway.yaml"] = _head(plan, "the gateway", *notes) + documents(gateway, namespace)
    return EngineFiles(files, notes)


def _labels(job: str, name: str) -> dict[str, str]:
    managed = {"app.kubernetes.io/managed-by": "strata"}
    return {"app.kubernetes.io/name": job, "app.kubernetes.io/instance": name, **managed}


def _pipeline(
    ranks: Ranks,
    scripts: Mapping[int, str],
    places: Mapping[str, Place],
    *,
    labels: Mapping[str, str],
    settings: str,
) -> Iterator[_Made]:
    """Yield the objects of a pipeline. scripts: by the first rank of their node."""
    head, port = labels["app.kubernetes.io/instance"], ranks.port(vllm.PORT)
    kinds = groupby(ranks.hosts, lambda host: (host.node.domain, host.node.num_devices))
    for number, ((domain, _), grouped) in enumerate(kinds):
        hosts, entry = list(grouped), places[domain].entry
        own = {**labels, "app.kubernetes.io/instance": f"{head}-{number + 1}"} if number else dict(labels)
        name = own["app.kubernetes.io/instance"]
        made = _job(hosts, places[domain], own)
        pod = made["spec"]["template"]["spec"]
        pod["enableServiceLinks"] = False  # variables like VLLM_PORT, of a service of that name
        (engine,) = pod["containers"]
        engine["envFrom"] = [{"configMapRef": {"name": settings}}]
        first = ranks.hosts.index(hosts[0]) + 1
        data = {f"stage-{first + i}.sh": scripts[host.first_rank] for i, host in enumerate(hosts)}
        yield CONFIG_MAP, {"metadata": {"name": name, "labels": own}, "data": data}
        if len(ranks.hosts) > 1:
            run = f"exec bash {FOLDER}/stage-$(({first} + JOB_COMPLETION_INDEX)).sh"
            interface = {"GLOO_SOCKET_IFNAME": entry.interface, "NCCL_SOCKET_IFNAME": entry.interface}
            values = {"HEAD_ADDR": f"{head}-0.{head}", **(interface if entry.interface else {})}
            engine |= {"command": ["sh", "-c", run], "env": [{"name": k, "value": v} for k, v in values.items()]}
            yield SERVICE, objects.service(name, own)
            yield JOB, made
            continue
        engine |= {
            "command": ["bash", f"{FOLDER}/stage-1.sh"],
            "ports": [{"name": "http", "containerPort": port}],
            "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}},
        }
        yield SERVICE, _service(own, port)
        yield DEPLOYMENT, _deployment(made["metadata"], own, {**pod, "restartPolicy": "Always"})


def _job(hosts: list[EngineHost], place: Place, labels: Mapping[str, str]) -> Any:
    """Return the Job of like nodes of a domain, its container without its command."""
    entry, node, name = place.entry, hosts[0].node, labels["app.kubernetes.io/instance"]
    card = node.accelerator if entry.managed else None
    form = PodForm(entry.image, entry.resource, entry.claim, entry.queue, entry.nodes, card)
    devices = [range(node.num_devices)] * len(hosts)
    made: Any = objects.job(name, labels, form, command=(), nodes=devices, grace_s=GRACE_S)
    made["spec"]["backoffLimit"] = EVER
    made["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    made["spec"]["template"]["spec"]["containers"][0]["name"] = "engine"
    if card:  # the card's own image is the engine's
        del made["metadata"]["annotations"][PREFIX + "code-image"]
        made["metadata"]["annotations"][PREFIX + "framework"] = "vllm"
    return made


def _deployment(about: Object, labels: Mapping[str, str], pod: Object) -> Object:
    """Return one pod that is always there. about: labels and annotations of its pods. A new one comes when the old
    one is gone: it needs its devices."""
    spec = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": dict(labels)},
        "template": {"metadata": {k: v for k, v in about.items() if k != "name"}, "spec": pod},
    }
    return {"metadata": {"name": about["name"], "labels": dict(labels)}, "spec": spec}


def _service(labels: Mapping[str, str], port: int) -> Object:
    spec = {"selector": dict(labels), "ports": [{"name": "http", "port": port, "targetPort": "http"}]}
    return {"metadata": {"name": labels["app.kubernetes.io/instance"], "labels": dict(labels)}, "spec": spec}


def _gateway(labels: Mapping[str, str], backends: list[str]) -> Iterator[_Made]:
    name, port = labels["app.kubernetes.io/instance"], vllm.PORT
    token = {"name": name, "key": "token", "optional": True}
    container = {
        "name": "gateway",
        "image": GATEWAY_IMAGE,
        "args": ["serve", "gateway", "--host", "0.0.0.0", "--port", str(port)]
        + [word for backend in backends for word in ("--backend", backend)],
        "env": [{"name": "STRATA_TOKEN", "valueFrom": {"secretKeyRef": token}}],
        "ports": [{"name": "http", "containerPort": port}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}},
    }
    yield SERVICE, _service(labels, port)
    yield DEPLOYMENT, _deployment({"name": name, "labels": dict(labels)}, labels, {"containers": [container]})


def _head(plan: ServingPlan, what: str, *notes: str) -> str:
    lines = [f"Written by strata export: {what} of {plan.name}.", "  kubectl apply --server-side -f FOLDER"]
    return comment([*lines, *(f"note: {note}" for note in notes)])
