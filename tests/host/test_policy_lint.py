"""Lint: each wrong policy has its token at its place, and what is right has none."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from strata.cli.main import cli
from strata.host.layers.codec import read
from strata.host.lint.finding import SEVERITY
from strata.host.lint.policy import lint
from strata.reasons import REASONS
from wrong_policies import REST, RIGHT, WRONG, grouped, layer


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
        "sentence": "no such key: 'preemt' is dropped without a word; did you mean preempt?",
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


@pytest.mark.parametrize("text", ["", "[", "[{]", "[NaN]", "\x00\xff", "[" * 100_000])
def test_what_is_no_json_is_a_bad_file_and_no_finding(tmp_path, text):
    file = tmp_path / "policy.json"
    file.write_text(text)
    result = run(str(file))
    assert result.exception.exit_code == 2
    assert "policy.json" in str(result.exception)


def test_a_key_given_twice_is_refused_as_scx_layered_does(tmp_path):
    file = tmp_path / "policy.json"
    file.write_text('[{"name": "a", "name": "b", "matches": [[]], "kind": {"Open": {}}}]')
    result = run(str(file), "-o", "json")
    assert "key given twice" in result.stdout
