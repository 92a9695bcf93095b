from __future__ import annotations

from dataclasses import replace

import pytest

from strata.cluster.admission.inject import inject
from strata.cluster.admission.job_defaults import job_defaults
from strata.cluster.api import jobs
from strata.cluster.api.annotations import PREFIX
from strata.cluster.api.jobs import read_job
from strata.cluster.api.kinds import annotations_of, labels_of
from strata.cluster.api.placement_annotation import GATE, MANAGED, PLACEMENT, WAITING, encode
from strata.cluster.api.pod_claims import claim_of_gated, claim_of_pod, job_claim
from strata.cluster.scheduling.claim import Where
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.errors import BadFile
from tests.cluster.admission.builders import A100, ASCEND, B3, GIB, container, fraction, job, placement, pod
from tests.cluster.builders import PROFILES, cluster, decide, node


def faults(read, thing):
    with pytest.raises(BadFile) as caught:
        read(thing)
    return {fault.where: fault.message for fault in caught.value.faults}


# Pods


def test_a_vendors_resource_counts_devices_of_that_vendor():
    claim = claim_of_pod(pod(container(gpu=2)))
    assert (claim.name, claim.namespace, claim.devices, claim.vendor) == ("p", "team", 2, "NVIDIA")
    decision = decide(cluster(node("npu", B3)), claim, PROFILES)
    assert [str(reason) for one in decision.alternatives for reason in one.reasons] == [
        "npu: is not the NVIDIA card that was requested, and the job accepts no substitute"
    ]
    assert decide(cluster(node("nv")), claim, PROFILES).choice is not None


def test_a_named_card_lets_others_stand_in():
    claim = claim_of_pod(pod(container(gpu=1), annotations={"accelerator": A100, "norm": "all"}))
    assert (claim.devices, claim.accelerator, claim.vendor) == (1, A100, "")
    decision = decide(cluster(node("npu", B3)), claim, PROFILES)
    assert decision.choice is not None
    assert decision.choice.devices_per_pod == 2


def test_annotations_alone_are_a_claim_of_any_vendor():
    claim = claim_of_pod(pod(annotations={"vram": "16Gi", "fractional": "true"}))
    assert (claim.is_fractional, claim.memory_bytes, claim.vendor) == (True, 16 * GIB, "")


@pytest.mark.parametrize(
    ("annotations", "gpu", "key", "text"),
    [
        ({"devices": "4"}, 2, "ai.compute/devices", "4 contradicts nvidia.com/gpu: 2"),
        ({"accelerator": "910B3"}, 1, "ai.compute/accelerator", "Ascend910B3 contradicts nvidia.com/gpu: 1"),
        ({"vram": "16Gi", "cores": "30"}, 2, "ai.compute/devices", "a fraction is of one device, and 2"),
        ({"accelerator": A100, "vram": "200Gi"}, 1, "ai.compute/vram", "give one of them"),
        ({}, 0, "ai.compute/managed", "asks for nothing"),
    ],
)
def test_contradictions_name_both_sides(annotations, gpu, key, text):
    assert text in faults(claim_of_pod, pod(container(gpu=gpu), annotations=annotations))[key]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"nvidia.com/gpumem": "3000"}, "does not count whole devices"),
        ({"nvidia.com/mig-1g.10gb": "1"}, "does not count whole devices"),
        ({"nvidia.com/gpu": "1k"}, "not a number of devices"),
        ({"nvidia.com/gpu": "1", "huawei.com/Ascend910": "2"}, "of one vendor"),
    ],
)
def test_resources_that_count_no_devices_are_refused(limits, text):
    found = faults(claim_of_pod, pod(container(resources={"limits": limits}), annotations={"devices": "1"}))
    assert text in found["spec.containers[0].resources"]


def test_what_a_pod_asked_for_is_known_after_its_resources_were_replaced():
    given = pod(container(gpu=1), annotations={"accelerator": A100})
    after = claim_of_pod(inject(given, placement(), ASCEND, server_minor=36))
    # Where it may go is now where it was sent.
    assert replace(after, where=Where()) == claim_of_pod(given)


@pytest.mark.parametrize("where", [placement(), fraction()], ids=["whole", "fraction"])
def test_a_pod_behind_the_gate_asks_for_what_was_injected(where):
    memory = where.pods[0].memory_bytes
    nowhere = Placement(
        where.profile,
        (PodPlace("", (), memory),),
        where.devices_per_pod,
        0,
        model=B3,
        cores_share=where.cores_share,
    )
    said = {"accelerator": A100, "priority": "3", WAITING: encode(nowhere)}
    given = pod(container(gpu=1), annotations=said, schedulingGates=[{"name": GATE}])
    claim = claim_of_gated(inject(given, nowhere, ASCEND, server_minor=36))
    assert (claim.profile, claim.accelerator, claim.devices, claim.substitution, claim.priority) == (
        ASCEND.name, B3, where.devices_per_pod, "never", 3,
    )  # fmt: skip
    assert (claim.is_fractional, claim.memory_bytes) == (memory is not None, memory or 0)


