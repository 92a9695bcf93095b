"""Tests that share something run in one process: pytest-xdist heeds its groups."""

import pytest


@pytest.mark.xdist_group("of these tests")
def test_groups_of_tests_are_heeded(request):
    """pytest-xdist 3.8 tells groups by names of tests, which pytest 9.2 does not let it change."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("all tests run in one process: `-n` with `--dist loadgroup` divides them")
    assert request.node.nodeid.endswith("@of these tests")
