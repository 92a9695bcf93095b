from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.api import placement_annotation as placing
from strata.cluster.api.annotations import read_claim
from strata.cluster.extender.verdict import ANYWHERE, Judge, NodeVerdicts, judge, points, sort_nodes
from strata.cluster.extender.wire import (
    MOST,
    decode,
    encode,
    filter_refusal,
    filter_result,
    host_priorities,
    plain,
    read_args,
)
from strata.cluster.scheduling.evaluation import TOKENS, evaluate
from strata.cluster.scheduling.index import Index
from strata.cluster.scheduling.snapshot import Placement, PodPlace
from strata.errors import BadFile, UsageError
from strata.evaluation.placement.synthetic import synthetic_cluster
from strata.reasons import REASONS
from tests.cluster.builders import B3, PROFILES, cluster, node
from tests.support.laws import examples

INDEX = Index.of(
    cluster(
        node("a"),
        node("begun", busy=(0,)),
        node("busy", busy=range(7)),
        node("closed", is_schedulable=False),
        node("empty", count=0),
        node("npu", B3),
        node("odd", "MTT-S4000"),
    )
)
NAMES = [one.name for one in INDEX.nodes]


def pod(labels=None, **asked):
    said = {f"ai.compute/{key.replace('_', '-')}": value for key, value in asked.items()}
    return {"metadata": {"name": "p", "namespace": "ns", "annotations": said, "labels": labels or {}}}


def placed(*nodes):
    return placing.encode(Placement("pytorch-nvidia", tuple(PodPlace(one, (0,)) for one in nodes), 1, 1.0, "A100"))


def filtered(asked, names=NAMES, index=INDEX):
    args = read_args({"Pod": asked, "NodeNames": list(names)})
    return json.loads(filter_result(sort_nodes(judge(index, asked, PROFILES), args.names), args))


def scored(asked, names=NAMES, index=INDEX):
    found = points(judge(index, asked, PROFILES), list(names), most=MOST)
    answer = json.loads(host_priorities(list(names), found))
    assert len(answer) == len(names)
    return {one["Host"]: one["Score"] for one in answer}


def test_names_pass_or_are_told_why_and_where_preemption_cannot_help():
    assert filtered(pod(devices="2", accelerator="A100-SXM4-80GB"), [*NAMES, "unheard-of"]) == {
        "Nodes": None,
        "NodeNames": ["a", "begun"],
        "FailedNodes": {"busy": "devices-busy: The devices are used by other pods."},
        "FailedAndUnresolvableNodes": {
            "closed": "node-closed: The node is cordoned, or not ready.",
            "empty": "no-devices: The node's agent found no device, or no agent runs there.",
            "npu": f"no-profile: {REASONS['no-profile'].means}",
            "odd": f"no-profile: {REASONS['no-profile'].means}",
            "unheard-of": "no-devices: The node's agent found no device, or no agent runs there.",
        },
        "Error": "",
    }


def test_the_best_node_has_most_points_and_nodes_that_do_not_fit_have_none():
    assert scored(pod(devices="2")) == {
        "a": 1, "begun": MOST, "busy": 0, "closed": 0, "empty": 0, "npu": 1, "odd": 0,
    }  # fmt: skip


def test_a_pod_that_asks_for_nothing_passes_everywhere_and_scores_nothing():
    plain = {"metadata": {"name": "web"}, "spec": {}}
    assert filtered(plain, ["x", "a"])["NodeNames"] == ["x", "a"]
    assert scored(plain, ["x", "a"]) == {"x": 0, "a": 0}
    assert filtered({"metadata": {}}, ["x"])["NodeNames"] == ["x"]


def test_a_pod_of_a_gang_goes_to_its_own_place_and_to_the_gangs_nodes_where_it_has_no_number():
    numbered = pod({"batch.kubernetes.io/job-completion-index": "1"}, placement=placed("a", "busy"))
    assert filtered(numbered)["NodeNames"] == ["busy"]
    assert scored(numbered)["busy"] == MOST
    assert sum(scored(numbered).values()) == MOST
    unnumbered = pod(placement=placed("a", "busy"))
    answer = filtered(unnumbered)
    assert answer["NodeNames"] == ["a", "busy"]
    assert answer["FailedNodes"] == {}
    assert answer["FailedAndUnresolvableNodes"]["npu"].startswith("placed-elsewhere: ")


def test_a_placement_counts_more_than_what_the_pod_asks_for():
    assert filtered(pod(placement=placed("closed"), devices="8"))["NodeNames"] == ["closed"]


@pytest.mark.parametrize("asked", [pod(vram="lots"), pod(placement="{}"), pod(vram="16Gi", colour="red")])
def test_annotations_that_cannot_be_read_are_an_error_in_one_line(asked):
    with pytest.raises(BadFile) as caught:
        judge(INDEX, asked, PROFILES)
    answer = json.loads(filter_refusal(caught.value))
    assert "pod ns/p" in answer["Error"]
    assert "\n" not in answer["Error"]
    assert answer["NodeNames"] is None


def test_whole_nodes_come_back_whole():
    items = [{"metadata": {"name": name, "labels": {"x": name}}} for name in ("a", "busy", "begun")]
    args = read_args({"pod": pod(devices="2"), "nodes": {"metadata": {}, "items": items}, "nodeNames": None})
    assert args.names == ["a", "busy", "begun"]
    answer = json.loads(filter_result(sort_nodes(judge(INDEX, args.pod, PROFILES), args.names), args))
    assert answer["Nodes"] == {"metadata": {}, "items": [items[0], items[2]]}
    assert answer["NodeNames"] is None


