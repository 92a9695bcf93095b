from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from strata.cluster.extender.app import make_frame
from strata.cluster.scheduling.index import Index
from strata.net.http import Limits
from tests.cluster.builders import PROFILES, cluster, node
from tests.support.live_server import listening

POD = {"metadata": {"name": "p", "uid": "1", "annotations": {"ai.compute/devices": "8"}}}
BAD = {"metadata": {"name": "p", "annotations": {"ai.compute/devices": "none"}}}
CLUSTER = cluster(node("a"), node("busy", busy=(0,)))


def calling(*questions, index=None, limits=None):
    """Return the answers of a live extender: (status, JSON or text)."""
    cache = [index or Index.of(CLUSTER)]
    frame = make_frame(lambda: cache[0], lambda: PROFILES, **({"limits": limits} if limits else {}))

    async def ask():
        found = []
        async with (
            listening(frame) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300) as client,
        ):
            for path, body in questions:
                if callable(body):
                    cache[0] = body(cache[0])
                    continue
                sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
                answer = await (client.get(path) if sent is None else client.post(path, content=sent))
                is_json = answer.headers["content-type"].startswith("application/json")
                found.append((answer.status_code, answer.json() if is_json else answer.text))
        return found

    return asyncio.run(ask())


def test_both_schedulers_are_answered_by_one_router():
    said = {"Pod": POD, "NodeNames": ["a", "busy"]}
    task, infos = {"Name": "p", "Pod": POD}, [{"Name": "a"}, {"Name": "busy"}]
    answers = calling(
        ("/v1/filter", said),
        ("/v1/prioritize", said),
        ("/volcano/predicate", {"task": task, "node": infos[1]}),
        ("/volcano/prioritize", {"task": task, "nodes": infos}),
        ("/volcano/onSessionOpen", {"Jobs": {}, "Nodes": {}}),
        ("/volcano/onSessionClose", {}),
    )
    assert [status for status, _ in answers] == [200] * 6
    assert answers[0][1]["NodeNames"] == ["a"]
    assert answers[1][1] == [{"Host": "a", "Score": 10}, {"Host": "busy", "Score": 0}]
    assert answers[2][1]["code"] == 2
    assert answers[3][1]["nodeScore"] == {"a": 100.0, "busy": 0.0}
    assert answers[4][1] == answers[5][1] == {}


def test_annotations_that_cannot_be_read_are_told_in_each_form():
    answers = calling(
        ("/v1/filter", {"Pod": BAD, "NodeNames": ["a"]}),
        ("/v1/prioritize", {"Pod": BAD, "NodeNames": ["a"]}),
        ("/volcano/predicate", {"task": {"Pod": BAD}, "node": {"Name": "a"}}),
        ("/volcano/prioritize", {"task": {"Pod": BAD}, "nodes": [{"Name": "a"}]}),
    )
    assert [status for status, _ in answers] == [200] * 4
    assert "ai.compute/devices" in answers[0][1]["Error"]
    assert answers[1][1] == [{"Host": "a", "Score": 0}]
    assert "ai.compute/devices" in answers[2][1]["status"]
    assert "ai.compute/devices" in answers[3][1]["errorMessage"]


def test_the_newest_index_is_asked():
    said = {"Pod": POD, "NodeNames": ["a", "busy"]}
    answers = calling(
        ("/v1/filter", said),
        ("", lambda index: index.with_nodes([node("a", busy=(1,)), node("busy")])),
        ("/v1/filter", said),
    )
    assert [answer["NodeNames"] for _, answer in answers] == [["a"], ["busy"]]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"[]", b'{"Pod": {}}'])
def test_what_is_no_question_is_a_bad_request(body):
    ((status, answer),) = calling(("/v1/filter", body))
    assert (status, answer["error"]["code"]) == (400, "bad-request")


def test_a_body_beyond_the_limit_is_refused():
    ((status, _),) = calling(("/v1/filter", b" " * 2000), limits=Limits(body_bytes=1000))
    assert status == 413


def test_every_verb_is_timed_and_only_verbs_are_there():
    answers = calling(
        ("/v1/filter", {"Pod": POD, "NodeNames": []}), ("/v1/bind", {}), ("/healthz", None), ("/metrics", None)
    )
    assert [status for status, _ in answers] == [200, 404, 200, 200]
    assert 'strata_extender_seconds_count{verb="filter"} 1' in answers[-1][1]


def test_nothing_should_be_asked_before_the_cluster_is_known():
    why = ["not listed yet: nodes"]
    frame = make_frame(lambda: Index.of(CLUSTER), lambda: PROFILES, unready=lambda: why[0])

    async def look():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(frame), base_url="http://test") as client:
            before = await client.get("/readyz")
            why[0] = ""
            return before, await client.get("/readyz"), await client.get("/healthz")

    before, after, health = asyncio.run(look())
    assert (before.status_code, before.text) == (503, "not listed yet: nodes")
    assert (after.status_code, health.status_code) == (200, 200)
