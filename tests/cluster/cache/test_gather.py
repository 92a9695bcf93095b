"""What kubectl writes is read as the API server would tell it."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
import yaml

from strata.cluster.api import kinds
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.cache.cache import WATCHED
from strata.cluster.cache.gather import cache_of, from_files, from_server, silent
from strata.errors import BadFile, Fault, UsageError
from tests.cluster.builders import A100, B3
from tests.cluster.objects import RESOURCE, devices, job, node, pod


def typed(kind: kinds.ObjectKind, obj):
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


OBJECTS = [
    typed(kinds.NODE, node("n0")),
    typed(kinds.COMPUTE_NODE, devices("n0")),
    typed(kinds.NODE, node("n1", B3)),
    typed(kinds.COMPUTE_NODE, devices("n1", B3)),
    pod("p0", on="n0", resource=RESOURCE[A100], count=2),
    job("j0", devices=2),
]


def listed(objects) -> dict:
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def written(tmp_path, name: str, data) -> str:
    path = tmp_path / name
    path.write_text(json.dumps(data) if name.endswith("json") else yaml.safe_dump(data))
    return str(path)


@pytest.mark.parametrize("name", ["all.json", "all.yaml"])
def test_a_list_becomes_a_book(tmp_path, name):
    found = cache_of(from_files([written(tmp_path, name, listed(OBJECTS))]), bundled_profiles())
    assert [one.name for one in found.index.nodes] == ["n0", "n1"]
    assert sum(found.index.nodes[0].free_share) == 6
    assert list(found.jobs) == ["Job/default/j0"]


def test_an_agent_that_published_nothing_for_minutes_is_silent_whoever_else_wrote():
    """`acu` called devices free, and `why` sent jobs there, that a controller gives to nobody."""

    def published(name: str, at: str, *, condition_at: str) -> dict:
        fields = [
            {
                "manager": "strata-agent",
                "time": at,
                "fieldsV1": {"f:status": {"f:devices": {}, "f:observedAt": {}}},
            },
            {"manager": "strata-agent", "time": condition_at, "fieldsV1": {"f:spec": {}}},
            {"manager": "strata", "time": condition_at, "fieldsV1": {"f:status": {"f:conditions": {}}}},
        ]
        obj = devices(name)
        return {**obj, "metadata": {**obj["metadata"], "managedFields": fields}}

    now = datetime(2026, 11, 21, 10, 10, tzinfo=UTC)
    some = [
        published("heard", "2026-11-21T10:05:00Z", condition_at="2026-11-21T09:00:00Z"),
        published("silent", "2026-11-21T10:03:00Z", condition_at="2026-11-21T10:09:59Z"),
        devices("untold"),
    ]
    assert silent({kinds.COMPUTE_NODE: some}, now) == {"silent"}


def test_several_files_lists_of_lists_and_single_objects_are_one_cluster(tmp_path):
    paths = [
        written(tmp_path, "a.json", listed([listed(OBJECTS[:2])])),
        written(tmp_path, "b.json", OBJECTS[2]),
        written(tmp_path, "c.json", OBJECTS[3:]),
        written(tmp_path, "d.json", {"apiVersion": "v1", "kind": "ConfigMapList", "items": []}),
    ]
    found = from_files(paths)
    assert {kind.kind: len(some) for kind, some in found.items() if some} == {
        "Node": 2, "ComputeNode": 2, "Pod": 1, "Job": 1,
    }  # fmt: skip


def test_kinds_of_others_are_passed_over(tmp_path):
    strange = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    assert not any(from_files([written(tmp_path, "x.json", strange)]).values())


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (7, "not an object"),
        ({"kind": "Pod", "metadata": {"name": "x"}}, "apiVersion"),
        ({"apiVersion": "v1", "kind": "Pod"}, "metadata.name"),
        (
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": []},
            r"\.spec: should be a mapping",
        ),
        ({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": []}}, "metadata.labels"),
    ],
)
def test_what_is_no_object_is_named_by_its_place(tmp_path, one, said):
    with pytest.raises(BadFile, match=said) as caught:
        from_files([written(tmp_path, "x.json", listed([*OBJECTS, one, one]))])
    assert [fault.where.partition(".")[0] for fault in caught.value.faults] == ["items[6]", "items[7]"]


def _places(value, place=()):
    """Yield where anything stands: of lists the first two items."""
    if place:
        yield place
    below = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, item in below:
        yield from _places(item, (*place, key))


@pytest.mark.parametrize("odd", ["x", 5, ["x"], [None]], ids=repr)
@pytest.mark.parametrize("number", range(len(OBJECTS)), ids=lambda number: OBJECTS[number]["kind"])
def test_whatever_stands_in_an_object_is_read_or_refused(number, odd, tmp_path):
    for place in _places(OBJECTS[number]):
        objects = json.loads(json.dumps(OBJECTS))
        *above, last = place
        parent = objects[number]
        for key in above:
            parent = parent[key]
        parent[last] = odd
        path = written(tmp_path, "odd.json", listed(objects))
        refused: list[Fault] = []
        try:
            assert cache_of(from_files([path]), bundled_profiles()).index
        except BadFile as error:
            refused += error.faults
        assert all(fault.path == path and fault.where.startswith(f"items[{number}]") for fault in refused)


def test_a_file_that_is_not_there_says_so():
    with pytest.raises(UsageError, match="no such file"):
        from_files(["nowhere.json"])


class Server:
    def __init__(self, status: int):
        self.status = status

    def list(self, kind, *, namespace="", labels=""):
        if kind in (kinds.NODE, kinds.POD, kinds.JOB):
            return [{"kind": kind.kind}], "1"
        raise ApiFailed("no", status=self.status)

    def serves(self, kind):
        return True


def test_kinds_a_cluster_does_not_have_are_empty():
    found = from_server(Server(404))
    assert found.keys() == set(WATCHED)
    assert [kind.kind for kind, some in found.items() if some] == ["Node", "Pod", "Job"]


def test_kinds_somebody_may_not_see_are_an_error():
    with pytest.raises(ApiFailed):
        from_server(Server(403))