@pytest.mark.parametrize("keys", [("Pod", "NodeNames"), ("pod", "nodeNames"), ("POD", "nodenames")])
def test_keys_are_read_in_any_case_as_go_does(keys):
    assert read_args(dict(zip(keys, (pod(), ["a"]), strict=True))).names == ["a"]


def test_no_nodes_at_all_are_answered():
    answer = filtered(pod(devices="1"), [])
    assert (answer["NodeNames"], scored(pod(devices="1"), [])) == ([], {})
    assert read_args({"Pod": pod(), "Nodes": {"items": None}}).names == []


@pytest.mark.parametrize(
    "said",
    [None, [], 1, {}, {"Pod": None, "NodeNames": []}, {"Pod": pod()}, {"Pod": pod(), "NodeNames": [1]},
     {"Pod": pod(), "NodeNames": "a"}, {"Pod": pod(), "NodeNames": ['x","y']},
     {"Pod": pod(), "NodeNames": ["\ud800"]}, {"Pod": pod(), "Nodes": {"items": [1]}},
     {"Pod": pod(), "Nodes": []}],
)  # fmt: skip
def test_what_is_no_question_is_refused(said):
    with pytest.raises(UsageError):
        read_args(said)


@examples(25)
@given(st.integers(0, 99), st.sampled_from(["1", "2", "4", "8"]), st.randoms())
def test_filter_answers_a_part_of_the_names_in_their_order_and_accounts_for_all(seed, devices, random):
    index = Index.of(synthetic_cluster(30, np.random.default_rng(seed), busy=0.7))
    names = [*random.sample([one.name for one in index.nodes], 20), "unheard-of"]
    before = (index.kind.copy(), index.free_bytes.copy(), index.free_share.copy(), index.is_open.copy())
    answer = filtered(pod(devices=devices), names, index)
    said = [*answer["NodeNames"], *answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]]
    assert sorted(said) == sorted(names)
    assert answer["NodeNames"] == [name for name in names if name in set(answer["NodeNames"])]
    assert filtered(pod(devices=devices), names, index) == answer
    after = (index.kind, index.free_bytes, index.free_share, index.is_open)
    assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True))


@examples(25)
@given(st.integers(0, 99), st.sampled_from(["1", "2", "4", "8"]))
def test_points_are_in_the_order_of_the_routers_scores(seed, devices):
    index = Index.of(synthetic_cluster(40, np.random.default_rng(seed), busy=0.7))
    asked = pod(devices=devices)
    token, score = evaluate(index, read_claim(asked["metadata"]["annotations"], name="p"), PROFILES).nodes
    given_ = scored(asked, index.node_number, index)
    fitting = [n for n, t in enumerate(token) if TOKENS[t] == ""]
    for n in fitting:
        for m in fitting:
            if score[n] > score[m] + 1e-6:
                assert given_[index.nodes[n].name] >= given_[index.nodes[m].name]
    best = {index.nodes[n].name for n in fitting if score[n] > score[fitting].max() - 1e-9}
    assert {name for name, value in given_.items() if value == MOST} == best
    assert all(type(value) is int and 0 <= value <= MOST for value in given_.values())


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=60), st.sampled_from([10, 100]))
def test_the_best_alone_has_most_points_however_close_the_others_are(scores, most):
    names = [f"n{i}" for i in range(len(scores))]
    number = {name: i for i, name in enumerate(names)}
    verdict = NodeVerdicts(np.zeros(len(names) + 1, dtype=int), np.array([*scores, 0.0]), number)
    found = points(verdict, names, most=most)
    rounded = np.round(scores, 9).tolist()
    assert [value == most for value in found] == [one == max(rounded) for one in rounded]
    assert min(found) >= 1
    pairs = sorted(zip(rounded, found, strict=True))
    assert all(low[1] <= high[1] for low, high in pairwise(pairs))


def test_the_judge_looks_again_only_where_something_changed():
    ask = Judge()
    first = ask(INDEX, pod(devices="2"), PROFILES)
    assert ask(INDEX, json.loads(json.dumps(pod(devices="2"))), tuple(PROFILES)) is first
    assert ask(INDEX, pod(devices="4"), PROFILES) is not first
    second = ask(INDEX, pod(devices="2"), PROFILES)
    assert ask(INDEX.with_nodes([node("a", busy=range(8))]), pod(devices="2"), PROFILES) is not second
    assert ask(INDEX, pod(devices="2"), PROFILES[:1]) is not second


@given(st.lists(st.text(max_size=5), max_size=5), st.randoms())
def test_what_is_joined_by_hand_is_what_json_would_write(names, random):
    try:
        plain(names)
    except UsageError:
        assert any(one in '"\\' or one < " " for one in "".join(names))
        return
    scores = [random.randrange(3) for _ in names]
    assert sorted(json.loads(host_priorities(names, scores)), key=str) == sorted(
        ({"Host": name, "Score": score} for name, score in zip(names, scores, strict=True)), key=str
    )
    args = read_args({"Pod": {}, "NodeNames": names})
    assert json.loads(filter_result(sort_nodes(ANYWHERE, names), args))["NodeNames"] == names
    refused = {"": [], "no-profile": names, "devices-busy": []} if names else {"": []}
    answer = json.loads(filter_result({token: some for token, some in refused.items() if some or not token}, args))
    assert answer["FailedAndUnresolvableNodes"].keys() == set(names)


def test_a_body_that_is_no_json_is_refused():
    assert decode(encode({"a": [1]})) == {"a": [1]}
    with pytest.raises(UsageError, match="not JSON"):
        decode(b"{")
