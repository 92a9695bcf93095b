"""What may change of a pod when, row by row: for the check of it, and for a real API server."""

from __future__ import annotations

import copy
from typing import Any

from tests.cluster.admission.builders import container, pod

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
HOST = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}
FIRST = ("spec", "containers", 0)
SECONDS = {"key": "t", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
OTHER = {"key": "u", "operator": "Exists"}
NEAR = {"podAffinity": {REQUIRED: [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}]}}


def affinity(*terms: Any, **more: Any) -> dict[str, Any]:
    said = {"nodeSelectorTerms": [{"matchExpressions": list(one)} for one in terms]}
    return {"nodeAffinity": {REQUIRED: said, **more}}


def base(*gates: str, **spec: Any) -> dict[str, Any]:
    """A pod with something of everything."""
    first = container(
        env={"A": "1"},
        resources={"limits": {"x.com/y": "1"}, "requests": {"x.com/y": "1"}},
        command=["c"],
        volumeMounts=[{"name": "v", "mountPath": "/u"}],
    )
    said = pod(
        first,
        initContainers=[container("init")],
        volumes=[{"name": "v", "emptyDir": {}}],
        tolerations=[SECONDS],
        nodeSelector={"pool": "a"},
        **spec,
    )
    if gates:
        said["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    return said


def changed(thing: Any, *path: Any, to: Any) -> Any:
    """A copy with something else at a path."""
    after = copy.deepcopy(thing)
    at = after
    for key in path[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[path[-1]] = to
    return after


MORE = {"limits": {"x.com/y": "2"}, "requests": {"x.com/y": "2"}}
ROWS: dict[str, tuple[tuple[Any, ...], Any, str, bool]] = {
    # what: path, value, whether it is legal gated, pending and bound, whether in a suspended job's template
    "image": ((*FIRST, "image"), "other:1", "yyy", False),
    "init image": (("spec", "initContainers", 0, "image"), "other:1", "yyy", False),
    "env": ((*FIRST, "env"), [{"name": "A", "value": "2"}], "nnn", False),
    "command": ((*FIRST, "command"), ["d"], "nnn", False),
    "args": ((*FIRST, "args"), ["d"], "nnn", False),
    "volumes": (("spec", "volumes"), [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}], "nnn", False),
    "mounts": ((*FIRST, "volumeMounts"), [{"name": "v", "mountPath": "/w"}], "nnn", False),
    "runtime class": (("spec", "runtimeClassName"), "nvidia", "nnn", False),
    "init containers": (("spec", "initContainers"), [container("init"), container("more")], "nnn", False),
    "resources": ((*FIRST, "resources"), MORE, "nnn", True),
    "selector narrowed": (("spec", "nodeSelector"), {"pool": "a", "zone": "b"}, "ynn", True),
    "selector changed": (("spec", "nodeSelector"), {"pool": "b"}, "nnn", True),
    "selector dropped": (("spec", "nodeSelector"), {}, "nnn", True),
    "node affinity": (("spec", "affinity"), affinity([HOST]), "ynn", True),
    "pod affinity": (("spec", "affinity"), NEAR, "nnn", False),
    "toleration added": (("spec", "tolerations"), [SECONDS, OTHER], "yyy", True),
    "toleration's time": (("spec", "tolerations"), [{**SECONDS, "tolerationSeconds": 9}], "yyy", True),
    "toleration dropped": (("spec", "tolerations"), [OTHER], "nnn", True),
    "scheduler": (("spec", "schedulerName"), "mine", "nnn", False),
    "gate added": (("spec", "schedulingGates"), [{"name": "c.io/c"}], "nnn", True),
    "labels": (("metadata", "labels", "a"), "b", "yyy", True),
    "annotations": (("metadata", "annotations", "a"), "b", "yyy", True),
}

AFFINITIES: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    # of a gated pod: before, after, whether that is legal
    (affinity([ZONE]), affinity([ZONE, HOST]), True),
    (affinity([ZONE]), affinity([HOST, ZONE]), False),
    (affinity([ZONE]), affinity([HOST]), False),
    (affinity([ZONE]), affinity([ZONE], [HOST]), False),
    (affinity([ZONE], [HOST]), affinity([ZONE]), False),
    (affinity([]), affinity([HOST]), False),
    (affinity([ZONE]), {}, False),
    ({}, affinity([HOST], [ZONE]), True),
    (NEAR, {**NEAR, **affinity([HOST])}, True),
    (NEAR, affinity([HOST]), False),
]
