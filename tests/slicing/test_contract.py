"""Limits in the environment mean the same to `fleet/slices.py`, which writes and reads them, as to the library."""

from __future__ import annotations

import pytest

from strata.errors import UsageError
from strata.fleet.slices import QuotaLimits, slice_environment
from tests.slicing.contract import slices_from_environment
from tests.slicing.fake_accelerators import GIB, MIB

TEXTS = ["1073741824", "1Gi", "1GiB", "1GB", "1.5Gi", "512MiB", " 1Gi ", "1 Gi", "2M"]
NONE = ["0", "-1", "eight", "1.5", "8Gb", "1073741824x", "Gi", "1Gi 1Gi", "0Gi", "99999999999999999999"]
HAMI = ["1024m", "1g", "1G", "1048576k", "1073741824", "0"]


def by_library(accelerators, ledger, env):
    """Return the device's size as the library shows it; None where it refuses everything."""
    done = accelerators.run(
        "calls", "dlsym", "alloc:1M", "total", env=accelerators.environment(ledger=ledger, **env)
    )
    alloc, total = done.stdout.splitlines()
    return None if alloc != "alloc 0" else int(total.split()[1])


@pytest.mark.parametrize(
    "env",
    [
        *({"STRATA_MEMORY_LIMIT": text} for text in (*TEXTS, *NONE)),
        *({"CUDA_DEVICE_MEMORY_LIMIT_0": text} for text in (*HAMI, "1x", "-1m")),
        {"STRATA_MEMORY_LIMIT": "2Gi", "STRATA_MEMORY_LIMIT_0": "1Gi"},
        {"STRATA_MEMORY_LIMIT_1": "1Gi"},
        {"STRATA_MEMORY_LIMIT": "2Gi", "CUDA_DEVICE_MEMORY_LIMIT_0": "1g"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DEVICE_MEMORY_LIMIT_0": "1g"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DISABLE_CONTROL": "true"},
        {"CUDA_DEVICE_MEMORY_LIMIT": "2g", "CUDA_DISABLE_CONTROL": "false"},
        slice_environment(QuotaLimits(3 * GIB, device=0)) | {"LD_PRELOAD": ""},
        slice_environment(QuotaLimits(5 * MIB)) | {"LD_PRELOAD": ""},
    ],
    ids=lambda env: " ".join(f"{key}={value}" for key, value in env.items()),
)
def test_both_read_the_same(accelerators, ledger, env):
    env = {key: value for key, value in env.items() if key != "LD_PRELOAD"}
    try:
        read = slices_from_environment(env, devices=1).get(0, QuotaLimits()).memory_bytes or 80 * GIB
    except UsageError:
        read = None
    assert by_library(accelerators, ledger, env) == read


@pytest.mark.parametrize("text", ["1,024Mi", "1_024Mi", "1e9B"])
def test_what_only_people_write_the_library_refuses(accelerators, ledger, text):
    assert slices_from_environment({"STRATA_MEMORY_LIMIT": text}, devices=1)
    assert by_library(accelerators, ledger, {"STRATA_MEMORY_LIMIT": text}) is None
