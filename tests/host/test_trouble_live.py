"""Trouble on the kernel that runs here: the report names the process that was started to make it."""

from __future__ import annotations

import pytest

from strata.host.trouble.scenes import Trouble
from strata.host.trouble.trials import live_trial


@pytest.mark.real("tracing")
@pytest.mark.parametrize("trouble", [Trouble.FORK_STORM, Trouble.PINNED_HOG])
def test_the_injected_culprit_is_named_on_a_real_kernel(trouble, tmp_path):
    found = live_trial(trouble, seed=1, trace=tmp_path / "trace.txt")
    if found.is_disturbed:
        pytest.skip(f"others had {found.others:.0%} of the CPUs, {trouble} {found.culprit:.0%}")
    assert found.is_right, found
