from __future__ import annotations

import json

import yaml
from click.testing import CliRunner

from strata.cli.main import cli
from strata.cluster.api.profile_schema import bundled_profiles


def crds(*arguments):
    result = CliRunner().invoke(cli, ["kube", "crds", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_definitions_are_printed_as_documents_kubectl_applies():
    documents = list(yaml.safe_load_all(crds()))
    assert [one["metadata"]["name"] for one in documents] == [
        "computenodes.ai.compute",
        "runtimeprofiles.ai.compute",
        "computeclaims.ai.compute",
    ]


def test_json_is_one_list_of_the_same():
    listed = json.loads(crds("-o", "json"))
    assert (listed["kind"], listed["items"]) == ("List", list(yaml.safe_load_all(crds())))


def test_the_bundled_profiles_are_printed_when_asked_for():
    documents = list(yaml.safe_load_all(crds("--profiles")))
    assert len(documents) == 3 + len(bundled_profiles())
    assert {one["kind"] for one in documents[3:]} == {"RuntimeProfile"}


def test_no_yaml_reference_is_left_for_the_reader_to_resolve():
    assert "*id" not in crds("--profiles")
