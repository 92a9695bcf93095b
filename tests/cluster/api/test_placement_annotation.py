from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api.placement_annotation import (
    PLACEMENT,
    WAITING,
    decode,
    encode,
    index_of,
    place_of,
)
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.errors import BadFile
from tests.cluster.admission.builders import ASCEND, fraction, placement, pod

PLACES = st.lists(
    st.tuples(st.sampled_from(["n1", "node-2.rack.example"]), st.lists(st.integers(0, 1023), max_size=8)),
    max_size=4,
)
PLACEMENTS = st.builds(
    lambda pods, memory, share, level, can_p2p: Placement(
        "a.b-c", tuple(PodPlace(node, tuple(devices), memory, tuple(devices[::-1])) for node, devices in pods),
        1, float("inf"), model="M", level=level, can_p2p=can_p2p,
        cores_share=share if memory is not None and pods else None,
    ),
    PLACES,
    st.none() | st.integers(1, 2**59).map(float),
    st.sampled_from([0.0, 0.25, 1.0]),
    st.sampled_from(["node", "rdma", "rack", "any"]),
    st.booleans(),
)  # fmt: skip


GANGS = st.integers(1, 3).flatmap(
    lambda each: st.builds(
        lambda pods: Placement(
            "a", tuple(PodPlace(node, tuple(devices), None, numbers and tuple(devices[::-1]))
                       for node, devices, numbers in pods), each, float("inf"), model="M",
        ),
        st.lists(st.tuples(st.sampled_from(["n1", "n2"]),
                           st.lists(st.integers(0, 9), min_size=each, max_size=each), st.sampled_from([(), True])),
                 min_size=1, max_size=9),
    )
)  # fmt: skip


@given(PLACEMENTS | GANGS)
def test_an_annotation_says_the_placement_and_nothing_else(given_):
    assert decode(encode(given_), where="job") == given_


def test_pods_that_share_a_node_are_one_entry():
    """Each pod of a job is created with its gang's whole placement, which 512 single entries make 14 kB of."""
    gang = placement(ASCEND, *((f"n{number // 8:05}", number % 8) for number in range(512)))
    assert len(encode(gang)) < 2500
    assert json.loads(encode(gang))["pods"][1] == ["n00001", list(range(8))]


def test_one_entry_a_pod_is_read_as_older_parts_of_ours_wrote_it():
    text = changed(v=1, devices=2, pods=[["n1", [0, 1]], ["n1", [2, 3]]])
    assert [pod.devices for pod in decode(text, where="job").pods] == [(0, 1), (2, 3)]


def changed(**said):
    return json.dumps({**json.loads(encode(fraction())), **said})


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "[]", "null", '"a"', "{}", "[" * 100_000,
        changed(v=3), changed(v=2, devices=0), changed(v=2, pods=[["n", [0, 1, 2]]], devices=2),
        changed(profile="a b"), changed(profile="$(id)"), changed(model="../x"),
        changed(level="moon"),
        changed(p2p=1), changed(devices="2"), changed(devices=True), changed(memory=0), changed(memory=2**60),
        changed(cores=1.1), changed(cores="x"), changed(pods=[["N1", [0]]]), changed(pods=[["a/../b", [0]]]),
        changed(pods=[["", [0]]]), changed(pods=[["n", [-1]]]), changed(pods=[["n", ["0"]]]),
        changed(pods=[["n"]]), changed(pods=[["n", [0], [0, 1]]]), changed(pods=[["n", [0], [-1]]]),
        changed(pods=[["n", [0], [0], [0]]]),
        changed(pods=[["n", [1024]]]), changed(pods=[["n\n", [0]]]), changed(x="y" * 300_000),
    ],
)  # fmt: skip
def test_what_nobody_wrote_so_is_refused_with_its_key(text):
    with pytest.raises(BadFile) as caught:
        decode(text, where="pod a/b")
    (fault,) = caught.value.faults
    assert (fault.path, fault.where) == ("pod a/b", PLACEMENT)
    assert len(fault.message) < 200


def test_what_a_pod_waits_for_has_no_nodes():
    nowhere = replace(fraction(), pods=(PodPlace("", (), 16.0 * 2**30),))
    assert decode(encode(nowhere), where="pod", key=WAITING) == nowhere
    with pytest.raises(BadFile):
        decode(encode(nowhere), where="pod")
    with pytest.raises(BadFile):
        decode(encode(fraction()), where="pod", key=WAITING)


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ({}, None),
        ({"batch.kubernetes.io/job-completion-index": "3"}, 3),
        ({"training.kubeflow.org/replica-index": "1", "ai.compute/first-place": "1"}, 2),
        (
            {
                "batch.kubernetes.io/job-completion-index": "1",
                "jobset.sigs.k8s.io/job-index": "2",
                "ai.compute/pods-per-job": "4",
                "ai.compute/first-place": "10",
            },
            19,
        ),
        ({"batch.kubernetes.io/job-completion-index": "-1"}, None),
        ({"batch.kubernetes.io/job-completion-index": "1", "ai.compute/first-place": "x"}, None),
    ],
)
def test_a_pod_is_numbered_by_its_jobs_controller(said, number):
    assert index_of(pod(annotations=said)) == number
    assert index_of(pod(labels=said)) == number


def test_a_pod_has_the_place_of_its_number_or_the_only_one():
    gang = placement(ASCEND, ("n2", 0), ("n1", 1), ("n2", 2))
    index = "batch.kubernetes.io/job-completion-index"
    assert place_of(pod(annotations={index: "1"}), gang) == gang.pods[1]
    assert place_of(pod(annotations={index: "3"}), gang) is None
    assert place_of(pod(), gang) is None
    assert place_of(pod(), placement()) == placement().pods[0]
    assert gang.nodes == ("n1", "n2")
