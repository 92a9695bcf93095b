"""One odd value anywhere in a review: it is answered or refused, and never an error of ours."""

from __future__ import annotations

import asyncio
import copy
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.admission.review import answer
from strata.cluster.admission.server import make_frame
from strata.cluster.admission.single_pod import route_single_pod
from strata.cluster.api import kinds
from strata.cluster.api.jobs import read_job
from strata.cluster.api.placement_annotation import MANAGED, encode
from strata.cluster.api.pod_claims import job_claim
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.cache.cache import ClusterCache
from tests.cluster.builders import B3, decide
from tests.cluster.objects import asks, devices, job, node
from tests.support.laws import examples

BOOK = ClusterCache(bundled_profiles())
BOOK.listed(kinds.NODE, [node("n0"), node("n1", B3)])
BOOK.listed(kinds.COMPUTE_NODE, [devices("n0"), devices("n1", B3)])
PROFILES = {profile.name: profile for profile in BOOK.profiles}
PLACED = encode(decide(BOOK.index, job_claim(read_job(job("x", devices=1)), {}), BOOK.profiles).choice)

TERM = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
SPEC = {
    "containers": [
        {
            "name": "main",
            "image": "x:1",
            "env": [{"name": "A", "value": "b"}],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        }
    ],
    "initContainers": [{"name": "first", "image": "y:1"}],
    "volumes": [{"name": "v", "emptyDir": {}}],
    "schedulingGates": [{"name": "other"}],
    "tolerations": [{"key": "a"}],
    "nodeSelector": {"a": "b"},
    "affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}
    },
}
TEMPLATE = {"metadata": {"labels": {}, "annotations": {}}, "spec": SPEC}


def made(kind: kinds.ObjectKind, spec, **words):
    metadata = {"name": "p", "namespace": "d", "labels": {MANAGED: "true"}, "annotations": asks(**words)}
    return kind, {"metadata": metadata, "spec": spec}


OBJECTS = [
    made(kinds.POD, SPEC, devices=1),
    made(kinds.POD, SPEC, devices=1, placement=PLACED),
    made(kinds.POD, SPEC | {"containers": [{"name": "main", "image": "x:1"}]}, vram="1Gi", cores=10),
    made(kinds.JOB, {"parallelism": 2, "template": TEMPLATE}, devices=1),
    made(
        kinds.JOB_SET,
        {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {"spec": {"template": TEMPLATE}}}]},
        devices=1,
    ),
    made(kinds.PYTORCH_JOB, {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": TEMPLATE}}}, devices=1),
    made(
        kinds.RAY_JOB,
        {
            "rayClusterSpec": {
                "headGroupSpec": {"template": TEMPLATE},
                "workerGroupSpecs": [{"template": TEMPLATE}],
            }
        },
        devices=1,
    ),
    made(
        kinds.TRAIN_JOB,
        {"trainer": {"numNodes": 2}, "podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {}}]},
        devices=1,
    ),
]
ODD = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1.5,
        "",
        "x",
        "16Gi",
        [],
        {},
        [None],
        [{}],
        {"a": 1},
        [1],
        "a" * 300,
        {"name": None},
        PLACED,
    ]
)


def review(kind: kinds.ObjectKind, obj):
    group = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    request = {"uid": "u", "operation": "CREATE", "namespace": "d", "dryRun": True, "kind": group, "object": obj}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def places(value, above=()):
    """Every place in a value, as its path."""
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield (*above, key)
            yield from places(value[key], (*above, key))


def asked(body) -> httpx.Response:
    frame = make_frame(
        lambda one: answer(
            one,
            route=lambda pod, is_dry_run: route_single_pod(BOOK, pod, is_dry_run=is_dry_run, now_s=0.0),
            profiles=lambda: PROFILES,
            server_minor=36,
        )
    )

    async def one() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(frame), base_url="http://test") as client:
            return await client.post("/mutate", content=json.dumps(body))

    return asyncio.run(one())


@pytest.mark.parametrize(("kind", "obj"), OBJECTS, ids=[f"{i}-{kind.kind}" for i, (kind, _) in enumerate(OBJECTS)])
def test_without_an_odd_value_it_is_let_in_and_changed(kind, obj):
    response = asked(review(kind, obj)).json()["response"]
    assert response["allowed"], response
    assert "patch" in response


@examples(200)
@given(data=st.data())
def test_with_one_it_is_answered_or_refused(data):
    kind, obj = data.draw(st.sampled_from(OBJECTS))
    body = copy.deepcopy(review(kind, obj))
    *above, last = data.draw(st.sampled_from(list(places(body["request"]))))
    below = body["request"]
    for key in above:
        below = below[key]
    below[last] = data.draw(ODD)
    answer_ = asked(body)
    assert answer_.status_code in (200, 400), answer_.text
