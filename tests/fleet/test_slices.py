from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata.errors import UsageError
from strata.fleet.slices import LIBRARY, QuotaLimits, slice_environment
from tests.slicing.contract import slices_from_environment

GIB = 2**30


def test_limits_become_variables_of_each_device():
    env = slice_environment(QuotaLimits(16 * GIB, 0.3, 0), ledger="/run/ledger")
    assert env == {
        "STRATA_MEMORY_LIMIT_0": str(16 * GIB),
        "STRATA_CORES_LIMIT_0": "30",
        "LD_PRELOAD": LIBRARY,
        "STRATA_LEDGER": "/run/ledger",
    }


def test_no_limit_loads_no_library():
    assert slice_environment(QuotaLimits(device=0)) == {}


def test_hamis_variables_are_understood():
    env = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_MEMORY_LIMIT": "1g", "CUDA_DEVICE_SM_LIMIT": "30"}
    assert slices_from_environment(env, devices=2) == {0: QuotaLimits(4 * GIB, 0.3), 1: QuotaLimits(GIB, 0.3)}


def test_hamis_zero_is_no_limit_and_its_switch_switches_off():
    assert slices_from_environment({"CUDA_DEVICE_MEMORY_LIMIT_0": "0"}, devices=1) == {}
    env = {"CUDA_DEVICE_MEMORY_LIMIT_0": "1g", "CUDA_DISABLE_CONTROL": "true"}
    assert slices_from_environment(env, devices=1) == {}


def test_our_limit_is_taken_before_hamis():
    env = {"STRATA_MEMORY_LIMIT": "2Gi", "CUDA_DEVICE_MEMORY_LIMIT_0": "1g"}
    assert slices_from_environment(env, devices=1) == {0: QuotaLimits(2 * GIB)}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("STRATA_MEMORY_LIMIT_0", "much"),
        ("STRATA_MEMORY_LIMIT_0", "-1"),
        ("STRATA_MEMORY_LIMIT", "0"),
        ("STRATA_CORES_LIMIT", "130"),
        ("CUDA_DEVICE_MEMORY_LIMIT_0", "1x"),
        ("CUDA_DEVICE_SM_LIMIT", "half"),
    ],
)
def test_a_limit_that_cannot_be_read_stops_the_process(name, text):
    with pytest.raises(UsageError, match=name):
        slices_from_environment({name: text}, devices=1)


@pytest.mark.parametrize("limits", [(0, None), (-1, None), (None, 0.0), (None, 1.5)])
def test_limits_that_leave_nothing_are_refused(limits):
    with pytest.raises(UsageError):
        slice_environment(QuotaLimits(*limits))


limits = st.builds(
    QuotaLimits, st.integers(1, 2**45), st.one_of(st.none(), st.integers(1, 99).map(lambda percent: percent / 100))
)


@given(limits, st.integers(0, 7))
def test_what_is_written_is_read_back(limits, device):
    env = slice_environment(replace(limits, device=device))
    assert slices_from_environment(env, devices=8) == {device: limits}
