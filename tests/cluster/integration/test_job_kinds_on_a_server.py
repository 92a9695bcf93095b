"""Jobs of every kind with `suspend`: routed on a real API server, their pods made from what it then holds.

Their operators are not here: the definitions keep any field, and the pods are made by hand, labelled as the
operators label them.
"""

from __future__ import annotations

import pytest

from strata.cluster.api import jobs, kinds
from strata.cluster.api.kinds import CRD, POD, annotations_of, labels_of
from strata.cluster.api.placement_annotation import PLACEMENT, decode
from tests.cluster import objects
from tests.cluster.builders import A100
from tests.cluster.integration.strata_on_kubernetes import Strata
from tests.support.real_processes import until

SETS = ("jobset.sigs.k8s.io/job-index", "batch.kubernetes.io/job-completion-index")
REPLICA = "training.kubeflow.org/replica-index"


def definition(kind):
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": kind.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": CRD.api_version,
        "kind": CRD.kind,
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "versions": [{**version, "subresources": {"status": {}}}],
        },
    }


@pytest.fixture(scope="module")
def strata(plane, api, tmp_path_factory):
    for kind in kinds.SUSPENDABLE[1:]:
        api.apply(CRD, definition(kind))
    with Strata(plane, api, tmp_path_factory.mktemp("strata")) as made:
        made.webhook()
        made.main = made.controller()
        yield made
        assert made.main.end() == 0, made.main.log


@pytest.fixture
def two(strata, nodes):
    strata.devices(nodes, "n1")
    strata.devices(nodes, "n2")
    return strata


def template(**annotations):
    return {"metadata": {"annotations": annotations}, "spec": objects.pod_spec()}


FORMS = {
    kinds.JOB_SET: {
        "replicatedJobs": [
            {
                "name": "worker",
                "replicas": 2,
                "template": {"spec": {"parallelism": 2, "completions": 2, "template": template()}},
            }
        ]
    },
    kinds.TRAIN_JOB: {"trainer": {"numNodes": 4}, "runtimeRef": {"name": "torch-distributed"}},
    kinds.PYTORCH_JOB: {
        "pytorchReplicaSpecs": {
            "Worker": {"replicas": 3, "template": template()},
            "Master": {"replicas": 1, "template": template()},
        }
    },
    kinds.RAY_JOB: {
        "rayClusterSpec": {
            "headGroupSpec": {"template": template()},
            "workerGroupSpecs": [{"groupName": "w", "replicas": 4, "template": template()}],
        }
    },
}


def pods_of(job):
    """Yield (labels, template) of each pod its operator would make, those that only steer last."""
    for one in jobs.pod_sets(job):
        for number in range(one.pods):
            if one.per_job:
                labels = dict(zip(SETS, map(str, divmod(number, one.per_job)), strict=True))
            elif job["kind"] == "PyTorchJob":
                labels = {REPLICA: str(number)}
            elif job["kind"] == "TrainJob":
                labels = {SETS[0]: "0", SETS[1]: str(number)}
            else:
                labels = {}
            yield one, labels


@pytest.mark.parametrize("kind", list(FORMS), ids=lambda kind: kind.kind)
def test_a_job_of_each_kind_is_routed_and_its_pods_go_to_their_places(two, namespace, kind, request):
    made = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": "train",
            "namespace": namespace,
            "labels": {"ai.compute/managed": "true"},
            "annotations": objects.asks(devices=4, accelerator=A100, framework="pytorch"),
        },
        "spec": FORMS[kind],
    }
    held = two.api.create(kind, made)
    request.addfinalizer(lambda: two.api.delete(kind, "train", namespace))
    assert jobs.is_suspended(held)

    def let_go():
        found = two.api.get(kind, "train", namespace)
        return None if jobs.is_suspended(found) else found

    job = until(let_go, lambda: f"{two.api.get(kind, 'train', namespace)} {two.main.log}")
    seen, nodes = set(), set()
    for number, (one, labels) in enumerate(pods_of(job)):
        head = {
            "name": f"train-{number}",
            "namespace": namespace,
            "labels": {**labels_of(one.template), **labels},
            "annotations": dict(annotations_of(one.template)),
        }
        spec = {**objects.pod_spec(), **(one.template.get("spec") or {})}
        pod = two.api.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": spec})
        if not one.has_devices:
            assert "limits" not in pod["spec"]["containers"][0]["resources"]
            continue
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        assert limits == {"nvidia.com/gpu": "4"}
        required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        term = required["nodeSelectorTerms"][0]
        expression = (term.get("matchFields") or term["matchExpressions"])[-1]
        nodes |= set(expression["values"])
        if kind is not kinds.RAY_JOB:  # nothing numbers its workers
            assert len(expression["values"]) == 1
            (place,) = decode(annotations_of(pod)[PLACEMENT], where="pod").pods
            seen.add((*expression["values"], *place.devices))
    assert nodes == {"n1", "n2"}
    assert kind is kinds.RAY_JOB or len(seen) == 4, seen

    def conditions():
        claim = two.api.get(kinds.COMPUTE_CLAIM, f"{kind.kind}-train".lower(), namespace) or {}
        return (claim.get("status") or {}).get("conditions")

    (condition,) = until(conditions, lambda: "its claim's condition")
    assert condition["status"] == "True"
