from __future__ import annotations

import json
import re

import pytest

from strata.cluster.api.crd.manifests import crds, profiles, structural
from strata.cluster.api.crd.profile_schema import MountSpec
from tests.cluster.api.crd.rules import object_faults, schema_faults

CRDS = {crd["spec"]["names"]["kind"]: crd for crd in crds()}


def schema_of(kind):
    return CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def rules_in(schema):
    if isinstance(schema, dict):
        yield from schema.get("x-kubernetes-validations", ())
        for value in schema.values():
            yield from rules_in(value)


def nodes_in(schema, path=""):
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes_in(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from nodes_in(schema[key], f"{path}[]")


@pytest.mark.parametrize("kind", ["ComputeNode", "RuntimeProfile", "ComputeClaim"])
def test_every_schema_is_structural(kind):
    assert list(schema_faults(schema_of(kind))) == []


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        ({"properties": {}}, "no type"),
        ({"type": "string", "$ref": "#/x", "maxLength": 1}, "$ref"),
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "no maxLength"),
        ({"type": "integer", "exclusiveMinimum": 1}, "flag"),
        ({"type": "string", "maxLength": 9, "pattern": "a"}, "anchors"),
        ({"type": "string", "maxLength": 9, "pattern": "^(?=a)$"}, "RE2"),
        ({"type": "array", "maxItems": 1}, "no items"),
    ],
)
def test_the_rules_of_structural_schemas_find_what_is_wrong(broken, fault):
    assert any(fault in one for one in schema_faults(broken))


def test_a_definition_has_one_stored_version_columns_short_names_and_a_category():
    for crd in CRDS.values():
        (version,) = crd["spec"]["versions"]
        assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
        names = crd["spec"]["names"]
        assert crd["metadata"]["name"] == f"{names['plural']}.ai.compute"
        assert names["categories"] == ["strata"]
    assert [crd["spec"]["names"]["shortNames"] for crd in CRDS.values()] == [["cnode"], ["rtp"], ["cclaim"]]
    assert [crd["spec"]["scope"] for crd in CRDS.values()] == ["Cluster", "Cluster", "Namespaced"]


def test_what_agents_and_controllers_write_is_a_subresource():
    has_status = {kind: "subresources" in crd["spec"]["versions"][0] for kind, crd in CRDS.items()}
    assert has_status == {"ComputeNode": True, "RuntimeProfile": False, "ComputeClaim": True}


def test_every_column_shows_a_field_there_is():
    for kind, crd in CRDS.items():
        paths = {path for path, _ in nodes_in(schema_of(kind))}
        for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]:
            path = re.sub(r"\[.*?\]", "[]", column["jsonPath"])
            assert path in paths or path == ".metadata.creationTimestamp"


def test_every_field_a_rule_speaks_of_is_one_of_its_schema():
    found = 0
    for kind in CRDS:
        for _, schema in nodes_in(schema_of(kind)):
            for rule in schema.get("x-kubernetes-validations", ()):
                names = set(re.findall(r"self\.([A-Za-z0-9]+)\b(?!\()", rule["rule"]))
                assert names <= schema.get("properties", {}).keys()
                found += bool(names)
    assert found >= 8


def test_a_rule_guards_every_optional_field_it_reads():
    for kind in CRDS:
        for _, schema in nodes_in(schema_of(kind)):
            for rule in schema.get("x-kubernetes-validations", ()):
                for name in set(re.findall(r"self\.([A-Za-z0-9]+)\b(?!\()", rule["rule"])):
                    assert f"has(self.{name})" in rule["rule"] or name in schema.get("required", ())


def test_a_definition_is_far_smaller_than_what_etcd_takes():
    assert max(len(json.dumps(crd)) for crd in CRDS.values()) < 100_000


def test_the_bundled_profiles_are_objects_of_their_definition():
    for profile in profiles():
        assert list(object_faults(schema_of("RuntimeProfile"), profile)) == []


@pytest.mark.parametrize(
    ("path", "is_good"),
    [
        ("/usr/local/Ascend/driver", True),
        ("/usr/local/.hidden/..data/", True),
        ("/", False),
        ("//etc", False),
        ("/a/../etc", False),
        ("/a/..", False),
        ("/./etc", False),
        ("a", False),
        ("/a\nb", False),
        ("/a:ro", False),
        ("/$HOME", False),
    ],
)
def test_paths_of_the_host_are_told_apart_by_the_api_server_too(path, is_good):
    spec = schema_of("RuntimeProfile")["properties"]["spec"]
    schema = spec["properties"]["mounts"]["items"]["properties"]["hostPath"]
    assert (not list(object_faults(schema, path))) == is_good


@pytest.mark.parametrize(
    ("path", "is_good"),
    [
        ("/usr/bin/cnmon", True),
        ("/etc/hccn.conf", True),
        ("/etcetera", True),
        ("/runner", True),
        ("/etc", False),
        ("/etc/", False),
        ("/etc/kubernetes/pki", False),
        ("/proc/1/root", False),
        ("/var/run/docker.sock", False),
        ("/var/lib", False),
    ],
)
def test_the_rule_for_folders_of_the_host_says_what_our_own_check_says(path, is_good):
    (rule,) = rules_in(structural(MountSpec.model_json_schema(by_alias=True)))
    pattern = re.fullmatch(r"!self\.matches\('(.*)'\)", rule["rule"])[1]
    assert (re.search(pattern, path) is None) == is_good


@pytest.mark.parametrize(
    ("text", "is_good"),
    [("a b: c", True), ("$HOME", True), ("a$", True), ("$(X)", False), ("$$(X)", False), ("a\nb", False)],
)
def test_a_variables_value_is_told_apart_by_the_api_server_too(text, is_good):
    schema = schema_of("RuntimeProfile")["properties"]["spec"]["properties"]["env"]
    assert (not list(object_faults(schema, {"A": text}))) == is_good
