"""Lint: each wrong policy has its token at its place, and what is right has none."""

from __future__ import annotations

import copy
import json
from typing import get_args

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from strata.cli.main import cli
from strata.host.policy.codec import TYPES, read
from strata.host.policy.lint.explain import explain
from strata.host.policy.lint.finding import SEVERITY
from strata.host.policy.lint.policy import lint
from strata.host.policy.policy import U32, U64, GrowthAlgorithm
from strata.reasons import REASONS
from tests.host.policy.layers_of import parse
from tests.host.policy.lint.wrong_policies import OPEN, REST, RIGHT, WRONG, grouped, layer


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_policy_has_its_token_at_its_place(wrong):
    found = lint(read(wrong.policy), site=wrong.site)
    assert (wrong.token, wrong.path) in {(one.reason.token, one.reason.subject) for one in found}


def test_the_corpus_has_every_token_there_is():
    assert {wrong.token for wrong in WRONG} == set(SEVERITY)
    assert set(SEVERITY) <= set(REASONS)
    assert len({json.dumps(wrong.policy) for wrong in WRONG}) >= 100


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_gets_no_finding(name):
    policy, site = RIGHT[name]
    assert [finding for finding in lint(read(policy), site=site) if finding.severity != "note"] == []


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_every_finding_is_one_sentence_with_a_severity(wrong):
    for finding in lint(read(wrong.policy), site=wrong.site):
        data = finding.to_dict()
        assert list(data) == ["token", "path", "severity", "sentence"]
        assert data["severity"] in ("error", "warning", "note")
        assert data["sentence"].strip()
        assert "\n" not in data["sentence"]


def test_one_bad_layer_does_not_hide_the_others_faults():
    policy = [layer([[{"CommPrefix": 1}]]), layer(None, grouped(preemt=True), name="two"), REST]
    assert [finding.reason.token for finding in lint(read(policy))] == ["policy-unreadable", "key-unknown"]


def test_a_misspelt_key_is_told_beside_the_missing_one_it_was_meant_for():
    wrong = {"name": "a", "matches": [[]], "kind": {"Grouped": {"util_rnge": [0.1, 0.2]}}, "weigth": 3}
    assert [(one["token"], one["path"]) for one in (finding.to_dict() for finding in lint(read([wrong])))] == [
        ("policy-unreadable", "[0].kind.Grouped.util_range"),
        ("key-unknown", "[0].weigth"),
        ("key-unknown", "[0].kind.Grouped.util_rnge"),
    ]


def test_what_cannot_be_read_hides_no_fault_beside_it():
    matches = [
        [{"CommPrefix": "sixteen_bytes_xx"}],
        [{"UserIDEquals": 3}],
        [{"UsedGpuTid": True}, {"NiceAbove": "x"}],
    ]
    wrong = layer(matches, {"Confined": {"util_range": [40, 85], "cpus_range": [4, 2], "weight": "high"}})
    found = [finding.to_dict() for finding in lint(read([wrong, REST]))]
    assert {(one["token"], one["path"]) for one in found} == {
        ("match-text-panics", "[0].matches[0][0].CommPrefix"),
        ("policy-unreadable", "[0].matches[1][0].UserIDEquals"),
        ("policy-unreadable", "[0].matches[2][1].NiceAbove"),
        ("policy-unreadable", "[0].kind.Confined.weight"),
        ("util-range-percent", "[0].kind.Confined.util_range"),
        ("cpus-range-wrong", "[0].kind.Confined.cpus_range"),
    }


JUNK = st.sampled_from([None, "x", -1, 1.5, True, [], {}, [[]], [None], {"CommPrefix": 1}])


@given(st.sampled_from(WRONG), JUNK, st.data())
def test_whatever_a_part_is_the_rest_is_looked_at(wrong, junk, data):
    policy = copy.deepcopy(wrong.policy)
    assume(isinstance(policy, list))
    places = [(box, key) for box in _boxes(policy) for key in (box if isinstance(box, dict) else range(len(box)))]
    assume(places)
    box, key = data.draw(st.sampled_from(places))
    box[key] = junk
    said = read(policy)
    found = lint(said, site=wrong.site)
    assert sum(one.reason.token == "policy-unreadable" for one in found) == len(said.faults)


