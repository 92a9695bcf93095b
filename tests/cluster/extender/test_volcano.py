from __future__ import annotations

import pytest

from strata.cluster.extender import volcano
from strata.cluster.extender.verdict import judge
from strata.cluster.scheduling.index import Index
from strata.errors import BadFile, UsageError
from tests.cluster.builders import PROFILES, cluster, node

INDEX = Index.of(
    cluster(node("a"), node("begun", busy=(0,)), node("busy", busy=range(8)), node("odd", "MTT-S4000"))
)


def task(**asked):
    """A TaskInfo as Volcano sends it: Go's names, the pod whole."""
    said = {f"ai.compute/{key}": value for key, value in asked.items()}
    return {"UID": "1", "Job": "ns/j", "Name": "p", "Pod": {"metadata": {"name": "p", "annotations": said}}}


def info(name):
    return {"Name": name, "Node": {"metadata": {"name": name}}, "Tasks": {}}


def verdict(one):
    return judge(INDEX, one["Pod"], PROFILES)


@pytest.mark.parametrize(
    ("name", "code", "token"), [("a", 0, ""), ("busy", 2, "devices-busy"), ("odd", 3, "no-profile")]
)
def test_a_task_may_go_to_a_node_or_hears_why_not_and_whether_preemption_helps(name, code, token):
    pod, asked = volcano.read_predicate({"task": task(devices="2"), "node": info(name)})
    answer = volcano.predicate(judge(INDEX, pod, PROFILES), asked)
    assert answer["code"] == code
    assert answer["status"].partition(":")[0] == token


def test_scores_are_by_name_and_the_best_has_a_hundred():
    pod, names = volcano.read_prioritize(
        {"task": task(devices="2"), "nodes": [info("a"), info("begun"), info("busy")]}
    )
    answer = volcano.prioritize(judge(INDEX, pod, PROFILES), names)
    assert answer == {"nodeScore": {"a": 1.0, "begun": 100.0, "busy": 0.0}, "errorMessage": ""}


def test_a_task_that_asks_for_nothing_goes_anywhere():
    assert volcano.predicate(verdict(task()), "odd") == {"status": "", "code": 0}
    assert volcano.prioritize(verdict(task()), ["odd"])["nodeScore"] == {"odd": 0.0}


def test_annotations_that_cannot_be_read_refuse_every_node():
    with pytest.raises(BadFile) as caught:
        verdict(task(vram="lots"))
    assert volcano.refuse_predicate(caught.value)["code"] == 3
    assert "vram" in volcano.refuse_prioritize(caught.value)["errorMessage"]


@pytest.mark.parametrize(
    "said", [None, {}, {"task": {}}, {"task": {"Pod": None}}, {"task": task()}, {"task": task(), "node": {}}]
)
def test_what_is_no_question_is_refused(said):
    with pytest.raises(UsageError):
        volcano.read_predicate(said)
    with pytest.raises(UsageError):
        volcano.read_prioritize(said)
