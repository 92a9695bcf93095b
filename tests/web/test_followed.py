"""One job's decisions through all levels, room by moving, the search: of a scheduler, a cluster, roll-outs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

pytest.importorskip("starlette")

from strata.cli.main import run
from strata.cluster.api import kinds
from strata.cluster.api.placement_annotation import decode, encode
from strata.cluster.cache.cache import WATCHED
from strata.cluster.cache.gather import from_files
from strata.control.client import Client
from strata.control.drivers.kube_objects import ATTEMPT
from strata.errors import StrataError, UsageError
from strata.fleet.schema import KubeEntry, LocalEntry
from strata.history import History
from strata.web.cluster import looks_of
from strata.web.sources import Sources
from tests.cluster import objects
from tests.cluster.controller.test_making_room import half_full, whole
from tests.control.fakes import piece
from tests.web.test_host_page import tried
from tests.web.test_pages import EVIL, NOBODY, Site, is_safe

JOB = {
    "name": "train", "phase": "running", "owner": EVIL, "priority": 3, "submitted_s": 1e9, "steps": 20,
    "steps_done": 3, "domains": ["west"], "step_time_s": 1.0,
    "attempts": [{
        "id": "train-1", "number": 1, "started_s": 1e9 + 5, "plan_name": "single west", "from_step": 0, "step": 3,
        "devices": {"west": [0, 1]}, "parts": {"west": {"phase": "running", "message": EVIL}}, "reason": "",
    }],
    "decisions": [{
        "at_s": 1e9 + 4, "job": "train", "reasons": [{"token": "chosen", "text": "the shortest step"}],
        "alternatives": [{"name": "east", "reasons": [{"token": "too-slow", "text": EVIL}]}],
    }],
}  # fmt: skip


@dataclass(frozen=True)
class Recorded(Client):
    """A scheduler that knows one job, as it answered."""

    known: dict[str, Any] = field(default_factory=lambda: JOB)

    def job(self, name: str) -> dict[str, Any]:
        if name != self.known["name"]:
            raise UsageError(f"there is no job {name!r}")
        return self.known

    def decisions(self, *, limit: int = 200) -> list[dict[str, Any]]:
        return self.known["decisions"]

    def piece(self, name: str) -> dict[str, Any]:
        return piece(name)


def listed() -> dict[kinds.ObjectKind, list[Any]]:
    """A cluster in which `whole` waits for room that `third` could make, and `half` is the part of an attempt."""
    cluster = half_full()
    whole(cluster)
    cluster.step()
    half = cluster.job("half")
    half["metadata"]["annotations"][ATTEMPT] = "train-1"
    pod = objects.pod("half-0", on="n1", resource="nvidia.com/gpu", count=4)
    pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), "job-name": "half"}
    cluster.put(kinds.POD, pod)
    by_name = {kind.kind: kind for kind in WATCHED}
    lists: dict[kinds.ObjectKind, list[Any]] = {kind: [] for kind in WATCHED}
    for (kind, _), obj in cluster.objects.items():
        lists[by_name[kind]].append(obj)
    return lists


@pytest.fixture
def site(tmp_path) -> Site:
    return Site(Sources(tmp_path / "history.db", Recorded(NOBODY), "seed", clusters={"": listed}))


def test_a_job_is_followed_from_its_plan_to_the_policy_of_its_host(site, tmp_path):
    with History(tmp_path / "history.db") as history:
        history.add("training", {"name": "train", "reasons": [{"token": "chosen", "text": EVIL}]}, at_s=1e9)
        history.add("host", {"name": "train", "verdict": "", "findings": []}, at_s=1e9)
    tried(tmp_path / "rollouts.db", "layered")
    shown = site.ask("/decisions/of?name=train")
    assert shown.status_code == 200
    assert is_safe(shown.text)
    levels = re.split(r"<h2>\d\. ", shown.text)[1:]
    assert len(levels) == 5
    for level, words in zip(
        levels,
        ('href="/plans/1"', "the shortest step", "<b>Job/default/half</b> goes to 4 ×", "half-0", "layered"),
        strict=True,
    ):
        assert words in level
    assert 'href="/plans/2"' not in shown.text
    assert "0, 1" in levels[1]
    assert "Job/default/third" not in shown.text


def test_a_claim_is_followed_by_the_name_of_its_object(site):
    shown = site.ask("/decisions/of?name=Job/default/whole")
    assert shown.status_code == 200
    assert "gang-fits-nowhere" in shown.text
    assert "waits" in shown.text
    assert "there is no job" in shown.text


@pytest.mark.parametrize("name", ["", "nothing", EVIL, "../../etc/passwd", "x" * 5000])
def test_what_no_level_knows_is_not_found(site, name):
    answer = site.ask(f"/decisions/of?name={quote(name)}")
    assert answer.status_code == 404
    assert is_safe(answer.text)
    assert "there is no decision about" in answer.text


def test_levels_that_cannot_be_read_say_so_and_the_others_are_shown(tmp_path):
    with History(tmp_path / "history.db") as history:
        history.add("training", {"name": "train", "reasons": []}, at_s=1e9)
    (tmp_path / "rollouts.db").write_text("no database at all, " * 100)
    site = Site(Sources(tmp_path / "history.db", Client(NOBODY), clusters={"": fails}))
    shown = site.ask("/decisions/of?name=train").text
    for words in (f"no scheduler answers at {NOBODY}", "the API server does not answer; try: kubectl get nodes",
                  "not a history strata can use"):  # fmt: skip
        assert words in shown
    assert "the API server does not answer" in site.ask("/fleet").text
    assert "the API server does not answer" in site.ask("/decisions").text


def test_who_could_move_for_whom_stands_with_its_price_on_the_fleets_page(site):
    shown = site.ask("/fleet").text
    assert is_safe(shown)
    assert "<td>Job/default/third</td><td>3</td>" in shown
    assert "room-by-moving" in shown
    assert 'href="/decisions/of?name=Job%2Fdefault%2Fwhole"' in shown


def test_without_a_cluster_the_page_says_how_to_name_one(tmp_path):
    shown = Site(Sources(tmp_path / "none.db", Client(NOBODY))).ask("/fleet").text
    assert "strata ui --kubeconfig FILE" in shown


def test_claims_that_are_odd_are_left_out_and_said(tmp_path):
    """What a status holds is whoever may write it."""
    lists = listed()
    (claim,) = [obj for obj in lists[kinds.COMPUTE_CLAIM] if obj["metadata"]["name"] == "job-whole"]
    odd = [
        {**claim, "metadata": {**claim["metadata"], "name": f"odd-{number}"}, "status": status}
        for number, status in enumerate((
            {"decision": "yes"}, {"decision": {"moves": [{"gang": 5}]}}, {"placement": EVIL}, {"conditions": [{}]},
            [],
        ))
    ]  # fmt: skip
    lists[kinds.COMPUTE_CLAIM] += odd
    hostile = {**claim["status"]["decision"], "moves": [
        {"gang": EVIL, "devices": 3, "costDeviceSeconds": 9.0, "nodes": [EVIL]}]}  # fmt: skip
    claim["status"] = {**claim["status"], "decision": hostile}
    site = Site(Sources(tmp_path / "none.db", Client(NOBODY), clusters={"": lambda: lists}))
    shown = site.ask("/fleet")
    assert shown.status_code == 200
    assert is_safe(shown.text)
    assert "&lt;script&gt;" in shown.text
    assert shown.text.count('class="bad"') == 4


def test_a_clusters_devices_and_slices_are_shown_node_by_node(tmp_path):
    lists = listed()
    claim = next(claim for claim in lists[kinds.COMPUTE_CLAIM] if claim["status"].get("placement"))
    placement = decode(claim["status"]["placement"], where="")
    pods = tuple(replace(pod, devices=pod.devices[:1], memory_bytes=8 * 2**30) for pod in placement.pods)
    part = replace(placement, pods=pods, devices_per_pod=1, cores_share=0.5)
    claim["status"] = {**claim["status"], "placement": encode(part)}
    site = Site(Sources(tmp_path / "none.db", Client(NOBODY), clusters={"west": lambda: lists, "east": fails}))
    shown = site.ask("/fleet").text
    assert "n1: 8 devices, 100 ACU each, 8 in use" in shown
    assert "n2: 8 devices, 100 ACU each, 3 in use" in shown
    assert "east: the API server does not answer" in shown
    assert "Job/default/whole</a> in west" in shown
    data = site.ask("/fleet/cluster.json").json()
    assert [(row["name"], row["num_free"], row["cluster"]) for row in data] == [
        ("n1", 0, "west"),
        ("n2", 5, "west"),
    ]
    ElementTree.fromstring(site.ask("/fleet/cluster.svg").text)
    slices = site.ask("/slices").text
    assert "8GiB" in slices.split("Slices of the cluster")[1]
    assert "east: the API server does not answer" in slices


def fails() -> Any:
    raise StrataError("the API server does not answer", hint="kubectl get nodes")


def test_the_clusters_of_a_fleets_domains_are_asked_each_once(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("strata.web.cluster.server_look", lambda *where: asked.append(where) or fails)
    kube = {"kind": "kubernetes", "image": "x"}
    drivers = {
        "a": KubeEntry.model_validate(kube | {"kubeconfig": "k", "context": "c"}),
        "b": KubeEntry.model_validate(kube | {"kubeconfig": "k", "context": "c", "namespace": "other"}),
        "c": KubeEntry.model_validate(kube),
        "d": LocalEntry.model_validate({"kind": "local"}),
    }
    assert list(looks_of(drivers, tmp_path)) == ["a, b", "c"]
    assert asked == [(str(tmp_path / "k"), "c"), (None, None)]


def test_files_that_kubectl_wrote_are_a_cluster(tmp_path):
    (tmp_path / "empty.json").write_text('{"kind": "List", "apiVersion": "v1", "items": []}')
    look = partial(from_files, [tmp_path / "empty.json"])
    site = Site(Sources(tmp_path / "none.db", Client(NOBODY), clusters={"": look}))
    assert "No job waits for which others could move" in site.ask("/fleet").text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("of=whole", ["Job/default/whole"]),
        ("reason=room-by-moving", ["Job/default/whole"]),
        ("reason=chosen", ["train"]),
        ("q=shortest", ["train"]),
        ("since=2001-09-09T00:00&until=2001-09-11", ["train"]),
        ("until=2001-09-01", []),
        ("of=half&reason=room-by-moving", []),
    ],
)
def test_decisions_are_searched_by_object_reason_time_and_words(site, query, found):
    shown = site.ask(f"/decisions?{query}")
    assert is_safe(shown.text)
    assert re.findall(r'aria-label="(.*?) through', shown.text) == found


@pytest.mark.parametrize(
    "query", ["since=yesterday", "until=2026-13-01", "since=99999-01-01", f"since={quote(EVIL)}"]
)
def test_a_time_that_is_none_is_a_page_that_says_how_one_looks(site, query):
    answer = site.ask(f"/decisions?{query}")
    assert answer.status_code == 422
    assert "is not a time" in answer.text
    assert is_safe(answer.text)


def test_what_if_is_asked_of_a_job_that_the_scheduler_has(site):
    shown = site.ask("/jobs/train").text
    assert 'action="/jobs/train/whatif"' in shown
    assert 'placeholder="job.minimize=cost"' in shown
    answer = site.ask("/jobs/train/whatif", "POST", data={"settings": "job.global_batch=16"})
    assert answer.status_code == 200
    assert "as it is" in answer.text
    assert 'href="/jobs/train"' in answer.text
    assert site.ask("/jobs/train/whatif", "POST", data={"settings": ""}).status_code == 422


def test_without_a_fleet_there_is_nothing_to_plan_a_job_on(tmp_path):
    site = Site(Sources(tmp_path / "none.db", Recorded(NOBODY)))
    assert "What if" not in site.ask("/jobs/train").text
    answer = site.ask("/jobs/train/whatif", "POST", data={"settings": "job.global_batch=16"})
    assert answer.status_code == 422
    assert "strata ui FLEET" in answer.text


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--snapshot", "none.json"), "none.json"),
        (("--snapshot", "broken.json"), "broken.json"),
        (("--snapshot", "job.yaml"), "has no metadata.name"),
        (("--kubeconfig", "none", "--snapshot", "empty.json"), ""),
        ((), ""),
    ],
)
def test_a_clusters_file_is_read_before_pages_are_served(words, fault, monkeypatch, tmp_path, capsys):
    served = []
    monkeypatch.setattr("strata.net.server.serve", lambda *_, **__: served.append(True))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('{"kind": "List", ')
    (tmp_path / "job.yaml").write_text("apiVersion: batch/v1\nkind: Job\nmetadata: {}\n")
    (tmp_path / "empty.json").write_text('{"kind": "List", "apiVersion": "v1", "items": []}')
    assert run(["ui", "--port", "0", *words]) == (2 if fault else 0)
    assert fault in capsys.readouterr().err
    assert served == ([] if fault else [True])
