"""The webhook's server: whatever is posted gets an honest answer, and certificates change while it runs."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from datetime import UTC, datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.admission.keeper import server_context
from strata.cluster.admission.server import WebhookMetrics, make_frame, outcome
from strata.errors import UsageError
from tests.support.live_server import listening

REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u1", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "object": {}},
}


def answered(review, *, allowed: bool = True, patch: list | None = None):
    response = {"uid": review["request"]["uid"], "allowed": allowed}
    if patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}


def ask(frame, method: str = "POST", path: str = "/mutate", **more) -> httpx.Response:
    async def one() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(frame), base_url="http://test") as client:
            return await client.request(method, path, **more)

    return asyncio.run(one())


def test_a_review_gets_what_was_decided():
    answer = ask(make_frame(answered), json=REVIEW)
    assert answer.status_code == 200
    assert answer.json()["response"] == {"uid": "u1", "allowed": True}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b"", "not JSON", id="empty"),
        pytest.param(b"\xff\xfe", "not JSON", id="no-text"),
        pytest.param(b"[" * 100_000, "not JSON", id="deep"),
        pytest.param(b"[]", "not an AdmissionReview", id="list"),
        pytest.param(b'{"kind": "Pod"}', "not an AdmissionReview", id="pod"),
        pytest.param(json.dumps(REVIEW | {"apiVersion": "admission.k8s.io/v1beta1"}).encode(), "v1", id="beta"),
        pytest.param(json.dumps(REVIEW | {"request": []}).encode(), "not an AdmissionReview", id="request-a-list"),
        pytest.param(
            json.dumps(REVIEW | {"request": {"uid": "u", "kind": 7}}).encode(), "kind", id="kind-a-number"
        ),
        pytest.param(json.dumps(REVIEW | {"request": {"uid": 7}}).encode(), "uid", id="uid-a-number"),
        pytest.param(json.dumps(REVIEW | {"request": {"uid": "u" * 500}}).encode(), "uid", id="uid-too-long"),
    ],
)
def test_what_is_no_review_is_refused_with_the_reason(body, said):
    answer = ask(make_frame(answered), content=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "request", "uid", "a"]), inner)
    ),
    max_leaves=8,
)


@given(body=ODD | st.builds(lambda request: REVIEW | {"request": request}, ODD))
def test_no_odd_body_is_an_error_of_ours(body):
    status = ask(make_frame(answered), content=json.dumps(body).encode()).status_code
    assert status in (200, 400)


def test_what_the_decision_refuses_to_read_is_the_clients_fault():
    def refuse(review):
        raise UsageError("request.object is not an object")

    answer = ask(make_frame(refuse), json=REVIEW)
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "request.object is not an object")


def test_a_body_over_3_mib_is_not_read_to_the_end():
    answer = ask(make_frame(answered), content=b" " * (3 * 2**20 + 1))
    assert answer.status_code == 413


@pytest.mark.parametrize(
    ("how", "word"),
    [
        ({}, "unchanged"),
        ({"allowed": False}, "denied"),
        ({"patch": [{"op": "add", "path": "/metadata/labels/a", "value": "b"}]}, "changed"),
        ({"patch": [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": "x"}]}]}, "gated"),
    ],
)
def test_how_reviews_come_out_is_counted_by_kind(how, word):
    assert outcome(answered(REVIEW, **how)) == word
    meters = WebhookMetrics()
    frame = make_frame(lambda review: answered(review, **how), meters=meters)
    ask(frame, json=REVIEW)
    shown = ask(frame, "GET", "/metrics").text
    assert f'strata_admission_reviews_total{{kind="Pod",outcome="{word}"}} 1.0' in shown
    assert 'strata_admission_seconds_count{kind="Pod"} 1.0' in shown


def test_kinds_somebody_makes_up_make_no_labels():
    meters = WebhookMetrics()
    frame = make_frame(answered, meters=meters)
    for name in ("x1", "x2", 7, None):
        ask(frame, json=REVIEW | {"request": {"uid": "u", "kind": {"kind": name}}})
    (family,) = meters.reviews.collect()
    assert [sample.labels for sample in family.samples] == [{"kind": "other", "outcome": "unchanged"}]


def test_it_is_ready_when_its_watches_are():
    why = ["computenodes are not listed yet"]
    frame = make_frame(answered, unready=lambda: why[0])
    assert ask(frame, "GET", "/healthz").status_code == 200
    assert (ask(frame, "GET", "/readyz").status_code, ask(frame, "GET", "/readyz").text) == (503, why[0])
    assert ask(frame, json=REVIEW).status_code == 503
    why[0] = ""
    assert ask(frame, "GET", "/readyz").status_code == 200
    assert ask(frame, json=REVIEW).status_code == 200


@pytest.mark.real("cryptography")
def test_a_certificate_changes_under_a_running_server_and_a_failed_renewal_leaves_the_old_one(monkeypatch):
    from strata.cluster.admission import certs, server

    monkeypatch.setattr(server, "LOOK_S", 0.0)
    monkeypatch.setattr(server, "_AGAIN_S", 0.0)
    now = datetime.now(UTC)
    authority = certs.issue_authority(now)
    pairs = [certs.issue(authority, ["localhost"], now) for _ in range(2)]
    current = [pairs[0]]
    failed = asyncio.Event()

    async def scenario() -> list[bytes]:
        loop = asyncio.get_running_loop()

        def look():
            if current[0] is None:
                loop.call_soon_threadsafe(failed.set)
                raise UsageError("the API server is away")
            return current[0]

        context, meters = server_context(), WebhookMetrics()
        frame = make_frame(answered, tls=context, look=look, meters=meters)
        seen = []
        async with listening(frame, tls=context) as port:
            for number, pair in enumerate([pairs[0], None, pairs[1]]):
                current[0] = pair
                while (
                    pair
                    and meters.registry.get_sample_value("strata_webhook_certificate_loads_total") <= number // 2
                ):
                    await asyncio.sleep(0)
                if pair is None:
                    await failed.wait()
                trusting = ssl.create_default_context(cadata=authority.cert.decode())
                url = f"https://localhost:{port}/readyz"
                client = httpx.AsyncClient(verify=trusting, trust_env=False, timeout=300)
                async with client, client.stream("GET", url) as answer:
                    assert answer.status_code == 200
                    wire = answer.extensions["network_stream"].get_extra_info("ssl_object")
                    seen.append(wire.getpeercert(binary_form=True))
        return seen

    seen = asyncio.run(asyncio.wait_for(scenario(), 120))
    assert [ssl.PEM_cert_to_DER_cert(pairs[number].cert.decode()) for number in (0, 0, 1)] == seen
