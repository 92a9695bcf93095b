from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api.actions import pascal
from strata.cluster.api.annotations import PREFIX, read_claim
from strata.cluster.api.crd.compute_claim import claim_of, claim_status, spec_of
from strata.cluster.api.crd.manifests import crds
from strata.cluster.api.placement_annotation import decode
from strata.decision import Alternative, Reason
from strata.errors import BadFile
from tests.cluster.api.crd.rules import object_faults
from tests.cluster.builders import A100, B3, PROFILES, claim, cluster, decide, node
from tests.support.laws import examples

NOW, LATER = "2026-11-21T20:00:00Z", "2026-11-21T21:00:00Z"
SCHEMA = crds()[2]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def obj(spec, **more):
    return {"kind": "ComputeClaim", "metadata": {"name": "job-a", "namespace": "team"}, "spec": spec, **more}


def faults(spec):
    with pytest.raises(BadFile, match="ComputeClaim/team/job-a") as caught:
        claim_of(obj(spec))
    return {fault.where: fault.message for fault in caught.value.faults}


def annotations(**words):
    return {PREFIX + key.replace("_", "-"): value for key, value in words.items()}


FIGURES = st.floats(1e-3, 1e3).map(lambda value: f"{value:.6f}")
WORDS = st.fixed_dictionaries(
    {},
    optional={
        "norm": st.sampled_from(["compute", "memory", "bandwidth", "all"]),
        "substitution": st.sampled_from(["never", "ask", "allow"]),
        "gang_size": st.integers(1, 10_000).map(str),
        "framework": st.sampled_from(["pytorch", "paddle", "mindspore", "vllm"]),
        "profile": st.just("mine.v1"),
        "priority": st.integers(-999_999_999, 999_999_999).map(str),
        "accelerator": st.sampled_from(["A100", B3]),
    },
)
COMPUTE = st.sampled_from(["acu", "tflops_fp16"])
WHOLE = st.fixed_dictionaries({}, optional={"vram": st.just("16Gi"), "fractional": st.just("false")})
PART = st.fixed_dictionaries({"vram": st.just(" 512MiB "), "cores": st.integers(1, 100).map(lambda n: f"{n}%")})


@given(WORDS, WHOLE | PART, st.none() | st.tuples(COMPUTE, FIGURES))
@examples(60)
def test_annotations_as_a_spec_ask_for_the_same(words, memory, compute):
    asked = words | memory
    if compute and "cores" not in memory:
        asked[compute[0]] = compute[1]
    said = annotations(**asked)
    spec = spec_of(said)
    assert claim_of(obj(spec)) == read_claim(said, name="job-a", namespace="team")
    assert list(object_faults(SCHEMA, obj(spec))) == []


def test_two_amounts_that_agree_become_one_in_a_spec():
    said = annotations(acu="40", tflops_fp16="100.6", managed="true", placement="{}")
    assert spec_of(said) == {"tflopsFp16": 100.6}
    assert claim_of(obj(spec_of(said))).need == read_claim(said, name="job-a").need


def test_an_empty_spec_is_a_claim_for_one_pod():
    assert claim_of(obj({})) == read_claim({}, name="job-a", namespace="team")


