from __future__ import annotations

import copy

import pytest

from admission_builders import container, pod
from strata.cluster.admission.mutability import forbidden, forbidden_template

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
HOST = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}


def affinity(*terms, **more):
    return {
        "nodeAffinity": {
            REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": list(one)} for one in terms]},
            **more,
        }
    }


def base(**spec):
    gates = [{"name": "a"}, {"name": "b"}]
    first = container(env={"A": "1"}, resources={"limits": {"x.com/y": "1"}}, command=["c"])
    return pod(
        first,
        initContainers=[container("init")],
        volumes=[{"name": "v", "emptyDir": {}}],
        tolerations=[{"key": "t", "tolerationSeconds": 5}],
        nodeSelector={"pool": "a"},
        schedulingGates=gates,
        **spec,
    )


def changed(thing, *path, to):
    after = copy.deepcopy(thing)
    at = after
    for key in path[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[path[-1]] = to
    return after


FIRST = ("spec", "containers", 0)
ROWS = {
    "image": ((*FIRST, "image"), "other:1", "y y y"),
    "init image": (("spec", "initContainers", 0, "image"), "other:1", "y y y"),
    "env": ((*FIRST, "env"), [{"name": "A", "value": "2"}], "n n n"),
    "command": ((*FIRST, "command"), ["d"], "n n n"),
    "args": ((*FIRST, "args"), ["d"], "n n n"),
    "volumes": (("spec", "volumes"), [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}], "n n n"),
    "mounts": ((*FIRST, "volumeMounts"), [{"name": "v", "mountPath": "/v"}], "n n n"),
    "runtimeClassName": (("spec", "runtimeClassName"), "nvidia", "n n n"),
    "init containers": (("spec", "initContainers"), [container("init"), container("more")], "n n n"),
    "resources": ((*FIRST, "resources"), {"limits": {"x.com/y": "2"}}, "n n n"),
    "resource claims": (("spec", "resourceClaims"), [{"name": "c"}], "n n n"),
    "selector narrowed": (("spec", "nodeSelector"), {"pool": "a", "zone": "b"}, "y n n"),
    "selector changed": (("spec", "nodeSelector"), {"pool": "b"}, "n n n"),
    "selector dropped": (("spec", "nodeSelector"), {}, "n n n"),
    "affinity given": (("spec", "affinity"), affinity([HOST]), "y n n"),
    "pod affinity": (("spec", "affinity"), {"podAffinity": {"x": 1}}, "n n n"),
    "toleration added": (("spec", "tolerations"), [{"key": "t"}, {"key": "u"}], "y y y"),
    "toleration dropped": (("spec", "tolerations"), [{"key": "u"}], "n n n"),
    "scheduler": (("spec", "schedulerName"), "mine", "n n n"),
    "gate removed": (("spec", "schedulingGates"), [{"name": "b"}], "y y y"),
    "all gates removed": (("spec", "schedulingGates"), [], "y y y"),
    "gate added": (("spec", "schedulingGates"), [{"name": "c"}], "n n n"),
    "labels": (("metadata", "labels"), {"a": "b"}, "y y y"),
    "annotations": (("metadata", "annotations"), {}, "y y y"),
    "name": (("metadata", "name"), "other", "n n n"),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_table_of_what_may_change_when(row):
    path, value, said = ROWS[row]
    after = changed(base(), *path, to=value)
    for phase, legal in zip(("gated", "pending", "bound"), said.split(), strict=True):
        assert (forbidden(base(), after, phase=phase) == ()) == (legal == "y"), phase


def test_everything_may_change_on_create_but_a_pod_with_a_node_cannot_be_gated():
    after = changed(base(), "spec", "containers", to=[container("other", env={"B": "2"})])
    assert forbidden(base(), after, phase="create") == ()
    assert forbidden(base(), changed(base(), "spec", "nodeName", to="n1"), phase="create") != ()


@pytest.mark.parametrize(
    ("before", "after", "is_legal"),
    [
        (affinity([ZONE]), affinity([ZONE, HOST]), True),
        (affinity([ZONE]), affinity([HOST, ZONE]), False),
        (affinity([ZONE]), affinity([HOST]), False),
        (affinity([ZONE]), affinity([ZONE], [HOST]), False),
        (affinity([ZONE], [HOST]), affinity([ZONE]), False),
        (affinity([]), affinity([HOST]), False),
        (affinity(), affinity([HOST], [ZONE]), True),
        (affinity([ZONE]), {}, False),
        (affinity([ZONE]), affinity([ZONE], preferred=[1]), True),
        ({"podAffinity": {"x": 1}}, {"podAffinity": {"x": 1}, **affinity([HOST])}, True),
        ({"podAffinity": {"x": 1}}, affinity([HOST]), False),
    ],
)
def test_required_node_affinity_is_only_narrowed(before, after, is_legal):
    assert (forbidden(base(affinity=before), base(affinity=after), phase="gated") == ()) == is_legal


def test_a_fault_says_where():
    (fault,) = forbidden(base(), changed(base(), *FIRST, "env", to=[{"name": "A", "value": "2"}]), phase="bound")
    assert str(fault) == "pod: spec.containers.0.env.0.value: cannot change any more"


TEMPLATE = {
    "image": False,
    "env": False,
    "command": False,
    "volumes": False,
    "selector changed": True,
    "selector dropped": True,
    "affinity given": True,
    "pod affinity": False,
    "toleration dropped": True,
    "gate added": True,
    "labels": True,
    "annotations": True,
}


@pytest.mark.parametrize("row", TEMPLATE)
def test_a_suspended_jobs_template_may_be_sent_elsewhere_but_not_made_anew(row):
    path, value, _ = ROWS[row]
    after = changed(base(), *path, to=value)
    assert (forbidden_template(base(), after, server_minor=36) == ()) == TEMPLATE[row]


def test_resources_of_a_suspended_jobs_template_may_change_since_1_36():
    after = changed(base(), *FIRST, "resources", to={"limits": {"x.com/y": "2"}})
    assert forbidden_template(base(), after, server_minor=35) != ()
    assert forbidden_template(base(), after, server_minor=36) == ()
