"""What is asked of the API server and made of its answers, on answers of ours; a real one is in integration/."""

from __future__ import annotations

import json

import httpx
import pytest

from strata.cluster.api.client import PAGE, Api, connect, lines_of
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import COMPUTE_NODE, JOB, NODE, POD
from strata.errors import MissingPart, UsageError


class Server:
    """Gives the scripted answers in turn and keeps what it was asked."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        http = httpx.Client(base_url="https://server/clusters/c1", transport=httpx.MockTransport(self.answer))
        self.api = Api(http, failures=(httpx.HTTPError,), timeout_s=7.0, namespace="team")

    def answer(self, request):
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    @property
    def last(self):
        return self.asked[-1]

    @property
    def body(self):
        return json.loads(self.last.content)


def refusal(code, reason="", message="no", **headers):
    return httpx.Response(code, json={"reason": reason, "message": message, "code": code}, headers=headers)


def listed(*names, more="", version="9"):
    items = [{"metadata": {"name": name}} for name in names]
    return {"metadata": {"resourceVersion": version, "continue": more}, "items": items}


def stream(*events):
    return httpx.Response(200, content=b"".join(json.dumps(event).encode() + b"\n" for event in events))


@pytest.mark.parametrize(
    ("kind", "namespace", "path"),
    [
        pytest.param(POD, "ai", "/api/v1/namespaces/ai/pods/x", id="core"),
        pytest.param(POD, "", "/api/v1/namespaces/team/pods/x", id="the context's namespace"),
        pytest.param(JOB, "ai", "/apis/batch/v1/namespaces/ai/jobs/x", id="group"),
        pytest.param(NODE, "", "/api/v1/nodes/x", id="cluster"),
        pytest.param(COMPUTE_NODE, "ai", "/apis/ai.compute/v1alpha1/computenodes/x", id="ours"),
    ],
)
def test_where_an_object_is(kind, namespace, path):
    server = Server({"metadata": {"name": "x"}})
    assert server.api.get(kind, "x", namespace) == {"metadata": {"name": "x"}}
    assert server.last.url.path == "/clusters/c1" + path


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_leads_elsewhere_is_refused(name):
    server = Server()
    with pytest.raises(UsageError, match="not the name of an object"):
        server.api.get(POD, name, "ai")
    assert not server.asked


def test_a_name_with_a_slash_stays_one_step_of_the_path():
    server = Server(refusal(404))
    assert server.api.get(POD, "x/../../secrets/s?a=b", "ai") is None
    assert server.last.url.raw_path.endswith(b"/pods/x%2F..%2F..%2Fsecrets%2Fs%3Fa%3Db")


def test_what_is_not_there_is_none_and_its_deletion_no_error():
    server = Server(refusal(404), refusal(404), refusal(404))
    assert server.api.get(POD, "x", "ai") is None
    server.api.delete(POD, "x", "ai")
    server.api.evict("x", "ai")


def test_a_list_is_read_page_by_page_and_says_what_each_object_is():
    server = Server(listed("a", more="token"), listed("b", version="12"))
    objects, version = server.api.list(POD, labels="ai.compute/managed=true")
    assert [one["metadata"]["name"] for one in objects] == ["a", "b"]
    assert {(one["apiVersion"], one["kind"]) for one in objects} == {("v1", "Pod")}
    assert version == "12"
    assert dict(server.last.url.params) == {
        "labelSelector": "ai.compute/managed=true",
        "limit": str(PAGE),
        "continue": "token",
    }


def test_a_list_whose_past_is_forgotten_between_two_pages_is_read_in_one_piece():
    server = Server(listed("a", more="token"), refusal(410, "Expired"), listed("a", "b"))
    objects, _ = server.api.list(POD, namespace="ai")
    assert len(objects) == 2
    assert not server.last.url.params
    assert server.last.url.path.endswith("/namespaces/ai/pods")


def test_a_watch_yields_events_up_to_the_server_s_end():
    added, event = {"metadata": {"name": "a"}}, {"metadata": {"resourceVersion": "9"}}
    server = Server(stream({"type": "ADDED", "object": added}, {"type": "BOOKMARK", "object": event}))
    watch = server.api.watch(POD, since="5", timeout_s=60.4, labels="a=b")
    assert list(watch) == [("ADDED", added), ("BOOKMARK", event)]
    assert dict(server.last.url.params) == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "60",
        "resourceVersion": "5",
        "labelSelector": "a=b",
    }
    assert server.last.extensions["timeout"]["read"] == pytest.approx(67.4)
    assert server.last.extensions["timeout"]["connect"] == 7.0


def test_a_watch_of_a_forgotten_past_is_gone_said_at_once_or_later():
    later = stream({"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}})
    for answer in (refusal(410, "Expired"), later):
        with pytest.raises(ApiFailed) as failed:
            list(Server(answer).api.watch(POD, since="5", timeout_s=60))
        assert failed.value.is_gone


def test_a_watch_that_breaks_is_a_failure_that_may_pass():
    def broken():
        yield b'{"type": "ADDED", "object": {}}\n{"type": "ADD'
        raise httpx.ReadError("connection reset")

    watch = iter(Server(httpx.Response(200, content=broken())).api.watch(POD, since="", timeout_s=60))
    assert next(watch) == ("ADDED", {})
    with pytest.raises(ApiFailed, match="connection reset") as failed:
        next(watch)
    assert failed.value.may_pass


def test_a_watch_that_was_closed_ends_without_a_word():
    def broken():
        yield b'{"type": "ADDED", "object": {}}\n'
        raise httpx.ReadError("closed under it")

    watch = Server(httpx.Response(200, content=broken())).api.watch(POD, since="", timeout_s=60)
    next(watch)
    watch.close()
    assert list(watch) == []


@pytest.mark.parametrize("line", [b"not json\n", b"[]\n", b'{"type": "ADDED"}\n'])
def test_garbage_in_a_watch_is_a_failure(line):
    with pytest.raises(ApiFailed, match="not a watch event"):
        list(Server(httpx.Response(200, content=line)).api.watch(POD, since="", timeout_s=60))


def test_lines_end_at_the_newline_alone_wherever_the_pieces_are_cut():
    text = '{"a": "x\u0085y\u2028z\u001cw"}\n\n{"b": 1}\nhalf an ev'.encode()
    for cut in range(1, len(text)):
        pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
        assert list(lines_of(iter(pieces))) == text.split(b"\n")[0:3:2]


def test_writing_says_who_writes():
    server = Server(*[{}] * 6)
    pod = {"metadata": {"name": "x", "namespace": "ai"}, "spec": {"a": 1}}
    server.api.create(POD, pod, is_dry_run=True)
    assert server.last.method == "POST"
    assert server.last.url.path.endswith("/namespaces/ai/pods")
    assert dict(server.last.url.params) == {"fieldManager": "strata", "dryRun": "All"}
    assert server.body == {**pod, "apiVersion": "v1", "kind": "Pod"}
    server.api.replace(POD, pod, subresource="status")
    assert (server.last.method, server.last.url.path[-14:]) == ("PUT", "/pods/x/status")
    server.api.apply(POD, pod, subresource="status", manager="agent")
    assert (server.last.method, server.last.headers["Content-Type"]) == ("PATCH", "application/apply-patch+yaml")
    assert dict(server.last.url.params) == {"fieldManager": "agent", "force": "true"}
    server.api.patch(POD, "x", "ai", body={"metadata": {"labels": {"a": None}}}, resource_version="7")
    assert server.last.headers["Content-Type"] == "application/merge-patch+json"
    assert server.body == {"metadata": {"labels": {"a": None}, "resourceVersion": "7"}}
    server.api.delete(POD, "x", "ai")
    assert (server.last.method, server.body) == ("DELETE", {"propagationPolicy": "Background"})
    server.api.evict("x", "ai")
    assert server.last.url.path.endswith("/pods/x/eviction")


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        pytest.param(refusal(409, "Conflict"), 409, "409: no", id="conflict"),
        pytest.param(refusal(403, "Forbidden", "pods is forbidden"), 403, "pods is forbidden", id="forbidden"),
        pytest.param(httpx.Response(502, text="<html>bad gateway"), 502, "<html>bad gateway", id="a proxy's page"),
        pytest.param(httpx.Response(500, json=["what"]), 500, "what", id="JSON that is no Status"),
        pytest.param(httpx.Response(503), 503, "Service Unavailable", id="nothing at all"),
        pytest.param(httpx.Response(302), 302, "Found", id="a redirect to some login"),
        pytest.param(httpx.Response(200, text="hello"), 0, "not an object: 'hello'", id="no JSON"),
        pytest.param(httpx.Response(200, json=[7]), 0, "not an object: '[7]'", id="JSON that is no object"),
        pytest.param(httpx.ReadTimeout("timed out"), 0, "ReadTimeout: timed out", id="slow"),
        pytest.param(httpx.ConnectError(""), 0, "ConnectError", id="no server"),
    ],
)
def test_every_refusal_says_what_was_asked_and_why_not(answer, status, said):
    with pytest.raises(ApiFailed) as failed:
        Server(answer).api.replace(POD, {"metadata": {"name": "x", "namespace": "ai"}})
    assert failed.value.status == status
    assert said in str(failed.value)
    assert "/clusters/c1/api/v1/namespaces/ai/pods/x" in str(failed.value)
    assert failed.value.exit_code == 5


@pytest.mark.parametrize(("wait", "seconds"), [("5", 5.0), ("", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)])
def test_the_wait_a_server_asks_for_is_kept(wait, seconds):
    with pytest.raises(ApiFailed) as failed:
        Server(refusal(429, "TooManyRequests", **{"Retry-After": wait})).api.evict("x", "ai")
    assert failed.value.retry_after_s == seconds


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


CONFIG = """
current-context: one
contexts:
- {name: one, context: {cluster: c, namespace: team}}
- {name: two, context: {cluster: c, user: u}}
- {name: lost, context: {cluster: elsewhere}}
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.mark.real("lightkube")
def test_without_any_cluster_it_says_what_to_give(nowhere):
    with pytest.raises(MissingPart, match="no cluster") as missing:
        connect()
    assert missing.value.lines()[1] == "try: --kubeconfig FILE"
    with pytest.raises(UsageError, match="no such kubeconfig"):
        connect(kubeconfig=str(nowhere / "absent"))


