"""What decides in which family of worlds, by what training measured."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest


@pytest.mark.real("torch")
def test_the_network_decides_only_where_it_surely_earns_more_than_the_untrained_rule():
    from strata.learning import gain

    names = ("regimes", "stale", "regimes_4_jobs")
    old = SimpleNamespace(worlds=[np.ones(8)] * 3)
    new = SimpleNamespace(worlds=[np.ones(8) * 1.02, np.ones(8) * 0.9, np.ones(8) * 1.01])
    assert gain._decides(names, old, new) == {"one job": "untrained", "several jobs": "network"}
