"""What `deploy/` installs: that it fits together, and grants what the code uses and no more."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path

import click
import httpx
import pytest
import yaml
from click.testing import CliRunner

from strata.cli.groups import kube
from strata.cli.main import cli
from strata.cluster.admission import keeper
from strata.cluster.admission.server import WebhookMetrics, make_frame
from strata.cluster.agent.meters import AgentMetrics
from strata.cluster.agent.publish import Publisher
from strata.cluster.api import kinds
from strata.cluster.api.errors import ApiFailed
from strata.cluster.api.placement_annotation import MANAGED
from strata.cluster.cache.cache import WATCHED
from strata.cluster.controller.manager import ControllerMetrics
from strata.cluster.controller.process import LEASE
from strata.cluster.dra.own_slices import DRIVER
from strata.cluster.extender.app import make_frame as extender_frame
from strata.cluster.multikueue.process import LEASE as DISPATCHERS_LEASE
from strata.cluster.multikueue.process import MANAGED as MANAGED_BY_DISPATCHER
from strata.cluster.multikueue.process import OF_WORKERS
from strata.fleet.slices import LIBRARY
from tests import ROOT
from tests.cluster.builders import node
from tests.cluster.objects import admission_check

DEPLOY = ROOT / "deploy"
NAMESPACE = "strata-system"
PARTS = ("agent", "controller", "webhook", "extender")


def documents(path: Path) -> list[dict]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one is not None]


FILES = yaml.safe_load((DEPLOY / "base/kustomization.yaml").read_text())["resources"]
OBJECTS = [one for name in FILES for one in documents(DEPLOY / "base" / name)]


def of_kind(*names: str) -> list[dict]:
    return [one for one in OBJECTS if one["kind"] in names]


def named(kind: str, name: str) -> dict:
    (found,) = (one for one in of_kind(kind) if one["metadata"]["name"] == name)
    return found


WORKLOADS = of_kind("Deployment", "DaemonSet")
PODS = {one["metadata"]["name"]: one["spec"]["template"] for one in WORKLOADS}


def container(workload: dict) -> dict:
    (one,) = workload["spec"]["template"]["spec"]["containers"]
    return one


def selected(labels: dict) -> set[str]:
    return {name for name, pod in PODS.items() if labels.items() <= pod["metadata"]["labels"].items()}


def test_every_file_of_the_base_is_listed():
    there = {path.name for path in (DEPLOY / "base").glob("*.yaml")} - {"kustomization.yaml"}
    assert there == set(FILES)


def test_no_two_objects_have_the_same_name():
    keys = [(one["kind"], one["metadata"]["name"]) for one in OBJECTS]
    assert len(keys) == len(set(keys))


def test_the_definitions_are_those_of_strata_kube_crds():
    shown = CliRunner().invoke(cli, ["kube", "crds"])
    assert shown.exit_code == 0
    assert (DEPLOY / "base/crds.yaml").read_text() == shown.stdout


def test_what_is_installed_is_the_four_parts():
    assert {name.removeprefix("strata-") for name in PODS} == set(PARTS)


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one["metadata"]["name"])
def test_a_workload_fits_together(workload):
    name, pod = workload["metadata"]["name"], workload["spec"]["template"]["spec"]
    assert selected(workload["spec"]["selector"]["matchLabels"]) == {name}
    assert named("ServiceAccount", pod["serviceAccountName"])["metadata"]["name"] == name
    one = container(workload)
    assert {mount["name"] for mount in one["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    for probe in ("readinessProbe", "livenessProbe"):
        assert one[probe]["httpGet"]["port"] in ports
    annotations = workload["spec"]["template"]["metadata"]["annotations"]
    assert int(annotations["prometheus.io/port"]) in ports.values()


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one["metadata"]["name"])
def test_a_workload_has_no_rights_over_its_node(workload):
    said = container(workload)["securityContext"]
    assert said["capabilities"] == {"drop": ["ALL"]}
    assert (said["allowPrivilegeEscalation"], said["readOnlyRootFilesystem"]) == (False, True)
    pod = workload["spec"]["template"]["spec"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    on_host = {volume["name"] for volume in pod["volumes"] if "hostPath" in volume}
    assert all(mount["readOnly"] for mount in container(workload)["volumeMounts"] if mount["name"] in on_host)
    is_agent = workload["kind"] == "DaemonSet"
    assert is_agent or (not on_host and pod["securityContext"]["runAsNonRoot"])


def parsed(name, arguments):
    """What `strata kube NAME` makes of arguments. Below the whole command line: a command keeps its first help."""
    whole = click.Context(cli, **cli.context_settings)
    context = click.Context(kube, parent=whole)
    command = kube.get_command(context, name)
    assert command is not None, f"strata kube {name}"
    return command.make_context(name, list(arguments), parent=context).params


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one["metadata"]["name"])
def test_a_workloads_arguments_are_those_of_the_command(workload):
    _, name, *arguments = container(workload)["args"]
    told = parsed(name, arguments)
    assert told["port"] in {port["containerPort"] for port in container(workload)["ports"]}
    assert told["host"] == "0.0.0.0"
    assert told.get("namespace") in (None, NAMESPACE)


def test_the_agent_runs_on_every_node_whatever_its_taints():
    assert named("DaemonSet", "strata-agent")["spec"]["template"]["spec"]["tolerations"] == [
        {"operator": "Exists"}
    ]


@pytest.mark.parametrize("service", of_kind("Service"), ids=lambda one: one["metadata"]["name"])
def test_a_service_leads_to_a_port_that_is_served(service):
    (name,) = selected(service["spec"]["selector"])
    (port,) = service["spec"]["ports"]
    workload = next(one for one in WORKLOADS if one["metadata"]["name"] == name)
    assert port["targetPort"] in {one["name"] for one in container(workload)["ports"]}


def test_what_may_not_all_go_at_once_has_a_budget():
    for one in of_kind("PodDisruptionBudget"):
        (name,) = selected(one["spec"]["selector"]["matchLabels"])
        assert named("Deployment", name)["spec"]["replicas"] > one["spec"]["minAvailable"]
    assert len(of_kind("PodDisruptionBudget")) == len(of_kind("Deployment"))


def test_only_ports_that_are_served_are_open():
    served = {port["containerPort"] for one in WORKLOADS for port in container(one)["ports"]}
    opened = {
        port["port"]
        for policy in of_kind("NetworkPolicy")
        for rule in policy["spec"].get("ingress", ())
        for port in rule["ports"]
    }
    assert opened == served


def test_the_webhook_is_called_where_it_serves():
    (hook,) = named("MutatingWebhookConfiguration", keeper.NAME)["webhooks"]
    called = hook["clientConfig"]["service"]
    assert (
        (called["name"], called["namespace"]) == (keeper.NAME, keeper.NAMESPACE) == ("strata-webhook", NAMESPACE)
    )
    assert called["port"] in {port["port"] for port in named("Service", called["name"])["spec"]["ports"]}

    async def post() -> int:
        transport = httpx.ASGITransport(make_frame(lambda review: review))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.post(called["path"], content=b"")).status_code

    assert asyncio.run(post()) == 400


def test_the_webhook_is_asked_about_what_is_ours_and_nothing_else():
    (hook,) = named("MutatingWebhookConfiguration", keeper.NAME)["webhooks"]
    assert hook["objectSelector"] == {"matchLabels": {MANAGED: "true"}}
    (namespaces,) = hook["namespaceSelector"]["matchExpressions"]
    assert namespaces["operator"] == "NotIn"
    assert set(namespaces["values"]) == {"kube-system", NAMESPACE}
    assert (hook["failurePolicy"], hook["sideEffects"], hook["timeoutSeconds"]) == ("Fail", "NoneOnDryRun", 5)
    asked = {(rule["apiGroups"][0], rule["resources"][0]) for rule in hook["rules"]}
    assert asked == {(kind.group, kind.plural) for kind in (kinds.POD, *kinds.SUSPENDABLE)}
    assert all(rule["operations"] == ["CREATE"] for rule in hook["rules"])


def test_an_agent_may_write_its_own_node_only():
    policy = named("ValidatingAdmissionPolicy", "strata-agent-own-node")["spec"]
    account = f"system:serviceaccount:{NAMESPACE}:strata-agent"
    assert account in policy["matchConditions"][0]["expression"]
    binding = named("ValidatingAdmissionPolicyBinding", "strata-agent-own-node")["spec"]
    assert binding == {"policyName": "strata-agent-own-node", "validationActions": ["Deny"]}


def test_the_part_for_kueue_has_its_check_and_the_rights_to_answer_it():
    objects = documents(DEPLOY / "components/kueue/kueue.yaml")
    (check,) = (one for one in objects if one["kind"] == "AdmissionCheck")
    assert check == admission_check(check["metadata"]["name"])
    (role,) = (one for one in objects if one["kind"] == "ClusterRole")
    may = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    expected = {(kind.group, kind.plural, verb) for kind in kinds.KUEUE for verb in ("list", "watch")}
    kueue = kinds.WORKLOAD.group
    expected |= {(kueue, f"{kind.plural}/status", "patch") for kind in (kinds.WORKLOAD, kinds.ADMISSION_CHECK)}
    assert may == expected | {(kueue, kinds.WORKLOAD.plural, "patch")}


def role_rights(path: Path, name: str) -> set:
    (role,) = (one for one in documents(path) if one["kind"] == "ClusterRole" and one["metadata"]["name"] == name)
    return {
        ((group, resource), verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_dispatcher_of_multikueue_may_do_what_it_does_and_nothing_else():
    manager = DEPLOY / "components/multikueue/dispatcher.yaml"
    expected = {right for kind in MANAGED_BY_DISPATCHER for right in rights(kind, "list", "watch")}
    expected |= rights(kinds.WORKLOAD, "patch", sub="status") | rights(kinds.EVENT, "create", "patch")
    expected |= rights(kinds.COMPUTE_CLAIM, "create", "patch") | rights(kinds.COMPUTE_CLAIM, "patch", sub="status")
    assert role_rights(manager, "strata-dispatcher") == expected
    worker = DEPLOY / "components/multikueue-worker/account.yaml"
    more = {right for kind in set(OF_WORKERS) - set(WATCHED) for right in rights(kind, "list", "watch")}
    assert role_rights(worker, "strata-dispatcher-worker") == more
    (deployment,) = (one for one in documents(manager) if one["kind"] == "Deployment")
    _, name, *arguments = container(deployment)["args"]
    told = parsed(name, arguments)
    mounts = {mount["mountPath"] for mount in container(deployment)["volumeMounts"]}
    assert {str(Path(told[key]).parent) for key in ("fleet_file", "workers")} <= mounts
    assert told["namespace"] == deployment["metadata"]["namespace"] == NAMESPACE
    (lease,) = (one for one in documents(manager) if one["kind"] == "Role")
    assert lease["rules"][1]["resourceNames"] == [DISPATCHERS_LEASE]


FRACTIONS = "components/fractions"


def test_fractions_are_in_unless_they_are_taken_out():
    root, overlay = DEPLOY, DEPLOY / "overlays/cert-manager"
    for folder in (root, overlay):
        said = yaml.safe_load((folder / "kustomization.yaml").read_text())
        assert [(folder / one).resolve() for one in said["components"]] == [DEPLOY / FRACTIONS]


def test_the_quota_library_is_put_where_pods_with_fractions_mount_it_from():
    (part,) = documents(DEPLOY / FRACTIONS / "kustomization.yaml")
    (patch,) = part["patches"]
    assert patch["target"] == {"kind": "DaemonSet", "name": "strata-agent"}
    ((one,), volume) = (operation["value"] for operation in yaml.safe_load(patch["patch"]))
    (mount,) = one["volumeMounts"]
    assert (mount["name"], mount.get("readOnly", False)) == (volume["name"], False)
    assert volume["hostPath"]["path"] == str(Path(LIBRARY).parent)
    assert parsed(one["args"][1], one["args"][2:])["folder"] == Path(mount["mountPath"])
    assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert one["securityContext"]["allowPrivilegeEscalation"] is False


def test_devices_are_given_out_by_dra_where_the_kubelet_and_the_runtime_look():
    (part,) = documents(DEPLOY / "components/dra/kustomization.yaml")
    (patch,) = part["patches"]
    assert patch["target"] == {"kind": "DaemonSet", "name": "strata-agent"}
    added = [each["value"] for each in yaml.safe_load(patch["patch"])]
    flag, user = added[:2]
    told = parsed("agent", [flag])
    assert (told["dra"], user) == (True, 0)
    hosts = {each["name"]: each["hostPath"]["path"] for each in added[2:] if "hostPath" in each}
    assert all(each["mountPath"] == hosts[each["name"]] for each in added[2:] if "mountPath" in each)
    kubelet = told["kubelet_root"]
    expected = {kubelet / "plugins" / DRIVER, kubelet / "plugins_registry", told["cdi_root"]}
    assert set(map(Path, hosts.values())) == expected
    rights_file = DEPLOY / "components/dra/rights.yaml"
    expected_rights = rights(kinds.RESOURCE_SLICE, "create", "patch") | rights(kinds.RESOURCE_CLAIM, "get")
    assert role_rights(rights_file, "strata-agent-dra") == expected_rights


# What each part does to the API server. A right is ((group, resource), verb) or ((group, resource, name), verb).

READS = {((kind.group, kind.plural), verb) for kind in WATCHED for verb in ("list", "watch")}


def rights(kind: kinds.ObjectKind, *verbs: str, sub: str = "", name: str = "") -> set:
    resource = f"{kind.plural}/{sub}" if sub else kind.plural
    return {((kind.group, resource, name) if name else (kind.group, resource), verb) for verb in verbs}


USES = {
    "agent": rights(kinds.COMPUTE_NODE, "create", "patch") | rights(kinds.COMPUTE_NODE, "patch", sub="status"),
    "extender": READS,
    "webhook": READS
    | rights(kinds.SECRET, "create")
    | rights(kinds.SECRET, "get", "update", name=keeper.SECRET_NAME)
    | rights(kinds.MUTATING_WEBHOOK, "get", "patch", name=keeper.NAME),
    "controller": READS
    | {right for kind in kinds.SUSPENDABLE for right in rights(kind, "patch")}
    | rights(kinds.JOB, "patch", sub="status")
    | rights(kinds.NODE, "patch")
    | rights(kinds.POD, "patch", "delete")
    | rights(kinds.POD, "create", sub="eviction")
    | rights(kinds.COMPUTE_CLAIM, "create", "patch")
    | rights(kinds.COMPUTE_CLAIM, "patch", sub="status")
    | rights(kinds.COMPUTE_NODE, "patch")
    | rights(kinds.COMPUTE_NODE, "patch", sub="status")
    | rights(kinds.EVENT, "create", "patch")
    | rights(kinds.LEASE, "create")
    | rights(kinds.LEASE, "get", "update", name=LEASE),
}


def granted(account: str) -> set:
    found = set()
    for binding in of_kind("ClusterRoleBinding", "RoleBinding"):
        if {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE} not in binding["subjects"]:
            continue
        role = named(binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for rule in role["rules"]:
            assert rule.keys() <= {"apiGroups", "resources", "resourceNames", "verbs"}
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    keys = [(group, resource, name) for name in rule.get("resourceNames", ())] or [
                        (group, resource)
                    ]
                    found |= {(key, verb) for key in keys for verb in rule["verbs"]}
    return found


@pytest.mark.parametrize("part", PARTS)
def test_a_part_may_do_what_it_does_and_nothing_else(part):
    assert granted(f"strata-{part}") == USES[part]


def test_no_right_is_for_everything():
    assert not [one for part in PARTS for one in granted(f"strata-{part}") if "*" in (*one[0], one[1])]


class Recorder:
    """An API server that has nothing, takes everything, and notes which rights that took."""

    def __init__(self):
        self.asked: set = set()
        self.there: set = set()

    def _note(self, kind, verb, name="", sub=""):
        self.asked.add(((kind.group, f"{kind.plural}/{sub}" if sub else kind.plural), name, verb))

    def get(self, kind, name, namespace=""):
        self._note(kind, "get", name)
        if kind == kinds.MUTATING_WEBHOOK:
            return named(kind.kind, name)
        return self.stored if (kind, name) in self.there else None

    def create(self, kind, obj, *, is_dry_run=False):
        self._note(kind, "create")
        self.there.add((kind, obj["metadata"]["name"]))
        self.stored = obj
        return obj

    def replace(self, kind, obj, *, subresource=""):
        self._note(kind, "update", obj["metadata"]["name"], subresource)
        return obj

    def patch(self, kind, name, namespace="", *, body, subresource="", resource_version=""):
        self._note(kind, "patch", name, subresource)
        return body

    def apply(self, kind, obj, *, subresource="", manager=""):
        self._note(kind, "patch", obj["metadata"]["name"], subresource)
        if subresource and (kind, obj["metadata"]["name"]) not in self.there:
            raise ApiFailed("it is not there", status=404)
        if not subresource:
            self._note(kind, "create")
            self.there.add((kind, obj["metadata"]["name"]))
        return obj


def are_granted(asked: set, account: str) -> bool:
    may = granted(account)
    return all((key, verb) in may or ((*key, name), verb) in may for key, name, verb in asked)


def test_the_agent_publishes_with_its_rights():
    api = Recorder()
    Publisher(api)(node("n0").fingerprint)
    assert len(api.asked) == 3
    assert are_granted(api.asked, "strata-agent")
    assert not are_granted(api.asked, "strata-extender")


@pytest.mark.real("cryptography")
def test_the_webhook_keeps_its_certificates_with_its_rights():
    from datetime import UTC, datetime, timedelta

    api, now = Recorder(), datetime.now(UTC)
    keeper.Keeper(api).look(now)
    keeper.Keeper(api).look(now + timedelta(days=70))
    assert {verb for _, _, verb in api.asked} == {"get", "create", "update", "patch"}
    assert are_granted(api.asked, "strata-webhook")


def metrics() -> dict[str, set[str]]:
    """Every metric some part shows, with its labels."""
    found = {}
    for registry in (AgentMetrics().registry, ControllerMetrics().registry, WebhookMetrics().registry):
        for collector, names in registry._collector_to_names.items():  # the library tells labels only of samples
            labels = getattr(collector, "_labelnames", None)
            found |= {name: {*(collector.labels if labels is None else labels), "le"} for name in names}

    async def page() -> str:
        frame = extender_frame(lambda: None, lambda: ())
        async with httpx.AsyncClient(transport=httpx.ASGITransport(frame), base_url="http://test") as client:
            return (await client.get("/metrics")).text

    assert "# TYPE strata_extender_seconds histogram" in asyncio.run(page())
    return found | {"strata_extender_seconds_bucket": {"verb", "le"}}


def test_the_dashboard_shows_metrics_that_there_are():
    known = metrics()
    board = json.loads((DEPLOY / "base/dashboard.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(shown) > 10
    for expression in shown:
        names = re.findall(r"strata_[a-z_]+", expression)
        assert names, expression
        assert set(names) <= known.keys()
        labels = {
            label.strip() for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(",")
        }
        labels |= set(re.findall(r"(\w+)=", expression))
        assert labels <= set.union(*(known[name] for name in names)) | {"pod"}, expression


def test_the_dashboards_panels_do_not_overlap():
    board = json.loads((DEPLOY / "base/dashboard.json").read_text())
    cells = [
        (place["x"] + dx, place["y"] + dy)
        for place in (panel["gridPos"] for panel in board["panels"])
        for dx in range(place["w"])
        for dy in range(place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


@pytest.mark.parametrize("folder", [".", "overlays/cert-manager"])
def test_kustomize_renders_it(folder):
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl")
    shown = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / folder)], capture_output=True, text=True, check=True
    )
    objects = list(yaml.safe_load_all(shown.stdout))
    found = {(one["kind"], one["metadata"]["name"]) for one in objects}
    assert {(one["kind"], one["metadata"]["name"]) for one in WORKLOADS} <= found
    images = {
        one["image"]
        for workload in objects
        if workload["kind"] in ("Deployment", "DaemonSet")
        for kind in ("initContainers", "containers")
        for one in workload["spec"]["template"]["spec"].get(kind, ())
    }
    assert images == {"strata:latest"}
    own = {(kind, "strata-webhook") for kind in ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")}
    assert own & found == (own if folder == "." else set())
    if folder != ".":
        (certificate,) = (one for one in objects if one["kind"] == "Certificate")
        assert certificate["spec"]["dnsNames"] == [f"{keeper.NAME}.{keeper.NAMESPACE}.svc"]
        (hook,) = (one for one in objects if one["kind"] == "MutatingWebhookConfiguration")
        said = f"{NAMESPACE}/{certificate['metadata']['name']}"
        assert hook["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": said}