# Jobs


def template(thing):
    return jobs.pod_sets(thing)[0].template


def test_a_new_job_is_held_back_and_its_template_knows_what_is_asked():
    after = job_defaults(job(annotations={"vram": "16Gi", "example.com/x": "y"}, suspend=False))
    assert jobs.is_suspended(after)
    assert labels_of(template(after)) == {MANAGED: "true"}
    assert annotations_of(template(after)) == {"ai.compute/vram": "16Gi"}
    assert job_defaults(after) == after


def test_a_copied_jobs_earlier_placement_goes():
    stale = {"vram": "16Gi", PLACEMENT: encode(placement()), "offer": "x"}
    given = job(annotations=stale)
    given["spec"]["template"]["metadata"] = {"annotations": {PLACEMENT: encode(placement()), "a": "b"}}
    after = job_defaults(given)
    assert annotations_of(after) == {"ai.compute/vram": "16Gi"}
    assert annotations_of(template(after)) == {"ai.compute/vram": "16Gi", "a": "b"}


def test_a_job_that_another_of_ours_makes_is_left_alone():
    given = job(annotations={"vram": "16Gi"})
    given["metadata"]["ownerReferences"] = [
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "s"}
    ]
    assert job_defaults(given) is given
    given["metadata"]["ownerReferences"] = [{"apiVersion": "batch/v1", "kind": "CronJob", "name": "c"}]
    assert jobs.is_suspended(job_defaults(given))


def test_a_job_whose_code_is_no_image_is_refused_before_its_pods_are():
    with pytest.raises(BadFile, match="'replace-me' is not an image with a tag"):
        job_defaults(job(annotations={"code-image": "replace-me"}))


@pytest.mark.parametrize(
    ("named", "refused"),
    [
        ({"container": "mian"}, {"ai.compute/container": "there is no container 'mian' in template main"}),
        ({"engine": "torchrnu"}, {"ai.compute/engine": "no profile has 'torchrnu' (known: torchrun)"}),
        ({"engine": "torchrun", "container": "main"}, None),
    ],
)
def test_a_job_that_names_what_its_pods_have_not_is_refused_before_it_is_let_go(named, refused):
    """It would hold its devices, while each of its pods is refused."""
    given = job(annotations=named)
    if refused is None:
        assert jobs.is_suspended(job_defaults(given, {"torchrun"}))
    else:
        assert faults(lambda job: job_defaults(job, {"torchrun"}), given) == refused


def test_pods_that_only_steer_are_left_alone():
    head, worker = ({"spec": {"containers": [container(name)]}} for name in ("head", "worker"))
    groups = [{"groupName": "w", "replicas": 3, "template": worker}]
    given = {
        **pod(annotations={"devices": "1"}),
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "spec": {"rayClusterSpec": {"headGroupSpec": {"template": head}, "workerGroupSpecs": groups}},
    }
    steers, works = jobs.pod_sets(job_defaults(given))
    assert (steers.template, labels_of(works.template)) == (head, {MANAGED: "true"})


def test_a_template_that_contradicts_its_job_is_refused():
    given = job(annotations={"vram": "16Gi"})
    given["spec"]["template"]["metadata"] = {"annotations": {PREFIX + "vram": "8Gi"}}
    assert faults(job_defaults, given) == {
        "ai.compute/vram": "'8Gi' in template main contradicts '16Gi' of the job"
    }


def test_a_job_asks_by_its_resources_too():
    claim = job_claim(read_job(job_defaults(job(container(gpu=4), annotations={"accelerator": A100}))), {})
    assert (claim.pods, claim.devices, claim.accelerator) == (2, 4, A100)


def test_the_faults_of_a_job_are_its_own():
    """They were called those of a pod of the job's name, and of a pod's fields."""
    asked = job(container(gpu="500m"), annotations={"norm": "speed"})
    with pytest.raises(BadFile) as caught:
        job_claim(read_job(asked), {})
    assert [(fault.path, fault.where) for fault in caught.value.faults] == [
        ("Job team/train", "ai.compute/norm"),
        ("Job team/train", "spec.template.spec.containers[0].resources"),
    ]


def test_a_gang_of_more_pods_than_its_job_has_would_wait_for_ever():
    asked = job(container(gpu=1), annotations={"gang-size": "9"})
    assert faults(lambda obj: job_claim(read_job(obj), {}), asked) == {
        "ai.compute/gang-size": "9 pods are to be placed together, and the job has 2 with devices"
    }
