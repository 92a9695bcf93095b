"""What `deploy/` installs, on a real API server: it is taken, and each part may do what it does and no more."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.cluster.admission.keeper import NAME, NAMESPACE, SECRET_NAME, Keeper, read_secret
from strata.cluster.agent.dra_driver import DraDriver
from strata.cluster.agent.publish import Publisher
from strata.cluster.api.client import connect
from strata.cluster.api.crd.compute_node import fingerprint_of
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.kinds import (
    COMPUTE_NODE,
    JOB,
    MUTATING_WEBHOOK,
    NODE,
    POD,
    RESOURCE_CLAIM,
    RESOURCE_SLICE,
    SECRET,
)
from strata.cluster.cache.cache import WATCHED
from strata.cluster.cache.gather import from_server
from strata.cluster.dra.own_slices import resource_slice
from tests import ROOT
from tests.cluster.builders import A100, B3, node
from tests.cluster.integration.strata_on_kubernetes import Part
from tests.cluster.objects import RESOURCE, job
from tests.support.real_processes import until

DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def installed(plane):
    """The control plane with everything of `deploy/` but its webhook's configuration, which nobody serves here."""
    shown = plane.kubectl("kustomize", str(DEPLOY))
    documents = [one for one in shown.split("\n---\n") if "kind: MutatingWebhookConfiguration" not in one]
    namespaces = [one for one in documents if "\nkind: Namespace" in f"\n{one}"]
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given="\n---\n".join(namespaces))
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given="\n---\n".join(documents))
    plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    yield plane
    # Definitions and rights stay, as other tests bring the same; what stands for a machine goes.
    for kind in ("pods", "computenodes", "nodes"):
        plane.kubectl("delete", kind, "-n", NAMESPACE, "--all", "--force", "--grace-period=0", "--wait=false")


@pytest.fixture
def client():
    """Connects by a kubeconfig, and closes what was connected."""
    with ExitStack() as stack:
        yield lambda path: stack.enter_context(closing(connect(kubeconfig=str(path))))


@pytest.fixture
def as_part(installed, client):
    """Connects with the rights of a part."""
    return lambda part: client(installed.service_account(NAMESPACE, f"strata-{part}"))


def refused(ask) -> int:
    with pytest.raises(ApiFailed) as caught:
        ask()
    return caught.value.status


def test_the_webhooks_configuration_is_valid(installed):
    shown = installed.kubectl("kustomize", str(DEPLOY))
    (hook,) = (one for one in shown.split("\n---\n") if "kind: MutatingWebhookConfiguration" in one)
    said = installed.kubectl("apply", "--server-side", "--dry-run=server", "-o", "json", "-f", "-", given=hook)
    assert json.loads(said)["webhooks"][0]["failurePolicy"] == "Fail"


@pytest.mark.parametrize("part", ["controller", "webhook", "extender"])
def test_those_that_look_at_the_cluster_may_see_what_they_look_at_and_no_secrets(as_part, part):
    api = as_part(part)
    assert from_server(api).keys() == set(WATCHED)
    assert refused(lambda: api.list(SECRET)) == 403


def test_the_extender_may_change_nothing(as_part):
    api = as_part("extender")
    for kind, name in ((NODE, "x"), (POD, "x"), (JOB, "x"), (COMPUTE_NODE, "x")):
        assert refused(lambda kind=kind, name=name: api.patch(kind, name, "default", body={})) == 403


@pytest.fixture
def configured(api):
    """A configuration of the webhook that asks about nothing."""
    hook = {
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": "place.ai.compute",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"service": {"name": NAME, "namespace": NAMESPACE, "path": "/mutate"}},
                "rules": [],
            }
        ],
    }
    api.delete(MUTATING_WEBHOOK, NAME)
    api.create(MUTATING_WEBHOOK, hook)
    yield
    api.delete(MUTATING_WEBHOOK, NAME)
    api.delete(SECRET, SECRET_NAME, NAMESPACE)


