"""Policies of scx_layered to JSON and back: nothing is lost, whatever it is."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.host.policy.codec import LAYER_KEYS, TYPES, dump, read
from strata.host.policy.policy import I32, KINDS, MATCHERS, GrowthAlgorithm, Placement
from strata.host.policy.policy import U32 as RUST_U32
from strata.host.policy.policy import U64 as RUST_U64
from tests.host.policy.layers_of import parse
from tests.support.laws import examples

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
REAL = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
FEW = examples(40)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    str: TEXT,
    float: REAL,
    RUST_U32: U32,
    RUST_U64: U64,
    I32: st.integers(-(2**31), 2**31 - 1),
    tuple[float, float]: st.tuples(REAL, REAL).map(list),
}
OTHERS = {
    "allow_node_aligned": st.booleans(),
    "idle_smt": st.booleans(),
    "disallow_open_after_us": U64,
    "disallow_preempt_after_us": U64,
    "growth_algo": st.sampled_from(get_args(GrowthAlgorithm)),
    "placement": st.sampled_from(get_args(Placement)),
    "idle_resume_us": U32,
    "nodes": st.lists(U64, max_size=3),
    "llcs": st.lists(U64, max_size=3),
    "cpus_range": st.tuples(U64, U64).map(list),
    "cpus_range_frac": st.tuples(REAL, REAL).map(list),
    "membw_gb": REAL,
    "NSPIDEquals": st.tuples(U64, U32).map(list),
    "AvgRuntime": st.tuples(U64, U64).map(list),
}
FIELDS = {name: [key for key in fields(kind) if key.name != "unknown"] for name, kind in KINDS.items()}
MATCHES = st.one_of(
    *(
        st.fixed_dictionaries({kind: OTHERS[kind] if kind in OTHERS else VALUES[form]})
        for kind, form in MATCHERS.items()
    )
)


def value(name, form):
    return OTHERS[name] if name in OTHERS else VALUES[form]


def bodies(name):
    known = {key: value(key, form) for key, form in TYPES[name].items()}
    must = {one.name: known.pop(one.name) for one in FIELDS[name] if one.default is MISSING}
    return st.fixed_dictionaries(must, optional=known)


def unknown(*known):
    return st.dictionaries(TEXT.filter(lambda key: key not in known), JSON, max_size=2)


LAYERS = st.builds(
    lambda layer, kind, body, more, extra: {
        **layer,
        "kind": {kind: {**{k: v for k, v in more.items() if k not in body}, **body}},
        **extra,
    },
    st.fixed_dictionaries(
        {"name": TEXT, "matches": st.lists(st.lists(MATCHES, max_size=3), max_size=3)},
        optional={"comment": TEXT, "template": MATCHES},
    ),
    st.shared(st.sampled_from(list(KINDS)), key="kind"),
    st.shared(st.sampled_from(list(KINDS)), key="kind").flatmap(bodies),
    unknown(*(one.name for some in FIELDS.values() for one in some)),
    unknown(*LAYER_KEYS),
)


@FEW
@given(st.lists(LAYERS, max_size=2))
def test_a_policy_is_the_same_after_a_round_trip(data):
    layers = parse(data)
    again = json.loads(json.dumps(dump(layers)))
    assert parse(again) == layers
    assert dump(parse(again)) == again


@FEW
@given(LAYERS)
def test_what_is_written_is_what_was_read_but_for_defaults(data):
    ((kind, body),) = data["kind"].items()
    (written,) = dump(parse([data]))
    defaults = {one.name: one.default for one in FIELDS[kind]}
    assert {key: written[key] for key in written if key != "kind"} == {
        key: item for key, item in data.items() if key != "kind"
    }
    for key, item in body.items():
        if key in written["kind"][kind]:
            assert written["kind"][kind][key] == item
        else:
            assert (tuple(item) if isinstance(item, list) else item) == defaults[key]


@FEW
@given(JSON | st.lists(st.dictionaries(st.sampled_from(LAYER_KEYS), JSON)))
def test_no_json_makes_the_reader_fail(data):
    found = read(data)
    assert found.faults or all(layer is not None for layer in found.layers)


def test_every_field_there_is_has_its_default_when_nothing_is_said():
    (layer,) = parse([{"name": "rest", "matches": [[]], "kind": {"Open": {}}}])
    assert layer.kind.xnuma_threshold == (0.6, 0.7)
    assert layer.kind.xnuma_threshold_delta == (0.2, 0.3)
    assert layer.kind.growth_algo == "Sticky"
    assert dump([layer]) == [{"name": "rest", "matches": [[]], "kind": {"Open": {}}}]


def test_unknown_keys_are_kept_where_they_stood():
    data = {"name": "rest", "matches": [[]], "kind": {"Open": {"colour": [1]}}, "note": {"by": "me"}}
    (layer,) = parse([data])
    assert (layer.unknown, layer.kind.unknown) == ({"note": {"by": "me"}}, {"colour": [1]})
    assert dump([layer]) == [data]


def test_all_that_cannot_be_read_is_told_at_once():
    with pytest.raises(UsageError) as refused:
        parse([{"name": 1, "matches": [[{"CommPrfix": "a"}]], "kind": {"Grouped": {"weight": -1}}}])
    assert str(refused.value).splitlines() == [
        "[0].name: should be text",
        "[0].matches[0][0].CommPrfix: no such condition (did you mean 'CommPrefix'?)",
        "[0].kind.Grouped.weight: should be greater than or equal to 0",
        "[0].kind.Grouped.util_range: required key is missing",
    ]
