from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.admission.inject import inject, release
from strata.cluster.api.placement_annotation import (
    GATE,
    WAITING,
    encode,
)  # fmt: skip
from tests.cluster.admission.builders import (
    OWN,
    fraction,
    placement,
    pod,
)  # fmt: skip
from tests.cluster.admission.injecting import INDEX, waiting
from tests.cluster.admission.mutability import forbidden
from tests.support.laws import examples

NAMES = st.sampled_from(
    ["A", "LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "STRATA_LEDGER", "NCCL_P2P_DISABLE"]
)
VALUES = st.sampled_from(["", "/x", "/x:/mine", "/usr/local/strata/libstrata_quota.so /b", "0", "::"])
ENV = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, NAMES, VALUES)
    | st.builds(lambda: {"name": "LD_LIBRARY_PATH", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
    max_size=5,
)
MOUNTS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["data", "strata-quota"]), "mountPath": st.sampled_from(["/opt/lib", "/data"])}
    ),
    max_size=2,
)
CONTAINERS = st.fixed_dictionaries(
    {"image": st.just("me:1")},
    optional={
        "env": ENV,
        "volumeMounts": MOUNTS,
        "resources": st.sampled_from([{}, {"limits": {"cpu": "1", "amd.com/gpu": "0"}}, {"requests": None}]),
        "command": st.just(["python"]),
    },
)
TERM = st.fixed_dictionaries(
    {}, optional={"matchExpressions": st.lists(st.just({"key": "zone", "operator": "Exists"}), max_size=2)}
)
SPECS = st.fixed_dictionaries(
    {"containers": st.lists(CONTAINERS, min_size=1, max_size=3)},
    optional={
        "tolerations": st.lists(st.sampled_from([dict(OWN.tolerations[0]), {"key": "x"}]), max_size=2),
        "nodeSelector": st.sampled_from([{}, {"zone": "a"}]),
        "volumes": st.lists(st.sampled_from([{"name": "data", "emptyDir": {}}]), max_size=1),
        "affinity": st.builds(
            lambda terms: {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
            },
            st.lists(TERM, max_size=2),
        ),
    },
)
WHERES = st.sampled_from(
    [
        placement(OWN),
        placement(OWN, ("n1", 0, 1), ("n2", 2, 3), can_p2p=False),
        fraction(OWN),
        waiting(fraction(OWN)),
    ]
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "code-image": st.just("me/code:1"),
        "checkpoint": st.just("/c/1"),
        INDEX: st.sampled_from(["0", "1", "9"]),
    },
)


def build(spec, annotations, counts):
    containers = [{"name": f"c{number}", **one} for number, one in enumerate(spec["containers"])]
    if counts:
        containers[-1] = {**containers[-1], "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return pod(annotations=annotations) | {"spec": {**spec, "containers": containers}}


@examples(200)
@given(spec=SPECS, annotations=ANNOTATIONS, where=WHERES, counts=st.booleans(), minor=st.sampled_from([30, 36]))
def test_injecting_twice_changes_nothing_more(spec, annotations, where, counts, minor):
    given = build(spec, annotations, counts)
    once = inject(given, where, OWN, server_minor=minor)
    assert inject(once, where, OWN, server_minor=minor) == once
    for one in once["spec"]["containers"]:
        paths = [mount["mountPath"].rstrip("/") for mount in one.get("volumeMounts") or []]
        theirs = [m["mountPath"] for c in given["spec"]["containers"] for m in c.get("volumeMounts") or []]
        assert len(paths) == len(set(paths)) or len(theirs) > len(set(theirs))
    names = [volume["name"] for volume in once["spec"].get("volumes") or []]
    assert len(names) == len(set(names))


@given(spec=SPECS, annotations=ANNOTATIONS)
def test_what_the_api_server_fills_in_is_no_reason_to_change_it_again(spec, annotations):
    once = inject(
        build(spec, {**annotations, "code-image": "me/code:1"}, True), fraction(OWN), OWN, server_minor=33
    )
    for volume in once["spec"]["volumes"]:
        if volume["name"] == "strata-host-lib-v1":
            volume["hostPath"]["type"] = ""
    once["spec"]["initContainers"][0]["terminationMessagePath"] = "/dev/termination-log"
    assert inject(once, fraction(OWN), OWN, server_minor=33) == once


@given(spec=SPECS)
def test_letting_go_is_legal_for_any_pod(spec):
    nowhere = waiting(placement(OWN))
    given = build({**spec, "schedulingGates": [{"name": GATE}]}, {WAITING: encode(nowhere)}, True)
    gated = inject(given, nowhere, OWN, server_minor=36)
    assert forbidden(gated, release(gated, placement(OWN)), phase="gated") == ()
