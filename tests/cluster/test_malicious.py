"""Whatever an annotation says stays text: in pods, jobs, claims, events, and on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from strata.cli.main import run
from strata.cluster.admission.review import Routed, answer
from strata.cluster.admission.single_pod import route_single_pod
from strata.cluster.api import kinds
from strata.cluster.api.actions import Apply, Event, Patch
from strata.cluster.api.annotations import KEYS as ASKED
from strata.cluster.api.annotations import OTHERS, PREFIX
from strata.cluster.api.crd.compute_claim import claim_of
from strata.cluster.api.crd.compute_node import fingerprint_of
from strata.cluster.api.kinds import annotations_of
from strata.cluster.controller.healing import HealingView, heal
from tests.cluster import objects
from tests.cluster.admission.builders import apply, patch_of, review
from tests.cluster.builders import A100, PROFILES
from tests.cluster.controller.test_controller import Cluster

EVIL = {
    "newline": "a\nLD_PRELOAD=/tmp/x.so",
    "escape": "\x1b]0;x\x07\x1b[2J",
    "shell": "$(reboot);`id`|x\"&&'",
    "path": "../../../etc/shadow",
    "direction": "a\u202etxt\u2028",
    "zero": "a\x00b",
    "json": '{"v":1,"profile":"x","pods":[["../..",[0]]],"devices":1}',
    "yaml": "a: [*x]\n---\n- b",
    "long": "x" * 100_000,
}
KEYS = [*(key for key in (*ASKED, *OTHERS) if key != "managed"), "no-such-key"]
SHOWN = ("newline", "escape", "direction")
LONGEST = 2000
"""A sentence beyond this nobody reads, and some fields refuse."""


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(n1=A100)


def strings(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every key and text of an object, and where it stands."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}#", key
            yield from strings(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner, f"{path}[]")
    elif isinstance(value, str):
        yield path, value


def reviewed(obj: Any, cluster: Cluster) -> tuple[Any, str]:
    """What is created of an object, and what its user reads; None where it is refused."""

    def route(pod: Any, is_dry_run: bool) -> Routed:
        return route_single_pod(cluster.cache, pod, is_dry_run=True, now_s=0.0)

    profiles = {profile.name: profile for profile in PROFILES}
    response = answer(review(obj), route=route, profiles=lambda: profiles, server_minor=36)["response"]
    text = "; ".join([*response.get("warnings", ()), (response.get("status") or {}).get("message", "")])
    if not response["allowed"]:
        return None, text
    return (apply(patch_of({"response": response}), obj) if "patch" in response else obj), text


def is_harmless(text: str) -> bool:
    return len(text) < LONGEST and text.replace("\n", " ").isprintable()


def check_object(obj: Any, evil: str) -> None:
    for path, text in strings(obj):
        if evil in text:
            assert "annotations" in path, f"{path} holds what an annotation said"


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
@pytest.mark.parametrize("key", KEYS)
def test_an_annotation_of_a_job_is_refused_or_stays_one(key: str, evil: str, cluster: Cluster) -> None:
    made = objects.job("train", pods=2, devices=2, accelerator=A100)
    made["metadata"]["annotations"][PREFIX + key] = evil
    created, text = reviewed(made, cluster)
    assert is_harmless(text), text[:300]
    check_object(created, evil)
    for job in filter(None, (created, made)):  # also as it was, where the webhook is installed later
        cluster = Cluster(n1=A100)
        cluster.put(kinds.JOB, {**job, "metadata": {**made["metadata"], **job["metadata"]}})
        for action in (*cluster.step(), *cluster.step(after_s=60.0)):
            if isinstance(action, Event):
                assert is_harmless(action.message), action.message[:300]
            elif isinstance(action, Apply) and action.ref.kind == kinds.COMPUTE_CLAIM:
                messages = [text for path, text in strings(action.body.get("status") or {}) if "message" in path]
                assert all(map(is_harmless, messages)), [text[:300] for text in messages]
                if "spec" in action.body:
                    claim_of({"metadata": {"name": "c", "namespace": "default"}, **action.body})
        check_object(cluster.job("train"), evil)


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
@pytest.mark.parametrize("key", KEYS)
def test_an_annotation_of_a_pod_is_refused_or_stays_one(key: str, evil: str, cluster: Cluster) -> None:
    made = objects.pod("alone", labels={PREFIX + "managed": "true"}, annotations=objects.asks(devices=2))
    made["metadata"]["annotations"][PREFIX + key] = evil
    created, text = reviewed(made, cluster)
    assert is_harmless(text), text[:300]
    check_object(created, evil)
    cluster.put(kinds.POD, made)  # as it was before the webhook was installed
    for action in (*cluster.step(), *cluster.step(after_s=60.0)):
        assert not isinstance(action, Event) or is_harmless(action.message), action


@pytest.mark.parametrize("evil", [EVIL[name] for name in SHOWN], ids=SHOWN)
@pytest.mark.parametrize("key", KEYS)
def test_a_terminal_shows_no_control_character_of_an_annotation(key, evil, tmp_path, capsys) -> None:
    made = objects.job("train", pods=2, devices=9, accelerator=A100)
    made["metadata"]["annotations"][PREFIX + key] = evil
    there = [objects.node("n1") | {"apiVersion": "v1", "kind": "Node"}, objects.devices("n1"), made]
    (tmp_path / "c.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": there}))
    code = run(["kube", "why", "job/train", "--snapshot", str(tmp_path / "c.json")])
    shown = "".join(capsys.readouterr())
    assert code in (0, 2, 3)
    assert not any(letter in shown for letter in ("\x1b]", "\x07", "\u202e", "\nLD_PRELOAD"))


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL)
def test_what_an_agent_calls_a_fault_or_a_device_is_text_in_events_and_conditions(evil: str) -> None:
    node = objects.devices("n1")
    for number, device in enumerate(node["status"]["devices"]):
        device |= {"faults": [evil[:253]], "health": 0.0, "uuid": f"{evil[:200]}{number}"}
    compute_nodes, prints = {"n1": node}, {"n1": fingerprint_of(node)}
    healing = heal(HealingView({"n1": objects.node("n1")}, compute_nodes, prints, {"n1": 0.0}), {}, 1.0)
    assert any(isinstance(action, Event) for action in healing.actions)
    for action in healing.actions:
        if isinstance(action, Event):
            assert is_harmless(action.message)
        elif isinstance(action, Apply):
            assert all(is_harmless(text) for _, text in strings(action.body))
        elif isinstance(action, Patch) and "spec" in action.body:
            assert all(is_harmless(text) for _, text in strings(action.body["spec"]))


def test_no_pod_joins_a_gang_of_another_namespace() -> None:
    """Else it would hold the gang's places, and have a job of others suspended by not being bound."""
    cluster = Cluster(n1=A100)
    cluster.put(kinds.JOB, objects.job("train", pods=2, devices=4, accelerator=A100))
    cluster.step()
    copied = {key: text for key, text in annotations_of(template_of(cluster.job("train"))).items() if text}
    pod = objects.pod("spy", annotations=copied)
    pod["metadata"]["namespace"] = "elsewhere"
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    cluster.put(kinds.POD, pod | {"status": {"phase": "Pending", "conditions": [refused]}})
    cluster.put(kinds.NODE, objects.node("n2"))
    cluster.put(kinds.COMPUTE_NODE, objects.devices("n2"))
    cluster.step()
    assert not [action for action in cluster.step(after_s=61.0) if isinstance(action, Patch)]
    assert cluster.cache.gangs.pods_of("Job/default/train") == ()


def template_of(job: Any) -> Any:
    return job["spec"]["template"]