def _boxes(value):
    if isinstance(value, (dict, list)):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _boxes(inner)


def test_findings_stand_in_the_order_of_the_file_errors_first():
    policy = [layer(None, grouped(idle_smt=True, perf=4096)), layer([[]], name="two"), REST]
    assert [finding.reason.token for finding in lint(read(policy))] == [
        "perf-too-high",
        "key-deprecated",
        "catch-all-early",
    ]


def run(*arguments):
    return CliRunner().invoke(cli, ["host", "lint", *arguments])


def test_the_command_exits_4_when_there_is_an_error_and_0_when_not(tmp_path):
    bad, good = tmp_path / "bad.json", tmp_path / "good.json"
    bad.write_text(json.dumps([layer(None, grouped(preemt=True)), REST]))
    good.write_text(json.dumps([layer(), REST]))
    refused = run(str(bad), "-o", "json", "--elsewhere")
    assert refused.exception.exit_code == 4
    (finding,) = json.loads(refused.stdout)["findings"]
    assert finding == {
        "token": "key-unknown",
        "path": "[0].kind.Grouped.preemt",
        "severity": "error",
        "sentence": "unknown key: 'preemt' is silently ignored; did you mean preempt?",
    }
    passed = run(str(good), "-o", "json", "--elsewhere")
    assert (passed.exit_code, json.loads(passed.stdout)) == (0, {"findings": []})


def test_explain_says_in_words_what_each_layer_does(tmp_path):
    file = tmp_path / "policy.json"
    kind = grouped(preempt=True, yield_ignore=0.9, cpus_range=[2, 4], protected=True)
    file.write_text(json.dumps([layer([[{"CmdJoin": "train"}]], kind, name="critical"), REST]))
    shown = run(str(file), "--explain", "--elsewhere").stdout
    assert "1. critical" in shown
    assert "the thread labelled itself 'train'" in shown
    assert "Owns 2 to 4 CPUs; takes more while they are over 80% busy, gives back under" in shown
    assert "Every thread, of those that no layer before took." in shown
    words = json.loads(run(str(file), "--explain", "--elsewhere", "-o", "json").stdout)["layers"]
    assert [one["name"] for one in words] == ["critical", "rest"]


VALUES = {
    bool: True,
    float: 0.5,
    tuple[float, float]: [0.1, 0.2],
    U32: 7,
    U64: 7,
}
OTHERS = {
    "membw_gb": 0.5,
    "growth_algo": "Topo",
    "placement": "Sticky",
    "cpus_range": [1, 3],
    "cpus_range_frac": [0.1, 0.5],
    "nodes": [1],
    "llcs": [1],
    "disallow_open_after_us": 7,
    "disallow_preempt_after_us": 7,
    "idle_resume_us": 7,
    "idle_smt": True,
    "allow_node_aligned": True,
}
FIELDS = [(kind, key) for kind, types in TYPES.items() for key in types]
SILENT = {"idle_smt", "allow_node_aligned"} | {("Open", "growth_algo"), ("Open", "util_peak_half_life_ms")}
"""Keys that do nothing, anywhere or in a kind."""


@pytest.mark.parametrize(("kind", "key"), FIELDS)
def test_explain_has_words_for_every_field_that_does_something(kind, key):
    base = {} if kind == "Open" else {"util_range": [0.4, 0.8]}
    if key == "preempt_first":
        base["preempt"] = True
    value = OTHERS[key] if key in OTHERS else VALUES[TYPES[kind][key]]
    usual, other = (
        explain(parse([{"name": "a", "matches": [[]], "kind": {kind: body}}]))
        for body in (base, {**base, key: value})
    )
    assert (usual != other) == (key not in SILENT and (kind, key) not in SILENT)


@pytest.mark.parametrize("growth", get_args(GrowthAlgorithm)[1:])
def test_explain_has_words_for_every_order_of_growth(growth):
    (said,) = explain(parse([layer([[]], grouped(growth_algo=growth))]))
    assert any(sentence.startswith("Takes CPUs ") for sentence in said.how)