@pytest.mark.parametrize(
    ("spec", "where", "text"),
    [
        ({"vram": "16Gb"}, "spec.vram", "bits"),
        ({"vram": "-1Gi"}, "spec.vram", "not an amount of memory"),
        ({"acu": 40, "tflopsFp16": 1}, "spec.acu", "spec.tflopsFp16"),
        ({"acu": float("nan")}, "spec.acu", "finite"),
        ({"acu": 0}, "spec.acu", "greater than 0"),
        ({"accelerator": "A1000"}, "spec.accelerator", "no accelerator"),
        ({"accelerator": "../../etc"}, "spec.accelerator", "not a valid name"),
        ({"profile": "a\nb"}, "spec.profile", "not printed"),
        ({"devices": 2, "fractional": True, "vram": "1Gi"}, "spec.devices", "one device"),
        ({"cores": 30}, "spec.fractional", "spec.vram"),
        ({"topology": "require"}, "spec.topology", "spec.within"),
        ({"gangSize": 10_001}, "spec.gangSize", "10000"),
        ({"gang_size": 2}, "spec.gang_size", "did you mean 'gangSize'"),
        ({"framework": "jax"}, "spec.framework", "pytorch"),
        ({"devices": 2, "accelerator": "A100", "vram": "400Gi"}, "spec.vram", "give one of them"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_by_its_field(spec, where, text):
    assert text in faults(spec)[where]


def test_every_fault_of_a_spec_is_named_at_once():
    assert set(faults({"vram": "much", "accelerator": "A1000"})) == {"spec.vram", "spec.accelerator"}


# Status

NV, NPU = node("nv", busy=range(8)), node("npu", B3)


def status_of(asked, *nodes, previous=None, now=NOW, generation=1):
    status = claim_status(decide(cluster(*nodes), asked, PROFILES), previous, now=now, generation=generation)
    assert list(object_faults(SCHEMA, json.loads(json.dumps(obj({}, status=status))))) == []
    return status


def routed(status):
    (condition,) = (one for one in status["conditions"] if one["type"] == "Routed")
    return condition


def test_a_placed_gang_is_routed_with_its_places_and_the_arithmetic():
    status = status_of(claim(1, pods=2, accelerator=A100, norm="all"), NV, NPU, node("spare"))
    placement = decode(status["placement"], where="claim")
    assert {pod.node for pod in placement.pods} == {"spare"}
    assert (status["profile"], status["model"], status["devices"]) == ("pytorch-nvidia", A100, 2)
    assert (routed(status)["status"], routed(status)["reason"]) == ("True", "GangPlaced")
    assert [(one["node"], one["reason"]) for one in status["nodes"]] == [
        ("npu", "scores-lower"),
        ("nv", "devices-busy"),
    ]


def test_a_gang_that_fits_nowhere_keeps_every_nodes_reason_and_what_would_help():
    status = status_of(claim(1, accelerator=A100, substitution="never"), NV, NPU)
    condition = routed(status)
    assert (condition["status"], condition["reason"]) == ("False", "GangFitsNowhere")
    assert "fits on 1 node with Ascend910B3 if substitution is allow" in condition["message"]
    assert {one["node"]: one["reason"] for one in status["nodes"]} == {
        "nv": "devices-busy",
        "npu": "substitution-not-allowed",
    }
    assert not {"placement", "profile", "model", "devices"} & status.keys()
    assert [one["token"] for one in status["decision"]["reasons"]] == ["gang-fits-nowhere", "fits-if"]


def test_a_gang_that_asks_before_other_cards_says_what_it_is_offered():
    status = status_of(claim(1, accelerator=A100, norm="all", substitution="ask"), NV, NPU)
    assert (routed(status)["status"], routed(status)["reason"]) == ("False", "SubstitutionWanted")
    assert "2x Ascend910B3" in routed(status)["message"]
    assert all(one["node"] in ("nv", "npu") for one in status["nodes"])
    assert "placement" not in status


def test_the_same_decision_gives_the_same_status_however_late():
    asked = claim(1, accelerator=A100, substitution="never")
    before = status_of(asked, NV, NPU)
    assert status_of(asked, NV, NPU, previous=before, now=LATER) == before


def test_the_time_of_a_condition_is_that_of_its_last_change():
    before = status_of(claim(1, accelerator=A100, substitution="never"), NV, NPU)
    waits = status_of(
        claim(1, accelerator=A100, norm="all", substitution="ask"), NV, NPU, previous=before, now=LATER
    )
    assert routed(waits)["lastTransitionTime"] == NOW
    placed = status_of(claim(1), NPU, previous=before, now=LATER, generation=2)
    assert routed(placed)["lastTransitionTime"] == LATER
    assert routed(placed)["observedGeneration"] == placed["observedGeneration"] == 2


def test_conditions_of_others_stay():
    other = {"type": "Moved", "status": "True", "reason": "Slow", "message": "", "lastTransitionTime": NOW}
    status = status_of(claim(1), NPU, previous={"conditions": [other]})
    assert status["conditions"][0] == other
    assert len(status["conditions"]) == 2


def test_of_very_many_nodes_the_first_thousand_are_told_and_the_rest_counted():
    decision = decide(cluster(NPU), claim(1), PROFILES)
    reason = Reason("devices-busy", "n", {"free": 0, "total": 8, "need": 1})
    many = tuple(Alternative(f"n{number}", {}, (reason,)) for number in range(1200))
    status = claim_status(replace(decision, alternatives=many), None, now=NOW, generation=1)
    assert (len(status["nodes"]), status["nodesOmitted"]) == (1000, 200)
    assert list(object_faults(SCHEMA, obj({}, status=status))) == []


def test_a_token_as_conditions_write_it():
    assert pascal("gang-fits-nowhere") == "GangFitsNowhere"
