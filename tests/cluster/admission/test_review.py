from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from strata.cluster.admission.review import Routed, answer
from strata.cluster.api.kinds import annotations_of
from strata.cluster.api.placement_annotation import (
    GANG,
    GATE,
    MANAGED,
    PLACEMENT,
    VISIBLE,
    WAITING,
    decode,
    encode,
)
from strata.cluster.api.pod_claims import claim_of_pod
from strata.cluster.scheduling.snapshot import PodPlace
from tests.cluster.admission.builders import (
    A100,
    ASCEND,
    B3,
    PROFILES,
    apply,
    container,
    fraction,
    job,
    patch_of,
    placed,
    placement,
    pod,
    review,
)  # fmt: skip

GOLDEN = Path(__file__).parent / "golden"


class Router:
    """Routes every pod alike, and remembers what it was asked."""

    def __init__(self, routed: Routed | None = None) -> None:
        self.routed, self.asked = routed, []

    def __call__(self, thing, is_dry_run):
        self.asked.append((thing, is_dry_run))
        claim_of_pod(thing)
        assert self.routed is not None, "nobody was expected to ask"
        return self.routed


def ask(thing, router=None, *, minor=36, **request):
    said = review(thing, **request)
    return answer(said, route=router or Router(), profiles=lambda: PROFILES, server_minor=minor)


def after(thing, router=None, **request):
    said = ask(thing, router, **request)
    assert said["response"]["allowed"], said
    return apply(patch_of(said), thing)


def refusal(thing, router=None, **request):
    response = ask(thing, router, **request)["response"]
    assert response["allowed"] is False
    assert (response["uid"], response["status"]["code"], response["status"]["reason"]) == ("7f0e", 422, "Invalid")
    assert "patch" not in response
    return response["status"]["message"]


# The seed's demonstration: one PyTorch job written for an A100, on Ascend, and with a limit on its memory


def demonstration(where):
    said = {
        "accelerator": A100,
        "norm": "all",
        "framework": "pytorch",
        "code-image": "registry.example/team/code:7",
    }
    train = container("pytorch", gpu=1, command=["torchrun", "train.py"], env={"EPOCHS": "3"})
    return placed(pod(train, annotations=said, labels={"job-name": "train"}), where)


@pytest.mark.parametrize(
    ("name", "where"), [("ascend", placement(can_p2p=False)), ("ascend_fraction", fraction())]
)
def test_the_demonstrations_patch_is_the_golden_file(name, where):
    found = patch_of(ask(demonstration(where)))
    assert json.dumps(found, indent=1) + "\n" == (GOLDEN / f"admission_{name}.json").read_text()


def test_the_demonstration_lands_on_two_910b_with_what_they_need():
    made = after(demonstration(placement(can_p2p=False)))
    (train,) = made["spec"]["containers"]
    env = {one["name"]: one["value"] for one in train["env"]}
    assert train["image"] == ASCEND.image
    assert train["resources"]["limits"] == {"huawei.com/Ascend910": "2"}
    assert (env["HCCL_INTRA_ROCE_ENABLE"], env["EPOCHS"]) == ("1", "3")
    limited = after(demonstration(fraction()))
    env = {one["name"]: one["value"] for one in limited["spec"]["containers"][0]["env"]}
    assert (env["STRATA_MEMORY_LIMIT_0"], env["STRATA_CORES_LIMIT_0"]) == (str(16 * 2**30), "30")
    assert env["LD_PRELOAD"] == "/usr/local/strata/libstrata_quota.so"


# Who is changed


@pytest.mark.parametrize(
    ("change", "request_"),
    [
        ({"labels": {}}, {}),
        ({"labels": {MANAGED: "false"}}, {}),
        ({}, {"operation": "UPDATE"}),
        ({}, {"operation": "DELETE", "object": None}),
        ({}, {"subResource": "binding"}),
        ({}, {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}}),
    ],
)
def test_what_is_not_ours_or_not_being_created_passes_untouched(change, request_):
    thing = pod(annotations={"vram": "bad"})
    thing["metadata"] |= change
    said = ask(thing, **request_)
    assert said == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": "7f0e", "allowed": True},
    }


def test_a_new_job_is_held_back():
    made = after(job(annotations={"vram": "16Gi"}))
    assert made["spec"]["suspend"] is True
    assert made["spec"]["template"]["metadata"]["labels"] == {MANAGED: "true"}
    assert patch_of(ask(made)) == []


def test_a_job_that_asks_wrongly_is_refused_with_all_faults():
    message = refusal(job(container(gpu=2), annotations={"devices": "4", "vrm": "1"}))
    assert "did you mean ai.compute/vram?" in message
    assert "ai.compute/devices" in refusal(job(container(gpu=2), annotations={"devices": "4"}))
    assert "spec.template.spec.containers" in refusal(job() | {"spec": {"template": {"spec": {"containers": 1}}}})


def test_a_job_that_names_a_claim_is_read_by_the_controller():
    assert after(job(annotations={"claim": "big"}))["spec"]["suspend"] is True


# Pods that come alone


def test_a_pod_that_comes_alone_is_placed_here_and_now():
    router = Router(Routed(placement()))
    made = after(pod(annotations={"accelerator": A100}), router, dryRun=True)
    ((seen, is_dry_run),) = router.asked
    assert is_dry_run
    assert annotations_of(seen)[GANG] == annotations_of(made)[GANG] == "Pod/team/p"
    assert decode(annotations_of(made)[PLACEMENT], where="x").pods == placement().pods
    assert made["spec"]["containers"][0]["image"] == ASCEND.image
    assert patch_of(ask(made)) == []


