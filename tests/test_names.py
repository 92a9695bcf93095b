from __future__ import annotations

import pytest

from strata.names import closest


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("east_datacenter", "East_DataCenter"), ("WEST_DATACENTR", "West_DataCenter"), ("mars", None)],
)
def test_the_name_that_was_meant_is_found_in_whatever_case(typed, meant):
    assert closest(typed, ["West_DataCenter", "East_DataCenter"]) == meant
