"""A policy file: read without torch, explained, and the safe rule beneath it whatever is wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.decision import Reason
from strata.errors import BadFile, UsageError
from strata.learning.tables.random_tables import random_table
from strata.training.hi_ppo import policy as policies
from strata.training.hi_ppo.explanation import explain
from strata.training.hi_ppo.features import CONTEXT, FEATURES, features
from strata.training.hi_ppo.policy import load_policy, safe_policy
from strata.training.replan.options import Options
from tests.support.laws import examples


def drawn(seed: int, rows: int = 32) -> Options:
    rng = np.random.default_rng(seed)
    table = random_table(rng)
    states = table.chains.paths(1, rows, rng)[:, 0]
    return table.options(states, rng.integers(-1, table.reward.shape[1], size=rows))


def changed(options: Options, **arrays) -> Options:
    names = ("value", "cost", "links", "current", "legal", "preference", "inside")
    return Options(**{name: arrays.get(name, getattr(options, name)) for name in names})


@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
@examples(20)
def test_features_do_not_depend_on_the_unit_of_value(seed, unit):
    options = drawn(seed)
    scaled = changed(options, value=options.value * unit, cost=options.cost * unit)
    for one, other in zip(features(options), features(scaled), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@given(st.integers(0, 1000))
@examples(20)
def test_another_order_of_options_is_the_same_decision(seed):
    options, rng = drawn(seed), np.random.default_rng(seed)
    # Of two options that are equally good now, the first stands for the best: here no two are.
    options = changed(options, value=options.value * rng.uniform(1.0, 1.0001, options.value.shape))
    order = rng.permutation(options.legal.shape[1])
    place = np.append(np.argsort(order), -1)
    moved = changed(
        options,
        value=options.value[:, order],
        cost=options.cost[:, order],
        links=options.links[:, order],
        legal=options.legal[:, order],
        current=place[options.current],
    )
    policy = load_policy()
    np.testing.assert_allclose(policy.logits(moved), policy.logits(options)[:, order], atol=1e-3)


def test_illegal_options_change_nothing():
    options = drawn(3)
    pad = ((0, 0), (0, 5))
    wider = changed(
        options,
        value=np.pad(options.value, (*pad, (0, 0)), constant_values=99.0),
        cost=np.pad(options.cost, pad),
        links=np.pad(options.links, (*pad, (0, 0))),
        legal=np.pad(options.legal, pad),
    )
    policy = load_policy()
    count = options.legal.shape[1]
    np.testing.assert_allclose(policy.logits(wider)[:, :count], policy.logits(options), atol=1e-4)
    np.testing.assert_array_equal(policy.choose(wider), policy.choose(options))


def test_a_value_that_is_not_a_number_leaves_the_decision_to_the_safe_rule_and_says_so():
    options = drawn(7)
    value = options.value.copy()
    value[4, 1, 2] = np.nan
    picks, reasons = load_policy().decide(changed(options, value=value))
    assert reasons[4] is not None
    assert reasons[4].token == "figures-not-finite"
    assert options.legal[np.arange(len(picks)), picks].all()
    others = np.arange(len(options)) != 4
    np.testing.assert_array_equal(picks[others], load_policy().choose(options)[others])


def test_a_policy_of_another_version_is_answered_with_the_safe_rule(monkeypatch):
    monkeypatch.setattr(policies, "VERSION", 999)
    policy = load_policy()
    assert [note.token for note in policy.notes] == ["policy-version"]
    options = drawn(9)
    picks, reasons = policy.decide(options)
    np.testing.assert_array_equal(picks, safe_policy().choose(options))
    assert {reason.token for reason in reasons if reason} >= {"policy-version"}


def test_what_is_no_policy_is_said(tmp_path):
    file = tmp_path / "p.onnx"
    with pytest.raises(UsageError, match="no such policy file"):
        load_policy(file)
    file.write_bytes(b"not a model")
    with pytest.raises(BadFile, match="not an ONNX model"):
        load_policy(file)


def test_the_bundled_policy_has_its_record():
    record = load_policy().record
    assert record["seed"] is not None
    assert record["trained_at"]
    assert record["most_domains"] >= 32
    json.dumps(record, allow_nan=False)


def test_the_untrained_rule_decides_where_the_record_says_that_it_earns_more_and_says_so():
    bundled, options = load_policy(), drawn(5)
    assert set(bundled.record["decides"]) == {"one job", "several jobs"}
    policy = replace(bundled, record={"decides": {"one job": "untrained", "several jobs": "network"}})
    assert policy.among(4) is policy
    alone = policy.among(1)
    np.testing.assert_array_equal(alone.choose(options), safe_policy().choose(options))
    assert [note.token for note in alone.notes] == ["rule-by-record"]
    silent = replace(policy, record={})
    assert silent.among(1) is silent
    assert safe_policy().among(1).notes == ()


def test_an_explanation_names_the_state_what_tipped_it_and_what_keeping_costs():
    options = drawn(11, rows=1)
    options = changed(options, current=np.array([0]))
    policy = load_policy()
    names = [f"plan {k}" for k in range(options.legal.shape[1])]
    told = explain(policy, options, names, pick=int(policy.choose(options)[0]))
    assert told.in_use == "plan 0"
    assert set(told.state) == {*FEATURES, *CONTEXT}
    assert told.runner_up not in (None, told.taken)
    assert told.tipped
    assert set(told.tipped) <= set(FEATURES)
    assert list(told.keeping) == [f"over_{span}_steps" for span in (1, 2, 4, 8, 16)]
    json.dumps(told.to_dict(), allow_nan=False)


def test_what_tipped_a_decision_is_nothing_for_two_equal_options():
    still = Options(
        np.ones((1, 2, 5)), np.zeros((1, 2)), np.ones((1, 2, 4)), np.array([-1]), np.ones((1, 2), bool),
        np.array([[1.0, 0.0, 0.0]]),
    )  # fmt: skip
    told = explain(load_policy(), still, ["a", "b"], pick=0)
    assert told.tipped == {}
    assert told.lead == pytest.approx(0.0, abs=1e-4)
    assert told.keeping == {}


def test_the_safe_rule_explains_itself_without_a_network():
    options = changed(drawn(13, rows=1), current=np.array([0]))
    note = Reason("policy-version", "", {"found": "0", "wanted": 1})
    names = [str(k) for k in range(options.legal.shape[1])]
    told = explain(safe_policy(note), options, names, pick=0, reasons=[note])
    assert told.tipped == {}
    assert told.to_dict()["reasons"][0]["token"] == "policy-version"


def test_a_policy_whose_training_diverged_is_refused_and_not_followed_in_silence(tmp_path):
    whole, said = policies.BUNDLED.read_bytes(), []
    middle = len(whole) // 5  # inside a matrix; where its floats begin is not known, so all four places are tried
    for start in range(middle, middle + 4):
        file = tmp_path / f"{start}.onnx"
        file.write_bytes(whole[:start] + 100 * np.float32(np.nan).tobytes() + whole[start + 400 :])
        try:
            load_policy(file)
        except BadFile as error:
            said.append(str(error))
    assert len(said) == 1
    assert "not finite" in said[0]