@pytest.mark.real("lightkube")
@pytest.mark.parametrize("by", ["argument", "environment", "home"])
def test_a_kubeconfig_is_found_by(by, nowhere, monkeypatch):
    path = nowhere / ".kube" / "config" if by == "home" else nowhere / "given"
    path.parent.mkdir(exist_ok=True)
    path.write_text(CONFIG)
    if by == "environment":
        monkeypatch.setenv("KUBECONFIG", str(path))
    api = connect(kubeconfig=str(path) if by == "argument" else None, timeout_s=5.0)
    assert api.namespace == "team"
    # Nobody listens at port 1.
    with pytest.raises(ApiFailed, match="ConnectError") as failed:
        api.get(NODE, "x")
    assert failed.value.may_pass
    api.close()
    other = connect(kubeconfig=str(path), context="two")
    assert other.namespace == "default"
    other.close()


@pytest.mark.real("lightkube")
@pytest.mark.parametrize(
    ("text", "context"),
    [
        ("", None),
        ("{", None),
        ("a: 1", None),
        (CONFIG, "three"),
        (CONFIG, "lost"),
        (CONFIG.replace("https://", "https://[::"), None),
        (CONFIG.replace('"https:', '7, certificate-authority: /nowhere, a: "https:'), None),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_a_usage_error(text, context, nowhere):
    path = nowhere / "config"
    path.write_text(text)
    with pytest.raises(UsageError):
        connect(kubeconfig=str(path), context=context)


@pytest.mark.real("lightkube")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("null", "the file is empty", id="null"),
        pytest.param("[]", "it should be a mapping", id="a list"),
        pytest.param("clusters: null", "clusters should be a list", id="clusters: null"),
        pytest.param(
            "{clusters: [null]}", r"clusters\[0\].cluster should be a mapping", id="a cluster that is null"
        ),
        pytest.param(
            CONFIG.replace("{cluster: c, namespace: team}", "null"),
            r"contexts\[0\].context should be a mapping",
            id="a context that is null",
        ),
    ],
)
def test_the_refusal_of_a_kubeconfig_says_what_of_it_is_wrong(text, message, nowhere):
    path = nowhere / "config"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"config: not a usable kubeconfig: {message}") as caught:
        connect(kubeconfig=str(path))
    assert caught.value.lines()[1] == "try: kubectl config view"


@pytest.mark.real("lightkube")
def test_an_exec_plug_in_that_is_missing_is_told_as_a_failure(nowhere):
    path = nowhere / "config"
    plug_in = "{apiVersion: client.authentication.k8s.io/v1beta1, command: no-such-plug-in}"
    path.write_text(CONFIG.replace("token: t", f"exec: {plug_in}"))
    api = connect(kubeconfig=str(path), context="two")
    with pytest.raises(ApiFailed, match="no-such-plug-in"):
        api.get(NODE, "x")
    api.close()


@pytest.mark.parametrize("said", ["36", "36+"])
def test_the_minor_version_is_a_number(said):
    assert Server({"major": "1", "minor": said}).api.minor_version() == 36


@pytest.mark.parametrize("said", [{}, {"minor": ""}, {"minor": "x"}])
def test_a_version_that_is_none_is_a_failure(said):
    with pytest.raises(ApiFailed, match="not a minor version"):
        Server(said).api.minor_version()
