"""kube-scheduler itself asks the extender, with the configuration that `deploy/scheduler` gives it."""

from __future__ import annotations

import json
import urllib.request

import pytest
import yaml

from strata.cluster.api.kinds import POD
from tests import ROOT
from tests.cluster import objects
from tests.cluster.builders import A100, B3
from tests.cluster.integration.strata_on_kubernetes import Strata
from tests.support.real_processes import until

CONFIG = ROOT / "deploy/scheduler/config.yaml"
GPU = objects.RESOURCE[A100]


@pytest.fixture
def extended(plane, api, tmp_path):
    """strata's extender, and kube-scheduler beside that asks it."""
    with Strata(plane, api, tmp_path) as strata:
        strata.extender = strata.part("extender")
        until(strata.extender.is_ready, lambda: strata.extender.log)
        config = yaml.safe_load(CONFIG.read_text())
        config["extenders"][0]["urlPrefix"] = f"{strata.extender.url}/v1"
        told = {key: config[key] for key in ("extenders", "percentageOfNodesToScore")}
        with plane.scheduler(profiles=config["profiles"], **told):
            yield strata


def asking(name, namespace, count, **words):
    """A pod for the scheduler, without the webhook's label: nobody has chosen its node yet."""
    pod = objects.pod(name, resource=GPU if count else "", count=count)
    pod["metadata"] |= {"namespace": namespace, "annotations": objects.asks(**words) if words else {}}
    pod["spec"]["schedulerName"] = "strata-scheduler"
    return pod


def scores(strata, pod, names):
    """What the extender would say now."""
    body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
    request = urllib.request.Request(f"{strata.extender.url}/v1/prioritize", body)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return {one["Host"]: one["Score"] for one in json.load(answer)}


def test_a_pod_goes_where_the_router_would_and_not_where_the_scheduler_would(extended, api, namespace, nodes):
    for name in ("n1", "n2", "n3"):
        extended.devices(nodes, name)
    first = asking("first", namespace, 4)
    first["spec"]["nodeName"] = "n2"
    api.create(POD, first)
    nodes.running("first", namespace)
    second = asking("second", namespace, 2, devices=2)
    until(lambda: scores(extended, second, ["n1", "n2", "n3"])["n2"] == 10, lambda: extended.extender.log)
    # kube-scheduler's own plugins would spread; the router fills the node that is begun.
    api.create(POD, second)
    assert nodes.running("second", namespace)["spec"]["nodeName"] == "n2"


def test_a_pod_that_fits_nowhere_is_told_our_reasons_and_tried_again_when_there_is_room(
    extended, api, namespace, nodes
):
    extended.devices(nodes, "n1")
    extended.devices(nodes, "a1", B3)
    until(lambda: scores(extended, asking("p", namespace, 1, devices=1), ["n1"])["n1"] == 10, lambda: "n1")
    # One card is left to the scheduler and two to the router, whose word counts: the devices are not well.
    extended.found("n1", sick=range(7))
    pod = asking("waits", namespace, 2, accelerator=A100, substitution="never")
    until(lambda: scores(extended, pod, ["n1"])["n1"] == 0, lambda: "devices not to be well")
    api.create(POD, pod)

    def message():
        conditions = (api.get(POD, "waits", namespace).get("status") or {}).get("conditions") or ()
        return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")

    until(lambda: "devices-busy: " in message(), message)
    extended.found("n1")
    # kube-scheduler looks once at what changed, and then not for minutes: the extender has to know by then.
    until(lambda: scores(extended, pod, ["n1"])["n1"] > 0, lambda: "devices to be well")
    api.patch(POD, "waits", namespace, body={"metadata": {"annotations": {"look": "again"}}})
    assert nodes.running("waits", namespace)["spec"]["nodeName"] == "n1"


def test_annotations_that_cannot_be_read_are_told_on_the_pod(extended, api, namespace, nodes):
    extended.devices(nodes, "n1")
    api.create(POD, asking("odd", namespace, 1, vram="lots"))

    def told():
        conditions = (api.get(POD, "odd", namespace).get("status") or {}).get("conditions") or ()
        return [one.get("message", "") for one in conditions]

    until(lambda: any("ai.compute/vram" in one for one in told()), told)


def test_without_the_extender_only_pods_that_ask_for_accelerators_wait(extended, api, namespace, nodes):
    extended.devices(nodes, "n1")
    assert extended.extender.end() == 0
    api.create(POD, asking("web", namespace, 0))
    nodes.running("web", namespace)
    api.create(POD, asking("train", namespace, 1))

    def conditions():
        return (api.get(POD, "train", namespace).get("status") or {}).get("conditions") or ()

    until(lambda: any(one.get("status") == "False" for one in conditions()), conditions)
    assert not api.get(POD, "train", namespace)["spec"].get("nodeName")
