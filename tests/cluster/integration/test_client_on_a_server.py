"""The client and its watches against a real API server."""

from __future__ import annotations

import queue
import random
import signal
import threading

import pytest

from strata.cluster.api.client import connect
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import CRD, JOB_SET, LEASE, NODE, POD, ObjectKind, meta, name_of
from strata.cluster.api.watch import Listed, Watcher, WatchEvent, follow
from tests.support.real_processes import until

CONFIG_MAP = ObjectKind("", "v1", "ConfigMap", "configmaps")
BUDGET = ObjectKind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets")
LIMIT_S = 60.0


def config_map(name, namespace, **data):
    return {"metadata": {"name": name, "namespace": namespace}, "data": data}


def pod(name, namespace, **more):
    container = {"name": "c", "image": "pause"}
    labels = {"app": name}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [container], **more},
    }


def test_an_object_s_life(api, namespace):
    made = api.create(CONFIG_MAP, config_map("a", namespace, x="1"))
    assert api.get(CONFIG_MAP, "a", namespace) == made
    assert [name_of(one) for one in api.list(CONFIG_MAP, namespace=namespace)[0]] == ["a"]
    replaced = api.replace(CONFIG_MAP, {**made, "data": {"x": "2"}})
    assert replaced["data"] == {"x": "2"}
    patched = api.patch(CONFIG_MAP, "a", namespace, body={"data": {"x": None, "y": "3"}})
    assert patched["data"] == {"y": "3"}
    api.delete(CONFIG_MAP, "a", namespace)
    assert api.get(CONFIG_MAP, "a", namespace) is None
    api.delete(CONFIG_MAP, "a", namespace)


def test_a_dry_run_leaves_nothing(api, namespace):
    assert meta(api.create(CONFIG_MAP, config_map("a", namespace), is_dry_run=True))["uid"]
    assert api.get(CONFIG_MAP, "a", namespace) is None


def test_who_writes_an_old_version_is_refused_by_replace_and_by_patch(api, namespace):
    old = api.create(CONFIG_MAP, config_map("a", namespace))
    api.patch(CONFIG_MAP, "a", namespace, body={"data": {"x": "1"}})
    with pytest.raises(ApiFailed) as failed:
        api.replace(CONFIG_MAP, old)
    assert failed.value.is_conflict
    version = meta(old)["resourceVersion"]
    with pytest.raises(ApiFailed) as failed:
        api.patch(CONFIG_MAP, "a", namespace, body={"data": {"x": "2"}}, resource_version=version)
    assert failed.value.is_conflict
    assert failed.value.reason == "Conflict"


def test_applying_takes_a_field_over_from_another_manager(api, namespace):
    api.apply(CONFIG_MAP, config_map("a", namespace, x="1", z="1"), manager="first")
    taken = api.apply(CONFIG_MAP, config_map("a", namespace, x="2"), manager="second")
    assert taken["data"] == {"x": "2", "z": "1"}
    less = api.apply(CONFIG_MAP, config_map("a", namespace), manager="second")
    assert less["data"] == {"z": "1"}


def test_a_status_is_applied_apart(api, nodes):
    nodes.add("applied")
    condition = {"type": "Strata", "status": "True"}
    node = {"metadata": {"name": "applied"}, "status": {"conditions": [condition]}}
    after = api.apply(NODE, node, subresource="status")
    assert {one["type"] for one in after["status"]["conditions"]} == {"Ready", "Strata"}


def test_a_kind_that_is_not_installed_has_no_objects_and_no_list(api):
    assert api.get(JOB_SET, "x", "default") is None
    with pytest.raises(ApiFailed) as failed:
        api.list(JOB_SET)
    assert failed.value.status == 404


def test_who_may_not_is_told_what(plane):
    nobody = connect(kubeconfig=str(plane.kubeconfig("nobody")))
    with pytest.raises(ApiFailed, match='User "nobody" cannot list resource "nodes"') as failed:
        nobody.list(NODE)
    assert failed.value.status == 403
    nobody.close()


def test_a_service_account_has_rights_of_its_own(plane, api, namespace):
    account = connect(kubeconfig=str(plane.service_account(namespace, "agent")))
    with pytest.raises(ApiFailed, match=f"system:serviceaccount:{namespace}:agent"):
        account.list(LEASE, namespace=namespace)
    account.close()


def test_a_pod_is_evicted_unless_a_budget_forbids_it(plane, api, namespace, nodes):
    plane.controller_manager()
    nodes.add("evicts")
    for name in ("free", "kept"):
        api.create(POD, pod(name, namespace, nodeName="evicts"))
        nodes.running(name, namespace)  # one that is pending may be evicted whatever the budget says
    selector = {"matchLabels": {"app": "kept"}}
    budget = {"metadata": {"name": "b", "namespace": namespace}, "spec": {"minAvailable": 1, "selector": selector}}
    api.create(BUDGET, budget)
    api.evict("free", namespace)
    with pytest.raises(ApiFailed) as failed:
        api.evict("kept", namespace)
    assert failed.value.status == 429
    assert failed.value.may_pass


class Heard:
    """A sink, and waiting for what it hears."""

    def __init__(self):
        self.news = queue.Queue()

    def until(self, is_wanted):
        """Return the first news that is wanted; queue.Empty where nothing comes any more."""
        while not is_wanted(news := self.news.get(timeout=LIMIT_S)):
            pass
        return news


def is_change(type_, name):
    return lambda news: isinstance(news, WatchEvent) and (news.type, name_of(news.obj)) == (type_, name)