def bundle(api) -> bytes:
    """Whom the API server was told to trust."""
    (hook,) = api.get(MUTATING_WEBHOOK, NAME)["webhooks"]
    return base64.b64decode(hook["clientConfig"].get("caBundle", ""))


def test_the_webhook_keeps_its_certificates_and_gets_at_no_other_secret(configured, api, as_part):
    own, now = as_part("webhook"), datetime.now(UTC)
    first = Keeper(own).look(now)
    assert Keeper(own).look(now + timedelta(days=1)) == first
    second = Keeper(own).look(now + timedelta(days=70))
    assert second != first
    stored = read_secret(api.get(SECRET, SECRET_NAME, NAMESPACE))
    assert (stored.serving, stored.bundle) == (second, bundle(api))
    assert refused(lambda: own.get(SECRET, "other", NAMESPACE)) == 403
    assert refused(lambda: own.get(MUTATING_WEBHOOK, "other")) == 403


def test_a_webhook_without_files_is_trusted_by_what_it_told_the_api_server(configured, installed, api, tmp_path):
    kubeconfig = installed.service_account(NAMESPACE, "strata-webhook")
    part = Part(
        tmp_path / "log",
        *("webhook", "--kubeconfig", str(kubeconfig), "--host", "127.0.0.1", "--port", "0"),
        scheme="https",
    )
    with closing(part):
        port = int(part.url.rpartition(":")[2])

        def is_ready() -> bool:
            assert part.popen.poll() is None, part.log
            return bool(bundle(api)) and readyz(port, bundle(api)) == 200

        until(is_ready, lambda: part.log)
        assert part.end() == 0


def readyz(port: int, trusted: bytes) -> int:
    """Ask as an API server does: by the service's name, and with nobody trusted but the bundle's authorities."""
    context = ssl.create_default_context(cadata=trusted.decode())
    try:
        plain = socket.create_connection(("127.0.0.1", port))
        with context.wrap_socket(plain, server_hostname=f"{NAME}.{NAMESPACE}.svc") as wire:
            wire.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return int(wire.makefile("rb").readline().split()[1])
    except (ConnectionError, ssl.SSLError):
        return 0


@pytest.fixture
def policed(as_part):
    """The API server has read the policy: a token that names no node is refused by it, and not for its rights."""

    def is_refused() -> bool:
        try:
            Publisher(as_part("agent"))(node("unpoliced").fingerprint)
        except ApiFailed as error:
            return "its own node only" in str(error)
        return False

    until(is_refused, lambda: "the policy")


def agent_on(plane, name: str) -> Path:
    """A kubeconfig with the token that the agent's pod on a node has: the API server notes the node in it."""
    plane.service_account(NAMESPACE, "strata-agent")
    plane.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    spec = {
        "nodeName": name,
        "serviceAccountName": "strata-agent",
        "containers": [{"name": "agent", "image": "strata"}],
    }
    status, pod = plane.ask("POST", pods, {"metadata": {"name": f"agent-{name}"}, "spec": spec})
    assert status in (201, 409), pod
    bound = {"apiVersion": "v1", "kind": "Pod", "name": f"agent-{name}"}
    tokens = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/strata-agent/token"
    status, answer = plane.ask("POST", tokens, {"spec": {"boundObjectRef": bound}})
    assert status == 201, answer
    return plane.kubeconfig(f"agent-{name}", answer["status"]["token"])


def test_an_agent_publishes_its_own_node_and_no_other(installed, policed, api, client):
    admin, api = api, client(agent_on(installed, "own-a"))
    Publisher(api)(node("own-a").fingerprint)
    Publisher(api)(node("own-a", sick=(1,)).fingerprint)
    assert fingerprint_of(admin.get(COMPUTE_NODE, "own-a")).devices[1].health == 0.1
    with pytest.raises(ApiFailed, match="its own node only"):
        Publisher(api)(node("own-b").fingerprint)
    Publisher(admin)(node("own-b").fingerprint)
    with pytest.raises(ApiFailed, match="its own node only"):
        Publisher(api)(node("own-b").fingerprint)


