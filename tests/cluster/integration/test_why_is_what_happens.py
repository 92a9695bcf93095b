"""What the router says of random states, beside what kube-scheduler does with the pods.

A state has nodes of its own, told apart by a label, so that many are tried in one cluster at once. Pods of a gang
that gets places are made as the webhook makes them: each is bound, to its place's node. A gang that gets none is
left to kube-scheduler alone, which binds fewer pods than it has: as many as the router says would fit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import pytest

from strata.cluster.admission.inject import inject
from strata.cluster.api import kinds
from strata.cluster.api.jobs import read_job
from strata.cluster.api.kinds import NODE, POD, conditions_of, name_of
from strata.cluster.api.placement_annotation import GANG, PLACEMENT, encode
from strata.cluster.api.pod_claims import job_claim
from strata.cluster.cache.cache import WATCHED
from strata.cluster.cache.gather import cache_of
from strata.cluster.scheduling.evaluation import evaluate
from tests.cluster import objects
from tests.cluster.builders import A100, B3, PROFILES
from tests.support.real_processes import until

GIB = 2**30
TAINTS = ({"key": "team", "value": "a", "effect": "NoSchedule"}, {"key": "slow", "effect": "PreferNoSchedule"})
RUNTIME = {"metadata": {"name": "boxed"}, "handler": "boxed", "overhead": {"podFixed": {"cpu": "500m"}}}


class State(NamedTuple):
    """Nodes, pods that run on them, and a job that asks."""

    nodes: list[dict]
    fingerprints: list[dict]
    pods: list[dict]
    job: dict


def containers(rng: random.Random, *, biggest_cpu: int, ports: bool) -> dict:
    """A pod's containers: one or two, perhaps an init container, perhaps a sidecar."""

    def container(name: str, **more) -> dict:
        requests = {}
        if rng.random() < 0.8:
            requests["cpu"] = rng.choice(
                [f"{rng.randint(1, biggest_cpu * 1000)}m", str(rng.randint(1, biggest_cpu))]
            )
        if rng.random() < 0.8:
            requests["memory"] = rng.choice([f"{rng.randint(1, 6)}Gi", f"{rng.randint(1, 6000)}M"])
        if rng.random() < 0.2:
            requests["ephemeral-storage"] = f"{rng.randint(1, 8)}Gi"
        kind = rng.choice(["requests", "limits"]) if "ephemeral-storage" not in requests else "requests"
        return {"name": name, "image": "user:1", "resources": {kind: requests}, **more}

    spec: dict = {"containers": [container("main")], "restartPolicy": "Never"}
    if rng.random() < 0.3:
        spec["containers"].append(container("helper"))
    init = [container("early")] if rng.random() < 0.3 else []
    init += [container("sidecar", restartPolicy="Always")] if rng.random() < 0.3 else []
    init += [container("late")] if rng.random() < 0.2 else []
    if init:
        spec["initContainers"] = init
    if ports and rng.random() < 0.3:
        spec["containers"][0]["ports"] = [{"containerPort": 29500, "hostPort": 29500}]
    if rng.random() < 0.2:
        spec["runtimeClassName"] = RUNTIME["metadata"]["name"]
        spec["overhead"] = RUNTIME["overhead"]["podFixed"]
    return spec


