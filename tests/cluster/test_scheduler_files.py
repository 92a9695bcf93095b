"""Schedulers' configurations in `deploy/scheduler`: they name what is served, and what the profiles are for."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import CliRunner

from strata.cli.main import cli
from strata.cluster.api.profile_schema import bundled_profiles
from strata.cluster.extender.app import make_frame
from tests import ROOT

FOLDER = ROOT / "deploy/scheduler"
RESOURCES = sorted({profile.resource for profile in bundled_profiles()})


def served():
    return {route.path for route in make_frame(lambda: None, lambda: ()).app.routes}


def test_kube_scheduler_asks_by_names_for_the_devices_of_all_profiles():
    config = yaml.safe_load((FOLDER / "config.yaml").read_text())
    (extender,) = config["extenders"]
    assert extender["nodeCacheCapable"]
    assert [one["name"] for one in extender["managedResources"]] == RESOURCES
    assert {f"/v1/{extender[verb]}" for verb in ("filterVerb", "prioritizeVerb")} <= served()
    assert config["percentageOfNodesToScore"] == 100


def test_volcano_asks_what_is_served_too():
    config = yaml.safe_load((FOLDER / "volcano.yaml").read_text())
    tiers = yaml.safe_load(config["data"]["volcano-scheduler.conf"])["tiers"]
    (said,) = (one["arguments"] for tier in tiers for one in tier["plugins"] if one["name"] == "extender")
    verbs = {value for key, value in said.items() if key.endswith("Verb")}
    assert verbs == {"predicate", "prioritize"}
    assert {f"/volcano/{verb}" for verb in verbs} <= served()
    assert said["extender.managedResources"] == RESOURCES


@pytest.mark.parametrize("output", ["yaml", "json"])
def test_kueues_queue_has_flavors_that_are_printed(output):
    result = CliRunner().invoke(cli, ["kube", "flavors", "-o", output])
    assert result.exit_code == 0
    items = json.loads(result.stdout)["items"] if output == "json" else list(yaml.safe_load_all(result.stdout))
    queue, local = yaml.safe_load_all((FOLDER / "kueue.yaml").read_text())
    named = {flavor["name"] for group in queue["spec"]["resourceGroups"] for flavor in group["flavors"]}
    assert named <= {one["metadata"]["name"] for one in items}
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]


@pytest.mark.real("lightkube")
def test_the_extender_says_where_its_cluster_should_come_from(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    result = CliRunner().invoke(cli, ["kube", "extender", "--kubeconfig", str(tmp_path / "none"), "--port", "0"])
    assert result.exit_code != 0
    assert "none" in str(result.output) + str(result.exception)