@pytest.fixture
def watching(api):
    watchers = []

    def watch(kind, labels=""):
        heard = Heard()
        watchers.append(Watcher(api, kind, heard.news.put, rng=random.Random(1), labels=labels).start())
        until(lambda: watchers[-1].is_synced, lambda: "the first list", LIMIT_S)
        return heard

    yield watch
    for one in watchers:
        one.stop(LIMIT_S)
        assert not one.is_alive, "it waits for an event nobody sends, and was closed"
        assert one.failure is None


def test_a_watcher_hears_of_what_was_what_comes_and_what_goes(api, namespace, watching):
    api.create(CONFIG_MAP, config_map("old", namespace))
    heard = watching(CONFIG_MAP)
    listed = heard.until(lambda news: isinstance(news, Listed))
    assert ("old", namespace) in {(name_of(one), meta(one)["namespace"]) for one in listed.objects}
    api.create(CONFIG_MAP, config_map("new", namespace))
    heard.until(is_change("ADDED", "new"))
    api.patch(CONFIG_MAP, "new", namespace, body={"data": {"text": "a\u0085b\u2028c"}})
    changed = heard.until(is_change("MODIFIED", "new"))
    assert changed.obj["data"]["text"] == "a\u0085b\u2028c"
    api.delete(CONFIG_MAP, "new", namespace)
    heard.until(is_change("DELETED", "new"))


def test_what_loses_its_label_is_gone_for_who_follows_that_label(api, namespace, watching):
    heard = watching(CONFIG_MAP, labels="mine")
    labelled = {"metadata": {"name": "a", "namespace": namespace, "labels": {"mine": ""}}}
    api.create(CONFIG_MAP, labelled)
    heard.until(is_change("ADDED", "a"))
    api.patch(CONFIG_MAP, "a", namespace, body={"metadata": {"labels": {"mine": None}}})
    heard.until(is_change("DELETED", "a"))


def test_a_kind_that_is_installed_later_is_heard_of(plane, api, namespace):
    widget = ObjectKind("test.ai.compute", "v1", "Widget", "widgets")
    never = threading.Event()
    news = follow(
        api,
        widget,
        clock=lambda: 0.0,
        pause=lambda seconds: never.wait(min(seconds, 0.05)),
        rng=random.Random(1),
    )
    assert next(news) == Listed(widget, ())
    install(api, widget)
    assert next(news) == Listed(widget, ()), "the kind is there, and has no objects yet"
    api.create(widget, {"metadata": {"name": "w", "namespace": namespace}})
    change = next(news)
    assert (change.type, name_of(change.obj)) == ("ADDED", "w")
    news.close()
    api.delete(CRD, "widgets.test.ai.compute")


def install(api, kind):
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": kind.version, "served": True, "storage": True, "schema": schema}
    names = {"kind": kind.kind, "plural": kind.plural}
    spec = {"group": kind.group, "names": names, "scope": "Namespaced", "versions": [version]}
    api.create(CRD, {"metadata": {"name": f"{kind.plural}.{kind.group}"}, "spec": spec})


def is_served(api, kind):
    try:
        return api.list(kind)
    except ApiFailed:
        return None


class Forgetful:
    """An API whose first watch begins in a past that is long over."""

    def __init__(self, api):
        self._api, self.asked = api, []

    def list(self, kind, *, labels=""):
        self.asked.append("list")
        return self._api.list(kind, labels=labels)

    def watch(self, kind, *, since, timeout_s, labels=""):
        since = "1" if len(self.asked) == 1 else since
        self.asked.append("watch")
        return self._api.watch(kind, since=since, timeout_s=timeout_s, labels=labels)


def test_a_past_the_server_has_forgotten_is_listed_again(api, namespace):
    # The server keeps what happened to a kind since it was installed, and nothing of before.
    gadget = ObjectKind("test.ai.compute", "v1", "Gadget", "gadgets")
    install(api, gadget)
    until(lambda: is_served(api, gadget), lambda: "the kind")
    forgetful = Forgetful(api)
    news = follow(forgetful, gadget, clock=lambda: 0.0, pause=lambda seconds: False, rng=random.Random(1))
    assert next(news) == Listed(gadget, ())
    assert next(news) == Listed(gadget, ())
    api.create(gadget, {"metadata": {"name": "after", "namespace": namespace}})
    assert is_change("ADDED", "after")(next(news))
    assert forgetful.asked == ["list", "watch", "list", "watch"]
    news.close()
    api.delete(CRD, "gadgets.test.ai.compute")


def test_a_watch_ends_when_its_time_is_over(api):
    events = api.watch(LEASE, since="", timeout_s=1.0, labels="nobody=has")
    assert {what for what, _ in events} <= {"BOOKMARK"}


def test_a_server_that_does_not_answer_is_given_up_and_asked_again(plane, api):
    hasty = connect(kubeconfig=str(plane.kubeconfig()), timeout_s=0.5)
    plane.api_server.popen.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(ApiFailed, match="Timeout") as failed:
            hasty.get(NODE, "a")
    finally:
        plane.api_server.popen.send_signal(signal.SIGCONT)
    assert failed.value.may_pass
    hasty.close()
    until(lambda: says_there_is_none(api), lambda: "the server to answer again")


def says_there_is_none(api):
    """Return whether the server says so; False while it is not yet itself again."""
    try:
        return api.get(NODE, "a") is None
    except ApiFailed as failed:
        if not failed.may_pass:
            raise
        return False


def test_a_watcher_outlives_the_server(plane, api, namespace, watching, caplog):
    heard = watching(CONFIG_MAP)
    plane.api_server.kill()
    plane.start_api_server()
    api.create(CONFIG_MAP, config_map("after", namespace))
    heard.until(is_change("ADDED", "after"))
    assert "following configmaps, failure 1" in caplog.text
