from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.cluster.admission.patch import is_same, json_patch
from tests.cluster.admission.builders import apply

KEYS = st.text("ab~/.-0", max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab", max_size=2),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=3),
    max_leaves=12,
)


@given(before=JSON, after=JSON)
def test_applying_the_patch_makes_the_one_the_other(before, after):
    assert is_same(apply(json_patch(before, after), before), after)


@given(value=JSON)
def test_what_is_the_same_needs_no_patch(value):
    assert json_patch(value, value) == []


@pytest.mark.parametrize(
    ("before", "after", "patch"),
    [
        ({"a": 1}, {"a": 1, "b/c~d": 2}, [{"op": "add", "path": "/b~1c~0d", "value": 2}]),
        ({"a": [1]}, {"a": [1, 2]}, [{"op": "add", "path": "/a/-", "value": 2}]),
        ({"a": [1, 2]}, {"a": [2]}, [{"op": "replace", "path": "/a", "value": [2]}]),
        ({"a": []}, {"a": [2]}, [{"op": "replace", "path": "/a", "value": [2]}]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, [{"op": "replace", "path": "/a/0/b", "value": 2}]),
        ({"a": True}, {"a": 1}, [{"op": "replace", "path": "/a", "value": 1}]),
        ({"a": 1, "b": 2}, {"a": 1}, [{"op": "remove", "path": "/b"}]),
    ],
)
def test_operations_are_few_and_escaped(before, after, patch):
    assert json_patch(before, after) == patch