def drawn(number: int, namespace: str, rng: random.Random) -> State:
    """Draw a state; `state: N` tells its nodes from others'."""
    nodes, fingerprints, pods = [], [], []
    for position in range(rng.randint(1, 4)):
        name = f"{namespace}-{number}-{position}"
        model, count = rng.choice([A100, A100, B3]), rng.choice([2, 4, 8])
        host = {
            "cpu": rng.choice(["8", "15500m", "32"]),
            "memory": rng.choice(["16Gi", "33000M", "64Gi"]),
            "ephemeral-storage": "40Gi",
            "pods": str(rng.choice([3, 6, 110])),
        }
        node = objects.node(name, model, count, host=host)
        node["metadata"]["labels"] |= {"state": f"{namespace}-{number}", "zone": rng.choice("ab")}
        node["spec"]["taints"] = [taint for taint in TAINTS if rng.random() < 0.15]
        if rng.random() < 0.1:
            node["spec"]["unschedulable"] = True
        nodes.append(node)
        fingerprints.append(objects.devices(name, model, count))
        left = count
        for running in range(rng.randint(0, 3)):
            held = rng.choice([0, 0, 1, 2])
            spec = containers(rng, biggest_cpu=2, ports=True) | {"nodeName": name}
            if 0 < held <= left:
                left -= held
                limits = spec["containers"][0]["resources"].setdefault("limits", {})
                limits[objects.RESOURCE[model]] = str(held)
            pods.append(objects.pod(f"running-{number}-{position}-{running}") | {"spec": spec})
    words = {"devices": rng.choice([1, 1, 2]), "accelerator": model, "substitution": "never"}
    job = objects.job(f"job-{number}", pods=rng.choice([1, 1, 2, 3, 5]), **words)
    spec = containers(rng, biggest_cpu=5, ports=True)
    spec["nodeSelector"] = {"state": f"{namespace}-{number}"}
    if rng.random() < 0.3:
        terms = [{"matchExpressions": [{"key": "zone", "operator": rng.choice(["In", "NotIn"]), "values": ["a"]}]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    if rng.random() < 0.4:
        spec["tolerations"] = [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]
    job["spec"]["template"]["spec"] = spec
    return State(nodes, fingerprints, pods, job)


class Gang(NamedTuple):
    """What the router says of a job, and its pods.

    places: by pod, where one is promised. fits: of how many pods the router says that they fit.
    """

    name: str
    pods: list[dict]
    places: dict[str, str]
    fits: int


def gang_of(state: State, cache) -> Gang:
    job = read_job(state.job)
    claim = job_claim(job, {})
    evaluation = evaluate(cache.index, claim, PROFILES)
    placement = evaluation.choice.placement
    (profile,) = (each for each in PROFILES if claim.accelerator in each.models and each.framework == "pytorch")
    pods, places = [], {}
    for number in range(claim.pods):
        pod = objects.pod(f"{job.ref.name}-{number}", annotations=dict(job.annotations))
        pod["spec"] = state.job["spec"]["template"]["spec"]
        if placement is None:
            limits = {objects.RESOURCE[claim.accelerator]: str(claim.devices)}
            main, *others = pod["spec"]["containers"]
            resources = main["resources"] | {"limits": main["resources"].get("limits", {}) | limits}
            pod["spec"] = pod["spec"] | {"containers": [main | {"resources": resources}, *others]}
        else:
            index = {"batch.kubernetes.io/job-completion-index": str(number)}
            pod["metadata"]["annotations"] |= {PLACEMENT: encode(placement), GANG: job.gang} | index
            pod = dict(inject(pod, placement, profile, server_minor=36))
            places[name_of(pod)] = placement.pods[number].node
        pods.append(pod)
    fewer = range(claim.pods - 1, 0, -1)
    fits = (n for n in fewer if evaluate(cache.index, replace(claim, pods=n), PROFILES).choice.placement)
    return Gang(job.gang, pods, places, claim.pods if placement else next(fits, 0))


def seen(plane, namespace: str) -> dict[str, dict]:
    status, answer = plane.ask("GET", f"/api/v1/namespaces/{namespace}/pods?resourceVersion=0")
    assert status == 200, answer
    return {name_of(pod): pod for pod in answer["items"]}


def is_decided(pod: dict) -> bool:
    return bool(pod["spec"].get("nodeName")) or any(
        (condition["type"], condition.get("reason")) == ("PodScheduled", "Unschedulable")
        for condition in conditions_of(pod)
    )


def disagreements(gangs: list[Gang], pods: dict[str, dict]) -> Iterator[str]:
    for gang in gangs:
        nodes = {name_of(pod): pods[name_of(pod)]["spec"].get("nodeName") for pod in gang.pods}
        if gang.places and nodes != gang.places:
            said = [c.get("message") for pod in gang.pods for c in conditions_of(pods[name_of(pod)])]
            yield f"{gang.name}: promised {gang.places}, bound {nodes}: {said}"
        bound = sum(node is not None for node in nodes.values())
        if not gang.places and bound != gang.fits:
            yield f"{gang.name}: kube-scheduler binds {bound} of {len(nodes)} pods, the router {gang.fits}"


@pytest.mark.parametrize(
    "states", [100, pytest.param(1000, marks=pytest.mark.full("thousands of objects are made"))]
)
def test_a_promised_place_is_had_and_none_that_is_refused_could_be(plane, api, namespace, states):
    rng = random.Random(f"{states} states")
    drawn_states = [drawn(number, namespace, rng) for number in range(states)]
    plane.ask("POST", "/apis/node.k8s.io/v1/runtimeclasses", RUNTIME)

    def made(node: dict) -> None:
        status = node.pop("status")
        api.create(NODE, node)
        ready = {"conditions": [{**status["conditions"][0], "reason": "KubeletReady"}]}
        status = {**status, **ready, "capacity": status["allocatable"]}
        api.patch(NODE, name_of(node), body={"status": status}, subresource="status")

    def created(pod: dict) -> None:
        metadata = {key: value for key, value in pod["metadata"].items() if key != "uid"} | {
            "namespace": namespace
        }
        api.create(POD, {"metadata": metadata, "spec": pod["spec"]})

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(made, [node for state in drawn_states for node in state.nodes]))
        list(threads.map(created, [pod for state in drawn_states for pod in state.pods]))
        held = {
            kinds.NODE: api.list(NODE)[0],
            kinds.POD: api.list(POD)[0],
            kinds.COMPUTE_NODE: [each for state in drawn_states for each in state.fingerprints],
        }
        cache = cache_of({**dict.fromkeys(WATCHED, ()), **held}, PROFILES)
        gangs = [gang_of(state, cache) for state in drawn_states]
        list(threads.map(created, [pod for gang in gangs for pod in gang.pods]))
    num_placed = sum(bool(gang.places) for gang in gangs)
    assert 0.2 * states < num_placed < 0.8 * states, "the states are neither all empty nor all full"
    names = [name_of(pod) for gang in gangs for pod in gang.pods]
    with plane.scheduler() as scheduler:
        latest: dict[str, dict] = {}

        def all_decided() -> bool:
            latest.update(seen(plane, namespace))
            return all(is_decided(latest[name]) for name in names)

        until(lambda: scheduler.is_up(all_decided), lambda: scheduler.log, limit_s=1200.0)
    assert list(disagreements(gangs, latest)) == []