@pytest.mark.parametrize("text", ["", "[", "[{]", "[NaN]", "\x00\xff", "[" * 100_000])
def test_what_is_no_json_is_a_bad_file_and_no_finding(tmp_path, text):
    file = tmp_path / "policy.json"
    file.write_text(text)
    result = run(str(file))
    assert result.exception.exit_code == 2
    assert "policy.json" in str(result.exception)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[{"name": "a"},\n {"name": NaN}]', "policy.json:2:11: not JSON: NaN is not a number"),
        ('[{"x": "NaN", "y":\n\t-Infinity}]', "policy.json:2:2: not JSON: -Infinity is not a number"),
        ("[1e999]", "policy.json:1:2: not JSON: 1e999 is out of range"),
        (f"[{'9' * 5000}]", "policy.json:1:2: not JSON: 9999"),
        (r'[{"name": "\ud800"}]', "policy.json:1:11: a lone surrogate"),
        (r'[{"\udc00": 1}]', "policy.json:1:3: a lone surrogate"),
        ("[" * 128 + "]" * 128, "policy.json:1:128: nested more than 127 deep"),
        ("\ufeff[]", "policy.json:1:1: begins with a byte order mark"),
        ("[] // the end", "policy.json:1:4: not JSON"),
        ("[1,]", "policy.json:1:4: not JSON"),
    ],
)
def test_what_serde_json_does_not_read_is_told_at_its_place(tmp_path, text, place):
    file = tmp_path / "policy.json"
    file.write_text(text)
    result = run(str(file))
    assert result.exception.exit_code == 2
    assert place in str(result.exception)


def test_a_pair_of_surrogates_and_a_word_in_quotes_are_text(tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(json.dumps([layer(comment="NaN \U0001f600"), REST]))
    assert run(str(file), "--elsewhere").exit_code == 0


def test_people_see_line_and_column_of_what_is_wrong(tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(
        json.dumps([layer(None, grouped(preemt=True)), layer([[]], {"Grouped": {}}, name="b")], indent=1)
    )
    shown = run(str(file), "--elsewhere").stdout
    lines = file.read_text().splitlines()
    at = {line.split(": ")[2]: line.split(":")[1:3] for line in shown.splitlines() if line.startswith(str(file))}
    line, column = map(int, at["key-unknown"])
    assert lines[line - 1][column - 1 :].startswith('"preemt"')
    line, column = map(int, at["policy-unreadable"])  # util_range is not there: what it is missing from is
    assert lines[line - 1][column - 1 :].startswith('"Grouped": {}')


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "a", "matches": [[]], "kind": {"Open": {}, "Open": {"fifo": true}}}]',
        '[{"name": "a", "matches": [[{"CommPrefix": "a", "CommPrefix": "b"}]], "kind": {"Open": {}}}]',
    ],
)
def test_an_alternative_given_twice_is_unreadable(tmp_path, text):
    file = tmp_path / "policy.json"
    file.write_text(text)
    result = run(str(file), "-o", "json", "--elsewhere")
    assert "policy-unreadable" in {one["token"] for one in json.loads(result.stdout)["findings"]}


def test_a_key_given_twice_is_refused_as_scx_layered_does(tmp_path):
    file = tmp_path / "policy.json"
    file.write_text('[{"name": "a", "name": "b", "matches": [[]], "kind": {"Open": {}}}]')
    result = run(str(file), "-o", "json")
    assert "key given twice" in result.stdout


@pytest.mark.parametrize(("key", "is_read"), [("weight", False), ("yield_ignore", True)], ids=["integer", "real"])
def test_minus_nought_is_a_real_number(tmp_path, key, is_read):
    # serde_json reads -0 as a floating point number, which it refuses where an integer is wanted.
    file = tmp_path / "policy.json"
    rest = json.dumps([{**REST, "kind": {"Grouped": {"util_range": [0.1, 0.6], key: 9}}}])
    file.write_text(rest.replace("9}", "-0}"))
    assert (run(str(file), "--elsewhere").exit_code == 0) == is_read


def test_a_remark_about_open_layers_is_made_once():
    layers = [{"name": f"n{n}", "matches": [[{"CommPrefix": f"{n}"}]], "kind": {"Open": {}}} for n in range(5)]
    found = [one.reason.token for one in lint(read([*layers, OPEN]))]
    assert found.count("open-limits-early") == 1