def test_a_pod_with_a_generated_name_and_no_namespace_is_known_by_its_review():
    thing = pod(annotations={"devices": "2"})
    thing["metadata"] |= {"generateName": "p-"}
    del thing["metadata"]["name"], thing["metadata"]["namespace"]
    router = Router(Routed(placement()))
    made = after(thing, router)
    assert annotations_of(made)[GANG] == "Pod/team/7f0e"
    assert router.asked[0][0]["metadata"]["namespace"] == "team"
    assert "namespace" not in made["metadata"]


@pytest.mark.parametrize("where", [placement(), fraction()], ids=["whole", "fraction"])
def test_a_pod_without_room_waits_made_for_the_card_it_prefers(where):
    thing = pod(annotations={"devices": "1"}, schedulingGates=[{"name": "other"}])
    router = Router(Routed(None, where, "needs 2 free devices of Ascend910B3"))
    made = after(thing, router)
    assert made["spec"]["schedulingGates"] == [{"name": "other"}, {"name": GATE}]
    assert made["spec"]["containers"][0]["image"] == ASCEND.image
    waits = decode(annotations_of(made)[WAITING], where="x", key=WAITING)
    assert waits.pods == (PodPlace("", (), where.pods[0].memory_bytes),)
    assert (waits.profile, waits.model, waits.devices_per_pod) == (ASCEND.name, B3, where.devices_per_pod)
    assert PLACEMENT not in annotations_of(made)
    assert "affinity" not in made["spec"]
    assert any("needs 2 free devices" in one for one in ask(thing, router)["response"]["warnings"])
    assert patch_of(ask(made)) == []


@pytest.mark.parametrize("is_of_job", [False, True])
def test_a_fraction_waits_to_be_told_its_device_where_nothing_numbers_it(is_of_job):
    """One that comes alone, and pods of a gang that might have any of several devices."""
    several = fraction(ASCEND, ("n1", 0), ("n1", 1))
    given = {PLACEMENT: encode(several), GANG: "Job/team/sweep"} if is_of_job else {}
    thing = pod(annotations={"vram": "16Gi", "cores": "30", **given})
    made = after(thing, Router(Routed(fraction())))
    assert [one["name"] for one in made["spec"]["schedulingGates"]] == [GATE]
    assert PLACEMENT not in annotations_of(made)
    assert annotations_of(made)[GANG] == ("Job/team/sweep" if is_of_job else "Pod/team/p")
    variables = {one["name"]: one for one in made["spec"]["containers"][0]["env"]}
    assert "valueFrom" in variables["ASCEND_VISIBLE_DEVICES"]
    assert patch_of(ask(made)) == []
    numbered = {"batch.kubernetes.io/job-completion-index": "1"}
    if is_of_job:
        direct = after(pod(annotations={"vram": "16Gi", "cores": "30", **given, **numbered}))
        assert "schedulingGates" not in direct["spec"]


def test_a_pod_that_no_card_could_ever_do_is_refused():
    assert refusal(pod(annotations={"devices": "1"}), Router(Routed(None, None, "no card"))) == "no card"


def test_what_a_pod_may_not_bring_along_is_refused():
    assert "asks for nothing" in refusal(pod())
    assert "cannot be a gang" in refusal(pod(annotations={"devices": "1", "gang-size": "2"}))
    assert "placed by strata" in refusal(pod(annotations={"devices": "1"}, nodeName="n1"))
    assert "is not a valid placement" in refusal(pod(annotations={PLACEMENT: '{"v":1}'}))
    assert "ai.compute/waiting" in refusal(pod(annotations={WAITING: "x"}, schedulingGates=[{"name": GATE}]))


def test_a_waiting_note_without_the_gate_is_not_believed():
    thing = pod(annotations={"devices": "2", WAITING: encode(placement()), "visible": "all"})
    made = annotations_of(after(thing, Router(Routed(placement()))))
    assert decode(made[PLACEMENT], where="x")
    assert not {WAITING, VISIBLE} & made.keys()


# Profiles


def test_an_unknown_profile_is_refused_with_what_was_meant():
    thing = placed(pod(), replace(placement(), profile="pytorch-ascend-a1"))
    assert "there is no profile 'pytorch-ascend-a1' (did you mean pytorch-ascend-a" in refusal(thing)


def test_a_profile_that_nobody_tried_is_said_so_in_a_line_the_api_server_keeps():
    (warning,) = ask(placed(pod(), placement()))["response"]["warnings"]
    assert "pytorch-ascend-a2 was not tried" in warning
    sentence = "x\n" * 500
    said = ask(pod(annotations={"devices": "1"}), Router(Routed(None, placement(), sentence)))["response"][
        "warnings"
    ]
    assert all(one.isprintable() and len(one) <= 256 for one in said)


def test_no_odd_pod_breaks_the_webhook():
    for odd in ({"spec": 1}, {"spec": {"containers": {}}}, {"spec": {"containers": [{"name": "a", "env": "x"}]}}):
        assert "spec" in refusal({**pod(annotations={"devices": "1"}), **odd})
    assert "metadata" in refusal({**pod(), "metadata": "x"})
    assert "metadata.labels" in refusal({**pod(), "metadata": {"labels": ["x"]}})
