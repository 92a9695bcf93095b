from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from strata.workload.layers import LayerTable

FIGURES = st.lists(st.integers(0, 10**12).map(float), min_size=1, max_size=20)


def table(values: list[float]) -> LayerTable:
    column = np.array(values)
    return LayerTable(("dense",) * len(values), column, 2 * column, 3 * column, 4 * column, 5 * column)


@given(FIGURES, st.data())
def test_a_difference_of_prefix_sums_is_a_sum_over_layers(values, data):
    first = data.draw(st.integers(0, len(values)))
    last = data.draw(st.integers(first, len(values)))
    layers = table(values)
    before = layers.params_before
    assert before.shape == (len(values) + 1,)
    assert before[last] - before[first] == layers.params[first:last].sum()