def test_an_agent_that_gives_devices_out_writes_the_slice_of_its_own_node_and_driver_alone(
    installed, api, client, tmp_path
):
    installed.kubectl("apply", "--server-side", "-f", str(DEPLOY / "components/dra/rights.yaml"))
    own, publish = client(agent_on(installed, "own-a")), Publisher(api)
    uids = {name: publish(node(name).fingerprint) for name in ("own-a", "own-b")}
    foreign = resource_slice(node("own-b").fingerprint, generation=1, owner_uid=uids["own-b"])

    def is_refused() -> bool:
        try:
            own.apply(RESOURCE_SLICE, foreign)
        except ApiFailed as error:
            return "its own node and driver only" in str(error)
        return False

    until(is_refused, lambda: "the policy of slices")
    driver = DraDriver(own, "own-a", root=tmp_path, cdi=tmp_path)
    for sick in ((), (1,)):
        driver.publish(node("own-a", sick=sick).fingerprint, uids["own-a"])
        made = api.get(RESOURCE_SLICE, "own-a-ai.compute")
        assert len(made["spec"]["devices"]) == len(node("own-a").fingerprint.devices) - len(sick)
    api.apply(RESOURCE_SLICE, foreign)
    with pytest.raises(ApiFailed, match="its own node and driver only"):
        own.apply(RESOURCE_SLICE, foreign)
    assert own.get(RESOURCE_CLAIM, "none", "default") is None
    assert refused(lambda: own.list(RESOURCE_CLAIM)) == 403
    for name in ("own-a-ai.compute", "own-b-ai.compute"):
        api.delete(RESOURCE_SLICE, name)


def test_a_token_that_names_no_node_writes_none(policed, as_part):
    with pytest.raises(ApiFailed, match="its own node only"):
        Publisher(as_part("agent"))(node("own-a").fingerprint)


def test_the_overlay_for_cert_manager_takes_the_rights_back(installed):
    shown = installed.kubectl("kustomize", str(DEPLOY / "overlays/cert-manager"))
    assert "secrets" not in shown.replace("secretName", "")
    # Its own kinds are not installed here.
    documents = [one for one in shown.split("\n---\n") if "cert-manager.io/v1" not in one.split("\nmetadata")[0]]
    installed.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", given="\n---\n".join(documents))


def test_people_see_what_there_is_and_why_a_job_would_go_where(installed, api, nodes, namespace):
    for name, model in (("seen-a", A100), ("seen-b", B3)):
        nodes.add(name, allocatable={RESOURCE[model]: 8}, labels={"topology.kubernetes.io/zone": "seen"})
        Publisher(api)(node(name, model).fingerprint)
    wanted = job("train", pods=2, devices=8, accelerator=A100)
    status, answer = installed.ask(
        "POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", in_namespace(wanted, namespace)
    )
    assert status == 201, answer
    try:
        asked = ["--kubeconfig", str(installed.kubeconfig()), "-o", "json"]
        shown = CliRunner().invoke(cli, ["kube", "acu", *asked], catch_exceptions=False)
        (zone,) = (one for one in json.loads(shown.stdout)["domains"] if one["name"] == "seen")
        assert {one["name"]: one["devices"] for one in zone["nodes"]} == {"seen-a": 8, "seen-b": 8}
        shown = CliRunner().invoke(
            cli, ["kube", "why", "job/train", "-n", namespace, *asked], catch_exceptions=False
        )
        said = json.loads(shown.stdout)
        assert (said["is_routed"], said["source"]) == (False, "now")
        assert {one["node"]: one["reason"] for one in said["nodes"]}["seen-a"] == "room-for-fewer"
    finally:
        for name in ("seen-a", "seen-b"):
            api.delete(COMPUTE_NODE, name)


def in_namespace(obj, namespace: str):
    kept = {key: obj["metadata"][key] for key in ("name", "labels", "annotations")}
    return {**obj, "metadata": {**kept, "namespace": namespace}}
